"""Probes: the world is asked about an act whose outcome was lost; what it says settles it, and nothing is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from harnessd.domain.effect import EffectState
from harnessd.engine.protocol import HandBack, RunState
from tests.engine.desk import Desk, unpaired
from tests.engine.scenery import calls, policies, tool_failure

INVOICE = {"to": "ACME", "amount": 100}
PROBED = """kind: tools
rules:
  - for: tool/pay
    probe:
      tool: tool/look
      arguments: {key: "{key}", invoice: "of {arg.to}", amount: "{arg.amount}"}
      done: {result.status: paid}
      not_done: {result.count: 0}
  - {for: tool/look, effect: read_only}
permissions: [{name: irreversible, do: allow}]
"""
PAID = {"result": {"status": "paid", "count": 1}}
UNPAID = {"result": {"status": "none", "count": 0}}


def lost(text: str = PROBED) -> Desk:
    """A payment whose answer was lost; the probe is under way."""
    desk = Desk(policies(text))
    desk.lease()
    desk.replied(calls(("pay", INVOICE)))
    desk.failed(tool_failure("pay", "lost"))
    return desk


def test_the_world_is_asked_with_what_is_known_of_the_act() -> None:  # R3.13
    desk = lost()
    asked = desk.performed[-1]
    assert asked.tool == "look"
    assert asked.arguments == {"key": desk.performed[0].key, "invoice": "of ACME", "amount": 100}
    assert asked.key is None
    assert desk.ledger.effects["e2"].state is EffectState.UNKNOWN
    assert (desk.ledger.effects["e3"].kind, desk.ledger.effects["e3"].call_id) == ("probe", "c0")
    assert desk.ledger.decisions[-1].decision.rule.rule == "unknown-outcome"
    assert desk.run.state is RunState.TOOLS
    assert desk.run.counters.tool_calls == 1, "a probe is ours, and no call of the model"


def test_what_was_done_is_told_as_done_and_not_made_again() -> None:
    desk = lost()
    desk.returned("1 payment", facts=PAID)
    (result,) = desk.results()
    assert not result.is_error
    assert result.text == "pay was done: its outcome was lost, and the probe found it.\n1 payment"
    assert desk.ledger.effects["e2"].state is EffectState.DONE
    desk.replied(calls(("pay", INVOICE), turn="9."))
    assert [act.tool for act in desk.performed] == ["pay", "look", "pay"]
    assert desk.performed[2].key != desk.performed[0].key, "one more payment is a new act"


def test_what_was_not_done_is_told_and_asked_for_again_under_its_old_key() -> None:
    desk = lost()
    desk.returned("none", facts=UNPAID)
    (result,) = desk.results()
    assert result.is_error
    assert "pay was not done" in result.text
    assert desk.ledger.effects["e2"].state is EffectState.FAILED
    desk.replied(calls(("pay", INVOICE), turn="9."))
    assert desk.performed[2].key == desk.performed[0].key


@pytest.mark.parametrize(
    "facts", [{}, {"result": {"status": "odd", "count": 2}}, {"result": {"status": "paid", "count": 0}}]
)
def test_an_answer_that_settles_nothing_leaves_it_to_a_person_in_the_end(facts: dict[str, object]) -> None:
    desk = lost()
    desk.returned("who knows", facts=facts)
    assert desk.performed[-1].tool == "look", "one more look"
    desk.failed(tool_failure("look", "down"))
    assert desk.last == HandBack("waiting")
    (question,) = desk.ledger.asked
    assert (question.data["key"], question.data["effect"]) == (desk.performed[0].key, "e2")
    assert desk.ledger.effects["e2"].state is EffectState.UNKNOWN
    assert len([act for act in desk.performed if act.tool == "pay"]) == 1
    desk.ledger.answer(question.id, "done")
    desk.lease()
    assert "a person confirmed it" in desk.results()[0].text
    assert [effect.state for effect in desk.ledger.effects.values() if effect.id == "e2"] == [EffectState.DONE]


def test_a_crash_of_the_payment_and_one_of_its_probe_are_each_asked_about_again() -> None:
    desk = Desk(policies(PROBED))
    desk.lease()
    desk.replied(calls(("pay", INVOICE)))
    desk.crash_and_lease()
    assert [act.tool for act in desk.performed] == ["pay", "look"]
    desk.crash_and_lease()
    assert [act.tool for act in desk.performed] == ["pay", "look", "look"]
    desk.returned("1 payment", facts=PAID)
    assert "pay was done" in desk.results()[0].text
    states = [effect.state for effect in desk.ledger.effects.values() if effect.kind == "probe"]
    assert states == [EffectState.FAILED, EffectState.DONE]


def test_a_cancelled_probe_leaves_the_act_unknown_and_one_result() -> None:  # R2.2
    desk = lost()
    desk.cancel()
    desk.failed(tool_failure("look", "cancelled"))
    assert unpaired(desk.ledger.path) == []
    (result,) = desk.results()
    assert "outcome unknown" in result.text
    assert desk.ledger.effects["e2"].state is EffectState.UNKNOWN
    desk.return_to_work()
    desk.replied(calls(("pay", INVOICE), turn="9."))
    assert desk.performed[-1].tool == "look", "planned again, it is asked about, not repeated"


def test_without_a_probe_a_person_is_asked_at_once() -> None:
    desk = lost("kind: tools\npermissions: [{name: irreversible, do: allow}]\n")
    assert desk.last == HandBack("waiting")
    assert [act.tool for act in desk.performed] == ["pay"]
    # G7: whoever is asked is told which act it was, when it began, and what the answers are
    (question,) = desk.ledger.asked
    key = desk.performed[0].key
    assert key
    assert key in question.sentence
    assert "ACME" in question.sentence
    assert (question.data["key"], question.choices) == (key, ("done", "not-done", "stop"))
    assert question.data["started_at"]


@pytest.mark.parametrize("about", [{"exit_code": 1}, {"facts": {"status": 409}}])
def test_an_error_that_settles_nothing_is_asked_about(about: dict[str, Any]) -> None:
    desk = Desk(policies(PROBED))
    desk.lease()
    desk.replied(calls(("pay", INVOICE)))
    desk.returned("connection lost", is_error=True, **about)
    assert desk.performed[-1].tool == "look"
    desk.returned("1 payment", facts=PAID)
    assert "pay was done" in desk.results()[0].text


def test_a_refusal_of_the_receiver_is_its_last_word() -> None:
    desk = Desk(policies(PROBED))
    desk.lease()
    desk.replied(calls(("pay", INVOICE)))
    desk.returned("HTTP 402", is_error=True, facts={"status": 402, "refused": True})
    assert [act.tool for act in desk.performed] == ["pay"]
