"""Breaker: settings by name, and every move of the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.domain.failure import ErrorClass
from harnessd.policy.breaker import (
    BreakerState,
    Outcome,
    admit,
    admitted_concurrency,
    outcome_of,
    settings,
    settle,
    trip,
)
from tests.policy.written import policy, problems

MODEL = settings(policy("breaker"), "model/primary")


def opened(at: float = 0.0) -> BreakerState:
    state = BreakerState()
    for _ in range(10):
        state = settle(MODEL, state, "failed", at)
    assert state.phase == "open"
    return state


def test_settings_by_name() -> None:
    # R3.5, A1
    assert (MODEL.open_s, MODEL.open_max_s, MODEL.consecutive, MODEL.failure_rate) == (60, 300, 10, 0.5)
    assert settings(policy("breaker"), "tool/bash").open_s == 300
    own = policy(
        "breaker",
        'kind: breaker\nrules: [{for: model/primary, slow_over: 60s, failure_rate: 30%, note: "brown-outs"}, '
        "{for: 'tool/*', consecutive: none, open: 10m}]\n",
    )
    primary = settings(own, "model/primary")
    assert (primary.slow_over_s, primary.failure_rate, primary.open_s, primary.consecutive) == (60, 0.3, 60, 10)
    assert primary.refs["slow_over"].line == 2
    assert primary.refs["open"].rule == "models"
    tool = settings(own, "tool/bash")
    assert (tool.consecutive, tool.open_s, tool.open_max_s) == (None, 600, 600)


def test_ten_in_a_row_open_it_and_a_success_starts_again() -> None:
    state = BreakerState()
    for _ in range(9):
        state = settle(MODEL, state, "failed", 0)
    state = settle(MODEL, state, "ok", 0)
    for _ in range(9):
        state = settle(MODEL, state, "failed", 0)
    assert state.phase == "closed"
    state = settle(MODEL, state, "failed", 0)
    assert (state.phase, state.why) == ("open", "10 failures in a row")


def test_half_of_the_calls_in_the_window_open_it() -> None:
    state = BreakerState()
    for n in range(19):
        state = settle(MODEL, state, "failed" if n % 2 else "ok", 30)
    assert state.phase == "closed"  # fewer than minimum_calls
    state = settle(MODEL, state, "failed", 30)
    assert (state.phase, state.why) == ("open", "10 of 20 calls failed")


def test_the_window_forgets() -> None:
    state = BreakerState()
    for n in range(18):
        state = settle(MODEL, state, "failed" if n % 2 else "ok", 0)
    for n in range(2):
        state = settle(MODEL, state, "failed" if n % 2 else "ok", 61)
    assert state.phase == "closed"
    assert sum(bucket[1] + bucket[2] for bucket in state.window) == 2


def test_what_is_not_its_fault_counts_neither_way() -> None:
    for error_class in ("invalid_request", "context_overflow", "refused", "malformed_output", "execution_failed"):
        assert outcome_of(MODEL, ErrorClass(error_class), 1) == "neutral"
    assert outcome_of(MODEL, ErrorClass.OVERLOADED, 1) == "failed"
    assert outcome_of(MODEL, None, 10_000) == "ok"
    assert outcome_of(replace(MODEL, slow_over_s=90), None, 91) == "failed"  # brown-out
    state = BreakerState(consecutive=9)
    assert settle(MODEL, state, "neutral", 0) == state


def test_probes_open_again_for_longer_or_close() -> None:
    state = opened(at=1000)
    closed_for = admit(MODEL, state, 1030)
    assert (closed_for.allowed, closed_for.wait_s) == (False, 30)
    waits = []
    now = 1000.0
    for _ in range(4):
        now += state.open_s
        probe = admit(MODEL, state, now)
        assert probe.allowed
        assert probe.round
        assert not admit(MODEL, probe.state, now).allowed  # one probe at a time
        state = settle(MODEL, probe.state, "failed", now)
        waits.append(state.open_s)
    assert waits == [120, 240, 300, 300]
    now += 300
    state = settle(MODEL, admit(MODEL, state, now).state, "ok", now)
    assert (state.phase, state.consecutive, state.closed_at) == ("closed", 0, now)


def test_a_neutral_answer_does_not_wedge_a_half_open_breaker() -> None:
    # R3.5
    probe = admit(MODEL, opened(), 60)
    state = settle(MODEL, probe.state, "neutral", 61)
    assert admit(MODEL, state, 61).allowed


def test_a_probe_that_never_comes_back_is_given_up() -> None:
    probe = admit(MODEL, opened(), 60)
    waiting = admit(MODEL, probe.state, 70)
    assert (waiting.allowed, waiting.wait_s) == (False, 50)
    assert admit(MODEL, probe.state, 121).allowed


def test_late_answers_change_nothing_while_open() -> None:
    state = opened()
    assert settle(MODEL, state, "ok", 1) == state


def test_tripped_by_hand_stays_open_until_its_time_is_over() -> None:
    # A1
    state = trip(BreakerState(), until=7200, note="status page 4711")
    assert admit(MODEL, state, 7199) == replace(admit(MODEL, state, 7199), allowed=False, wait_s=1)
    probe = admit(MODEL, state, 7200)
    assert probe.round
    assert settle(MODEL, probe.state, "ok", 7201).phase == "closed"


def test_parked_tasks_come_back_gradually() -> None:
    # R3.2a
    state = BreakerState(closed_at=1000)
    assert [admitted_concurrency(MODEL, state, 8, 1000 + t) for t in (0, 15, 30, 59, 60)] == [1, 2, 4, 7, 8]
    assert admitted_concurrency(MODEL, BreakerState(), 8, 0) == 8


def test_what_is_refused() -> None:
    assert "open 10m is above open_max 5m" in problems("kind: breaker\nrules: [{open: 10m, open_max: 5m}]\n")[0]
    assert "no facts exist here: use `for`" in problems("kind: breaker\nrules: [{when: {agent: builder}}]\n")[0]
    assert "agent has no meaning here" in problems("kind: breaker\nrules: [{for: agent/builder}]\n")[0]


@given(st.lists(st.tuples(st.sampled_from(["ok", "failed", "neutral"]), st.floats(0, 100)), max_size=80))
def test_it_never_wedges(history: list[tuple[Outcome, float]]) -> None:
    """Whatever happened, waiting long enough lets an attempt through, and good probes close it."""
    state, now = BreakerState(), 0.0
    for outcome, pause in history:
        now += pause
        admission = admit(MODEL, state, now)
        state = settle(MODEL, admission.state, outcome, now) if admission.allowed else admission.state
    now += MODEL.open_max_s
    for _ in range(MODEL.probes):
        admission = admit(MODEL, state, now)
        assert admission.allowed
        state = settle(MODEL, admission.state, "ok", now)
    assert state.phase == "closed"


@pytest.mark.parametrize("outcome", ["ok", "failed", "neutral"])
def test_states_are_values(outcome: Outcome) -> None:
    before = BreakerState(consecutive=9)
    settle(MODEL, before, outcome, 0)
    assert before == BreakerState(consecutive=9)
