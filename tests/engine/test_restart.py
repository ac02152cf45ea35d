"""A run restored at any point from what was recorded goes on as the unbroken one would (R6.1)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.domain.effect import EffectClass
from harnessd.domain.messages import FinishReason, Message, ModelReply, TextBlock
from harnessd.domain.session import view
from harnessd.domain.task import TaskState, Verb
from harnessd.engine.protocol import CallModel, CallTool, Finish, RunState
from tests.engine.desk import Desk
from tests.engine.scenery import (
    EFFECTS,
    FLEETING,
    FREE,
    NO_LIMITS,
    TOOLS,
    calls,
    model_failure,
    policies,
    reply,
    says,
    tool_failure,
    use,
)

PATIENT = "---\nkind: retry\ntool: {retries: 20}\n---\nkind: escalation\nrecoveries: 20\n"
REPEATABLE = (EffectClass.READ_ONLY, EffectClass.IDEMPOTENT)

wanted = st.tuples(st.sampled_from([*EFFECTS, "nothing"]), st.sampled_from([{}, {"a": 1}, {"a": 2}, None]))
turns = st.one_of(
    st.lists(wanted, min_size=1, max_size=5).map(lambda these: calls(*these)),
    st.just(reply(TextBlock("and th"), finish=FinishReason.LENGTH)),
)


@dataclass
class World:
    """Answers as a function of what it is shown; its faults pass by themselves."""

    script: list[ModelReply]
    model_faults: list[str] = field(default_factory=list)
    tool_faults: list[str] = field(default_factory=list)

    def model(self, desk: Desk, act: CallModel) -> None:
        """The step that follows what the request shows."""
        if self.model_faults:
            desk.model_failed(model_failure(self.model_faults.pop()))
            return
        turn = sum(message.role == "assistant" for message in act.request.messages)
        desk.replied(self.script[turn] if turn < len(self.script) else says("done"))

    def tool(self, desk: Desk, act: CallTool) -> None:
        """A result that depends on the arguments alone."""
        if self.tool_faults:
            desk.failed(tool_failure(act.tool, self.tool_faults.pop()), act.call)
            return
        desk.returned(f"{act.tool} {dict(act.arguments)}", act.call)


def live(desk: Desk, world: World, crashes: list[int], order: list[int]) -> None:
    """Drive the task to its end; a crash before each of these steps, where nothing is under way that forbids it."""
    desk.lease()
    for step in range(1_000):
        if isinstance(desk.last, Finish):
            return
        if desk.last is None and step in crashes and _may_crash(desk):
            desk.crash_and_lease()
        elif desk.last is not None:
            _go_on(desk)
        elif desk.run.state is RunState.BACKOFF:
            desk.waited()
        else:
            turn = order[step % len(order)]
            act = desk.under_way[sorted(desk.under_way)[turn % len(desk.under_way)]]
            if isinstance(act, CallModel):
                world.model(desk, act)
            elif isinstance(act, CallTool):
                world.tool(desk, act)
    pytest.fail("the task never ended")


def _may_crash(desk: Desk) -> bool:
    effects = [desk.ledger.effects[call] for call in desk.under_way]
    return all(effect.effect_class in REPEATABLE for effect in effects)


def _go_on(desk: Desk) -> None:
    for question in desk.ledger.asked:
        desk.ledger.answer(question.id, "allow")
    if desk.ledger.state is TaskState.PARKED:
        desk.now = max(desk.now, desk.ledger.until or 0.0)
        desk.ledger.move(Verb.WAKE)
    desk.lease()


def without_nudges(messages: tuple[Message, ...]) -> str:
    """What the model was shown; a nudge stands in the newest of parallel results, whichever came last."""
    return re.sub(r"\\nYou have done this [^']*", "", repr(messages))


def nudges(desk: Desk) -> list[Any]:
    """Which loops the model was told of."""
    return [(event.data["tool"], event.data["times"]) for event in desk.ledger.events if event.type == "nudge"]


@given(
    script=st.lists(turns, max_size=6),
    model_faults=st.lists(st.sampled_from(FLEETING), max_size=4),
    tool_faults=st.lists(st.just("down"), max_size=3),
    crashes=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    order=st.lists(st.integers(0, 4), min_size=1, max_size=9),
    asks=st.booleans(),
)
def test_a_broken_run_ends_as_the_unbroken_one(  # R6.1, R2.2
    script: list[ModelReply],
    model_faults: list[str],
    tool_faults: list[str],
    crashes: list[int],
    order: list[int],
    asks: bool,
) -> None:
    ends: list[tuple[str, Any]] = []
    spent: list[float] = []
    for when in ([], crashes):
        desk = Desk(policies((TOOLS if asks else FREE) + PATIENT, **NO_LIMITS))
        live(desk, World(script, list(model_faults), list(tool_faults)), when, order)
        counters = desk.ledger.counters
        seen = (desk.ledger.state, desk.last, counters.turns, counters.tool_calls, counters.tokens, counters.calls_of)
        ends.append((without_nudges(view(desk.ledger.path)), (*seen, nudges(desk))))
        spent.append(counters.cost_usd)
    assert ends[0] == ends[1]
    assert spent[1] >= spent[0]  # I8: what may have been spent counts as spent


def test_a_call_cut_off_by_a_crash_is_told_as_what_it_is() -> None:  # R4.7, R6.1
    desk = Desk(policies(FREE))
    desk.lease()
    desk.replied(calls(("note", {"a": 1}), ("look", {})))
    desk.crash_and_lease()
    (result,) = desk.results()
    assert result.is_error
    assert "started, outcome unknown" in result.text
    assert "It was not repeated" in result.text
    assert [act.tool for act in desk.performed] == ["note", "look"], "the next call goes on, the cut one does not"


def test_what_a_cut_off_call_had_written_is_in_its_result() -> None:
    desk = Desk(policies(FREE))
    desk.lease()
    desk.replied(calls(("note", {})))
    desk.ledger.partial[desk.call] = "half of it"
    desk.crash_and_lease()
    assert desk.results()[0].text.endswith("Output until then:\nhalf of it")


@pytest.mark.parametrize("tool", ["look", "put"])
def test_a_repeatable_call_is_performed_again_with_its_key(tool: str) -> None:  # R6.1, R3.13
    desk = Desk(policies(FREE))
    desk.lease()
    desk.replied(calls((tool, {"a": 1})))
    for _ in range(3):
        desk.crash_and_lease()
    desk.returned("ok")
    assert len(desk.performed) == 4
    assert len({act.key for act in desk.performed}) == 1
    assert desk.ledger.counters.tool_calls == 1, "one call of the model is counted once"


def test_a_model_call_cut_off_by_a_crash_counts_as_spent() -> None:  # I8, R3.9
    desk = Desk(policies(FREE))
    desk.lease()
    reserved = desk.ledger.counters.reserved_usd
    assert reserved > 0
    desk.crash_and_lease()
    assert desk.ledger.counters.cost_usd == pytest.approx(reserved)
    assert len(desk.requests) == 2
    assert desk.requests[0].request == desk.requests[1].request


def test_a_restart_in_a_backoff_keeps_the_time_and_the_tries() -> None:  # R3.2
    desk = Desk(policies(FREE))
    desk.lease()
    desk.model_failed(model_failure("wait a little"))
    assert desk.wait is not None
    until = desk.wait.until
    desk.now += 1
    desk.crash_and_lease()
    assert desk.wait is not None
    assert desk.wait.until == until
    desk.waited()
    assert desk.requests[-1].attempt == 2


def test_a_restart_in_a_tools_backoff_keeps_the_time() -> None:  # R3.2
    desk = Desk(policies(FREE))
    desk.lease()
    desk.replied(calls(("look", {})))
    desk.failed(tool_failure("look", "busy"))
    assert desk.wait is not None
    until = desk.wait.until
    assert until >= desk.now + 60
    desk.crash_and_lease()
    assert desk.wait is not None
    assert desk.wait.until == until
    desk.waited()
    assert desk.ledger.effects[desk.call].attempt == 2


def test_a_spent_sum_is_not_added_again_on_resume() -> None:  # i10
    desk = Desk(policies(FREE, cost_usd=10.0))
    desk.lease()
    desk.replied(reply(use("c0", "look", {}), cost=6.0))
    desk.step_down("pause")
    desk.returned("ok")
    desk.return_to_work()
    assert desk.run.state is RunState.MODEL
    assert desk.ledger.counters.cost_usd == 6.0


def test_an_answer_alone_is_no_way_past_an_interruption() -> None:  # R6.1a, case g15
    desk = Desk(policies(FREE))
    desk.lease()
    for number in range(4):
        desk.replied(calls(("note", {"way": number})))
        desk.crash_and_lease()
    assert desk.stands() is TaskState.WAITING, "each time the model found another way to kill its worker"
