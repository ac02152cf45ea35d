"""Links: fallback chains of models and tools, the way back, open breakers, outages (R3.2a, R3.3, R3.4, R3.5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harnessd.domain.session import NodeKind
from harnessd.domain.task import StopReason, TaskState, Verb
from harnessd.engine.protocol import CallModel, Finish, RunState
from tests.engine.desk import Desk
from tests.engine.scenery import BRIEF, CHAINS, FREE, NO_LIMITS, calls, model_failure, policies, says, tool_failure

SWITCHING = "---\nkind: retry\nmodel: {retries: 3, switch_after: 2, classes: {overloaded: {switch_after: 2}}}\n"


def started(text: str = FREE + CHAINS + SWITCHING, **budget: float) -> Desk:
    """A run that waits for its first answer."""
    desk = Desk(policies(text, **{**NO_LIMITS, **budget}))
    desk.lease()
    return desk


def asked(desk: Desk) -> str:
    """The model that is being asked."""
    (act,) = desk.under_way.values()
    assert isinstance(act, CallModel)
    return act.request.model


def fails(desk: Desk, kind: str = "overloaded", times: int = 1) -> None:
    """The model under way fails, and its waits pass."""
    for _ in range(times):
        desk.model_failed(model_failure(kind, asked(desk)))
        if desk.wait is not None:
            desk.waited()


def told(desk: Desk, *types: str) -> list[dict[str, Any]]:
    """What events of these types said."""
    return [{"type": event.type, **event.data} for event in desk.ledger.events if event.type in types]


def answered_by(desk: Desk) -> list[str]:
    """Who gave the answers on the path."""
    return [node.payload["facts"]["model"] for node in desk.ledger.path if node.kind is NodeKind.ASSISTANT]


def test_after_some_tries_the_next_link_that_can_takes_over() -> None:  # R3.4
    desk = started()
    fails(desk)
    assert asked(desk) == "primary"
    fails(desk)
    assert asked(desk) == "second", "tiny is passed over: its window is too small"
    decision = desk.ledger.decisions[-1].decision
    assert "tries on model/primary, and model/second is left (switch_after 2)" in decision.evidence["passed_over"][0]
    assert decision.evidence["chain"]["kind"] == "fallback"
    (passed,) = decision.remedy.passed  # type: ignore[union-attr]
    assert passed[0] == "model/tiny"
    assert "its window of 10 is smaller" in passed[1]
    desk.replied(says("done"))
    assert answered_by(desk) == ["second"]
    assert told(desk, "degraded")[0]["link"] == "model/second"


def test_the_waits_of_a_new_link_begin_at_base() -> None:
    desk = started()
    fails(desk, times=2)
    desk.model_failed(model_failure("overloaded", "second"))
    assert desk.wait is not None
    assert desk.wait.until == desk.now + 0.5


def test_a_slow_link_gets_fewer_tries() -> None:  # R3.16
    desk = started(FREE + CHAINS)
    desk.model_failed(replace(model_failure("server"), first_event_s=31.0))
    assert asked(desk) == "second"


def test_a_refusal_has_a_chain_of_its_own_and_is_never_sent_again_unchanged() -> None:  # R3.3, R3.4
    desk = started()
    fails(desk, "refused")
    assert asked(desk) == "second"
    desk.model_failed(model_failure("refused", "second"))
    assert desk.last is not None
    assert desk.ledger.reason is StopReason.REFUSED


def test_an_overflow_goes_only_to_a_larger_window() -> None:
    desk = started()
    fails(desk, "overflow")
    assert asked(desk) == "long"


def test_it_returns_at_a_turns_border_and_says_so() -> None:  # R3.4
    desk = started()
    fails(desk, times=2)
    desk.replied(calls(("look", {"a": 1}), turn="1"))
    desk.now += 301
    desk.returned("seen")
    assert asked(desk) == "primary"
    desk.replied(says("done"))
    assert answered_by(desk) == ["second", "primary"]
    assert [event["type"] for event in told(desk, "degraded", "recovered")] == ["degraded", "recovered"]


def test_a_return_that_fails_falls_back_at_once() -> None:  # R3.4
    desk = started()
    fails(desk, times=2)
    desk.replied(calls(("look", {"a": 1}), turn="1"))
    desk.now += 301
    desk.returned("seen")
    assert asked(desk) == "primary"
    desk.crash_and_lease()
    assert asked(desk) == "primary"
    desk.model_failed(model_failure("overloaded"))
    assert asked(desk) == "second"
    assert "this was the probe" in desk.ledger.decisions[-1].decision.evidence["passed_over"][0]
    desk.replied(calls(("look", {"a": 2}), turn="2"))
    desk.now += 60
    desk.returned("seen")
    assert asked(desk) == "second", "the next probe is after another return_after"
    desk.replied(says("done"))
    assert len(told(desk, "degraded")) == 1


def test_the_link_in_use_survives_a_crash() -> None:  # R6.1
    desk = started()
    fails(desk, times=2)
    desk.crash_and_lease()
    assert asked(desk) == "second"


def test_an_open_breaker_costs_no_try_and_hands_on_at_once() -> None:  # R3.5
    desk = started()
    fails(desk, "breaker")
    assert asked(desk) == "second"
    assert desk.ledger.counters.tries == 0
    fails(desk, "breaker")
    assert asked(desk) == "third"
    desk.model_failed(model_failure("breaker", "third"))
    assert desk.stands() is TaskState.PARKED
    assert desk.ledger.until == desk.now + 45.0
    assert desk.ledger.counters.tries == 0
    assert desk.ledger.counters.turns == 0


def test_the_used_up_chain_is_said_to_the_person_in_the_policys_words() -> None:  # R3.4
    desk = started(FREE + CHAINS + 'say: "Besetzt bis {until}, {model}, {task}."\n')
    fails(desk, "breaker", times=2)
    desk.model_failed(model_failure("breaker", "third"))
    said = desk.ledger.last_move.why
    assert said.startswith("Besetzt bis 00:17 UTC, primary, t1. (model/third: server_error: 10 failures in a row)")
    assert not isinstance(desk.last, Finish)


def test_an_outage_is_told_once_when_it_starts_and_once_when_it_ends() -> None:  # R3.2a
    desk = started(FREE)
    for _ in range(3):
        fails(desk, "breaker")
        assert desk.stands() is TaskState.PARKED
        desk.now = desk.ledger.until or 0.0
        desk.return_to_work(Verb.WAKE)
    (began,) = told(desk, "outage_started", "outage_ended")
    assert (began["type"], began["dependency"], began["class"]) == ("outage_started", "model/primary", "server_error")
    assert desk.ledger.counters.turns == 0
    desk.replied(says("done"))
    (_, ended) = told(desk, "outage_started", "outage_ended")
    assert (ended["type"], ended["answered"]) == ("outage_ended", True)


def test_each_look_at_an_outage_is_one_call_however_long_it_lasts() -> None:  # R3.2a
    desk = started(FREE)
    while desk.last is None:
        fails(desk)
    before = len(desk.requests)
    tries = desk.ledger.counters.tries
    for _ in range(20):
        desk.now = desk.ledger.until or 0.0
        desk.return_to_work(Verb.WAKE)
        fails(desk)
    assert len(desk.requests) == before + 20
    assert desk.ledger.counters.tries == tries


def test_a_dead_credential_is_told_at_once_and_once_an_outage() -> None:  # R3.4
    desk = started(FREE)
    for _ in range(3):
        desk.model_failed(model_failure("key"))
        desk.now = desk.ledger.until or 0.0
        desk.return_to_work(Verb.WAKE)
    (dead,) = told(desk, "credential_dead")
    assert dead["dependency"] == "model/primary"


def test_a_drain_does_not_wait_for_a_backoff() -> None:  # R6.1a
    desk = started(FREE)
    desk.step_down("drain")
    desk.model_failed(model_failure("wait a little"))
    assert desk.stands() is TaskState.QUEUED
    desk.lease()
    assert desk.run.state is RunState.BACKOFF
    desk.waited()
    assert desk.requests[-1].attempt == 2


def test_a_quota_waits_for_its_reset_in_the_same_session() -> None:  # R3.2a
    desk = started(FREE)
    quota = replace(model_failure("quota"), retry_after_s=7_200.0)
    desk.model_failed(quota)
    assert desk.ledger.until == desk.now + 7_200.0
    desk.now += 7_200.0
    desk.return_to_work(Verb.WAKE)
    desk.replied(says("done"))
    assert desk.stands() is TaskState.COMPLETED


@pytest.mark.parametrize(
    ("link", "why"),
    [("mute", "no tools"), ("unpriced", "its price is not known"), ("gone", "no such model")],
)
def test_a_link_that_cannot_take_the_request_is_passed_over_with_the_reason(link: str, why: str) -> None:  # R3.4
    text = f"{FREE}---\nkind: fallback\nchains: {{model/primary: [model/{link}, model/second]}}\n"
    desk = started(text + "---\nkind: budget\nunknown_price: refuse\n")
    fails(desk, "breaker")
    assert asked(desk) == "second"
    remedy = desk.ledger.decisions[-1].decision.remedy
    assert why in remedy.passed[0][1]  # type: ignore[union-attr]


# --- tools ------------------------------------------------------------------------------------------------------------


def test_another_tool_answers_with_the_same_arguments() -> None:  # R3.4
    desk = started()
    desk.replied(calls(("look", {"q": "x"})))
    for _ in range(3):
        desk.failed(tool_failure("look", "down"))
        if desk.run.state is RunState.BACKOFF:
            desk.waited()
    act = desk.performed[-1]
    assert (act.tool, act.arguments) == ("note", {"q": "x"}), "gone is passed over: the agent does not have it"
    desk.crash_and_lease()
    assert desk.results() != [], "a reversible act is not repeated after the crash"


def test_who_stood_in_is_told_to_the_model_and_to_people() -> None:
    desk = started()
    desk.replied(calls(("put", {"q": "x"})))
    for _ in range(3):
        desk.failed(tool_failure("put", "down"))
        if desk.run.state is RunState.BACKOFF:
            desk.waited()
    assert desk.performed[-1].tool == "look"
    desk.crash_and_lease()
    assert desk.performed[-1].tool == "look"
    desk.returned("found")
    (result,) = desk.results()
    assert result.text == "put could not be used, and look answered instead.\nfound"
    assert told(desk, "degraded")[0]["dependency"] == "tool/put"
    desk.replied(calls(("put", {"q": "y"}), turn="2"))
    desk.returned("stored")
    assert told(desk, "recovered")[0]["dependency"] == "tool/put"


def test_what_may_have_acted_is_not_done_by_another_tool() -> None:  # R3.13
    text = f"{FREE}---\nkind: fallback\nchains: {{tool/note: [tool/put]}}\n"
    desk = started(text)
    desk.replied(calls(("note", {})))
    desk.failed(tool_failure("note", "slow", begun=True))
    assert [act.tool for act in desk.performed] == ["note"]
    assert "must not happen twice" in " ".join(desk.ledger.decisions[-1].decision.evidence["passed_over"])


REFUSING = "---\nkind: budget\nunknown_price: refuse\n"


def test_a_model_whose_price_nobody_knows_is_not_called_where_policy_says_so() -> None:  # R3.9, i14
    brief = replace(BRIEF, model=replace(BRIEF.model, priced=False))
    desk = Desk(policies(FREE + REFUSING, **NO_LIMITS), brief=brief)
    desk.lease()
    assert desk.requests == []
    assert desk.ledger.reason is StopReason.BUDGET_EXHAUSTED
    assert "the price of model/primary is not known" in desk.ledger.last_move.sentence


def test_its_chain_answers_for_a_model_that_may_not_be_called() -> None:  # R3.9, R3.4
    brief = replace(BRIEF, model=replace(BRIEF.model, priced=False))
    chain = "---\nkind: fallback\nchains: {model/primary: [model/unpriced, model/second]}\n"
    desk = Desk(policies(FREE + REFUSING + chain, **NO_LIMITS), brief=brief)
    desk.lease()
    assert asked(desk) == "second"
    desk.replied(says("done"))
    assert told(desk, "degraded")[0]["link"] == "model/second"


def test_an_unknown_price_is_called_and_charged_as_the_dearest_by_default() -> None:  # R3.9, i14
    brief = replace(BRIEF, model=replace(BRIEF.model, priced=False))
    desk = Desk(policies(FREE, **NO_LIMITS), brief=brief)
    desk.lease()
    assert desk.ledger.counters.reserved_usd > 0


@pytest.mark.parametrize(("about", "why"), [({"tools": False}, "no tools"), ({"window": 10}, "its window of 10")])
def test_the_alternatives_of_a_decision_say_what_a_link_lacks(about: dict[str, Any], why: str) -> None:  # R3.4, R1.3
    local = replace(BRIEF.model, alias="local", **about)
    brief = replace(BRIEF, models={**BRIEF.models, "local": local})
    chain = "---\nkind: fallback\nchains: {model/primary: [model/local, model/second]}\n"
    desk = Desk(policies(FREE + chain, **NO_LIMITS), brief=brief)
    desk.lease()
    fails(desk, "breaker")
    assert asked(desk) == "second"
    (said,) = [one for one in desk.ledger.decisions[-1].decision.alternatives if one.startswith("model/local")]
    assert said.startswith(f"model/local: {why}")


def test_a_link_without_tools_takes_the_summing_up_of_a_budgets_end() -> None:  # R3.4, R3.9
    chain = "---\nkind: fallback\nchains: {model/primary: [model/mute]}\n"
    desk = Desk(policies(FREE + chain, **{**NO_LIMITS, "tool_calls": 0.0}))
    desk.lease()
    assert desk.requests[-1].request.tool_choice == "none"
    fails(desk, "breaker")
    assert asked(desk) == "mute"
