"""Brakes before the call: reservations, shorter answers before none, the last turn's own reserve (R3.9)."""

from __future__ import annotations

from dataclasses import replace

from harnessd.domain.messages import TextBlock
from harnessd.domain.session import NodeKind
from harnessd.domain.task import StopReason, TaskState
from harnessd.engine.protocol import RunState
from tests.engine.desk import Desk
from tests.engine.scenery import FREE, NO_LIMITS, calls, policies, reply, says


def started(**budget: float) -> Desk:
    """A run that waits for its first answer."""
    desk = Desk(policies(FREE, **{**NO_LIMITS, **budget}))
    desk.lease()
    return desk


def test_an_answer_is_made_shorter_before_a_call_is_refused() -> None:  # R3.9
    desk = started(cost_usd=0.03)  # 15 USD a million: 2,000 tokens in all
    (act,) = desk.requests
    assert 1_900 < act.request.max_tokens < 2_000
    reserved = desk.ledger.counters.reserved_usd
    assert 0.029 < reserved <= 0.03


def test_tokens_are_kept_back_in_the_same_way() -> None:
    desk = started(tokens=1_000)
    assert 256 <= desk.requests[0].request.max_tokens < 1_000


def test_a_call_that_does_not_fit_is_not_made_and_the_last_turn_has_its_own_reserve() -> None:  # R3.9
    desk = started(cost_usd=0.03)
    desk.replied(reply(*calls(("look", {})).message.blocks, tokens=10, cost=0.027))  # type: ignore[arg-type]
    desk.returned("seen")
    act = desk.requests[-1]
    assert act.request.tool_choice == "none"
    assert act.request.max_tokens == 1_024
    assert "what is left does not hold another call" in desk.texts(NodeKind.NOTICE)[-1]
    desk.replied(reply(TextBlock("what was done"), cost=0.002))
    assert desk.ledger.reason is StopReason.BUDGET_EXHAUSTED
    assert "0.03 of 0.03 cost_usd used" in desk.ledger.last_move.sentence


def test_a_limit_that_is_raised_meanwhile_lets_the_task_go_on() -> None:  # R3.9
    desk = started(cost_usd=0.03)
    desk.replied(reply(*calls(("look", {})).message.blocks, tokens=10, cost=0.027))  # type: ignore[arg-type]
    desk.returned("seen")
    desk.rules = policies(FREE, **{**NO_LIMITS, "cost_usd": 1.0})
    desk.replied(says("what was done"))
    assert desk.run.state is RunState.MODEL
    assert desk.requests[-1].request.tool_choice == "auto"
    assert desk.stands() is TaskState.RUNNING


def test_a_model_that_costs_nothing_has_no_brake_of_money() -> None:
    desk = Desk(policies(FREE, cost_usd=0.0001))
    free = desk.brief.models["third"]
    desk.brief = replace(desk.brief, model=free)
    desk.lease()
    assert desk.requests[0].request.max_tokens == free.max_output
