"""Acts that went on in the background: the end of their job settles them, as a result at once would have (R3.13)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harnessd.domain.effect import EffectState, effect_key
from harnessd.engine.protocol import HandBack, PersonSaid
from harnessd.engine.tool_calls.outcomes import GIVEN_AGAIN
from tests.engine.desk import Desk
from tests.engine.scenery import FREE, NO_LIMITS, calls, policies, says

INVOICE = {"to": "ACME", "amount": 100, "invoice": "INV-7"}
PROBED = FREE.replace(
    "{for: tool/pay, effect: irreversible}",
    "{for: tool/pay, effect: irreversible, probe: {tool: tool/look, arguments: {}, "
    "done: {result.count: 1}, not_done: {result.count: 0}}}",
)


def state_of(desk: Desk) -> EffectState:
    """What is known of the payment."""
    return desk.ledger.effects["e2"].state


def left_running(text: str = FREE) -> Desk:
    """A payment that goes on as a job, told to the model, which waits for what comes."""
    desk = Desk(policies(text, **NO_LIMITS))
    desk.lease()
    desk.replied(calls(("pay", INVOICE)))
    desk.returned("goes on as job e2", job="job-1")
    assert state_of(desk) == "unknown"
    return desk


def ended(desk: Desk, code: int, *, ends_itself: bool = True) -> None:
    """The job ends while the model is being asked."""
    message = replace(desk.ledger.say(f"Job job-1 ended with exit code {code}.", desk.now), kind="notice")
    desk.ledger.messages[message.id] = message
    desk.ledger.ended_jobs = {"job-1": code} if ends_itself else {}
    desk.feed(PersonSaid(desk.now, message, desk.ledger.ended_jobs))


def pay_again(desk: Desk, turn: str = "9.") -> None:
    desk.replied(calls(("pay", INVOICE), turn=turn))


@pytest.mark.parametrize(
    ("code", "state"),
    [(0, "done"), (1, "failed"), (77, "failed"), (141, "failed"), (137, "unknown"), (143, "unknown")],
)
def test_the_exit_code_of_its_job_settles_an_act(code: int, state: str) -> None:
    desk = left_running()
    ended(desk, code)
    effect = desk.ledger.effects["e2"]
    assert effect.state == state
    assert state == "unknown" or (effect.result or {})["exit_code"] == code
    desk.replied(says("I see."))
    assert desk.ledger.effects["e2"].state == state


def test_a_job_that_was_ended_told_nothing() -> None:
    desk = left_running()
    ended(desk, 124, ends_itself=False)
    assert state_of(desk) == "unknown"
    pay_again(desk)
    assert desk.last == HandBack("waiting")
    assert len(desk.performed) == 1


def test_an_error_is_not_believed_where_a_probe_can_look() -> None:
    desk = left_running(PROBED)
    ended(desk, 1)
    assert state_of(desk) == "unknown"
    pay_again(desk)
    assert desk.performed[-1].tool == "look", "the world is asked"
    desk.returned("one", facts={"result": {"count": 1}})
    assert state_of(desk) == "done"
    assert [act.tool for act in desk.performed] == ["pay", "look"]


def test_a_twin_that_was_planned_before_its_end_was_told_is_given_its_outcome() -> None:
    desk = left_running()
    ended(desk, 0)
    pay_again(desk)
    assert len(desk.performed) == 1
    assert desk.results()[-1].text.endswith(GIVEN_AGAIN)
    assert "exit code 0" in desk.results()[-1].text


def test_one_more_that_is_wanted_after_its_end_was_told_runs() -> None:
    desk = left_running()
    ended(desk, 0)
    desk.replied(calls(("look", {})))
    desk.returned("seen")
    pay_again(desk)
    desk.returned("paid")
    pays = [act.key for act in desk.performed if act.tool == "pay"]
    assert pays == [effect_key("t1", "tool/pay", INVOICE, n) for n in (1, 2)]


def test_what_failed_in_the_background_is_sent_again_under_its_key() -> None:
    desk = left_running()
    ended(desk, 3)
    desk.replied(calls(("look", {})))
    desk.returned("seen")
    pay_again(desk)
    desk.returned("paid")
    assert [act.key for act in desk.performed if act.tool == "pay"] == [effect_key("t1", "tool/pay", INVOICE, 1)] * 2


@pytest.mark.parametrize("told", [False, True])
def test_an_end_while_nobody_worked_on_the_task_settles_too(told: bool) -> None:
    desk = left_running()
    desk.crash()
    desk.ledger.ended_jobs = {"job-1": 0}
    if told:
        message = replace(desk.ledger.say("Job job-1 ended with exit code 0.", desk.now), kind="notice")
        desk.ledger.messages[message.id] = message
    desk.lease()
    effect = desk.ledger.effects["e2"]
    assert effect.state is EffectState.DONE
    assert dict(effect.result or {}).items() >= {"job": "job-1", "exit_code": 0}.items()
    pay_again(desk)
    assert len([act for act in desk.performed if act.tool == "pay"]) == 1 + told


def test_the_jobs_of_other_acts_settle_nothing() -> None:
    desk = left_running()
    for jobs in ({"job-2": 0}, {}):
        message = desk.ledger.say("Job job-2 ended with exit code 0.", desk.now)
        desk.feed(PersonSaid(desk.now, message, jobs))
    assert state_of(desk) == "unknown"


def test_its_undo_is_kept_unless_that_needs_the_result() -> None:
    def undone(template: str) -> Any:
        undo = f"undo: {{tool: tool/put, arguments: {{number: '{template}'}}}}"
        desk = left_running(FREE.replace("{for: tool/pay, effect: irreversible}",
                                         f"{{for: tool/pay, effect: irreversible, {undo}}}"))  # fmt: skip
        ended(desk, 0)
        return (desk.ledger.effects["e2"].result or {}).get("undo")

    assert undone("{arg.invoice}") == {"tool": "tool/put", "arguments": {"number": "INV-7"}}
    assert undone("{result.id}") is None
