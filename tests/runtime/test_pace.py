"""How many calls a service bears: fewer after it refused, slowly more while it answers, within what is declared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.domain.failure import ErrorClass
from harnessd.runtime.traffic.pace import Pace, Paces

NAME, NOW = "model/primary", 1000.0


def limited(paces: Paces, running: int, at: float, hint_s: float | None = None) -> None:
    paces.learn(NAME, ErrorClass.RATE_LIMITED, running, 8, hint_s, at)


def test_who_never_refused_is_not_held_back() -> None:  # R3.16
    paces = Paces()
    paces.learn(NAME, None, 8, 8, None, NOW)
    paces.learn(NAME, ErrorClass.SERVER_ERROR, 8, 8, None, NOW)
    assert paces.held_s(NAME, 100, NOW) is None


def test_calls_stand_still_for_the_time_it_gave_then_begin_with_fewer() -> None:  # R3.2, R3.16
    paces = Paces()
    limited(paces, 8, NOW, 3.0)
    limited(paces, 7, NOW + 0.1, 3.0)  # sent with the first one: the same refusal
    assert paces.held_s(NAME, 0, NOW + 1) == pytest.approx(2.1)
    assert paces.held_s(NAME, 3, NOW + 3.2) is None
    assert paces.held_s(NAME, 4, NOW + 3.2) == 0.0


def test_without_a_word_the_waits_grow_until_it_answers_and_are_remembered() -> None:
    paces, at, waits = Paces(), NOW, []
    for _ in range(8):
        limited(paces, 1, at)
        held_s = paces.held_s(NAME, 0, at)
        assert held_s is not None
        waits.append(held_s)
        at += held_s
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.5, 32.0)
    paces.learn(NAME, None, 1, 8, None, at)
    limited(paces, 1, at + 1)
    again = paces.held_s(NAME, 0, at + 1)
    assert again is not None
    assert again > 10  # half of what it took the last time


def test_a_long_hint_is_for_the_tasks_to_decide_on() -> None:
    paces = Paces()
    limited(paces, 1, NOW, 3600.0)
    assert paces.held_s(NAME, 0, NOW) == 60.0


def test_overload_without_a_word_is_no_reason_to_be_fewer() -> None:
    paces = Paces()
    paces.learn(NAME, ErrorClass.OVERLOADED, 8, 8, None, NOW)
    assert paces.held_s(NAME, 7, NOW) is None
    paces.learn(NAME, ErrorClass.OVERLOADED, 8, 8, 2.0, NOW)
    assert paces.held_s(NAME, 0, NOW) == 2.0


def test_what_was_too_much_is_forgotten() -> None:
    paces = Paces()
    limited(paces, 8, NOW, 1.0)
    at = NOW + 2
    for _ in range(2000):
        paces.learn(NAME, None, 1, 8, None, at)
        at += 0.1
    assert paces.held_s(NAME, 1000, at) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 64), st.floats(0, 5)), max_size=200))
def test_somebody_may_always_go_after_a_while(history: list[tuple[bool, int, float]]) -> None:
    pace, now = Pace(), NOW
    for refused, running, pause in history:
        now += pause
        pace = pace.refused(running, None, now) if refused else pace.answered(8, now)
    assert pace.until - now <= 60.0
    assert pace.window is None or 1.0 <= pace.window <= 64.0
