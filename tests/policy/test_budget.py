"""Budget: warnings once each, one stop, limits of one task on top."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.policy.budget import judge, limit_of, shown, with_limits
from tests.policy.written import policy, problems

SHIPPED = policy("budget")


def test_the_shipped_limits() -> None:
    # R3.9
    limits = {name: limit_of(SHIPPED, name) for name in type(SHIPPED.shape.limits).model_fields}
    assert limits == {
        "tool_calls": 90,
        "turns": 120,
        "tokens": 2_000_000,
        "cost_usd": 5.0,
        "working_time": None,
        "wall_time": 7200.0,
        "age": 604_800.0,
        "silence": 600.0,
    }
    assert SHIPPED.shape.last_turn
    assert SHIPPED.shape.unknown_price == "dearest"


def test_warned_at_63_and_81_and_stopped_at_90() -> None:
    # R3.9, i08
    said: list[str] = []
    warned: set[str] = set()
    for calls in range(1, 91):
        verdict = judge(SHIPPED, {"tool_calls": calls}, warned)
        for warning in verdict.warnings:
            said.append(f"{calls}: {warning.sentence}")
            warned.update(warning.marks)
        if verdict.exhausted is not None:
            assert calls == 90
            assert verdict.exhausted.sentence == "90 of 90 tool_calls used"
            assert verdict.exhausted.rule.rule == "limits.tool_calls"
            assert verdict.exhausted.rule.file == "builtin budget.yaml"
    assert said == [
        "63: 63 of 90 tool_calls used: plan the rest of the work within it.",
        "81: 81 of 90 tool_calls used: plan the rest of the work within it.",
    ]


def test_a_jump_over_both_marks_is_one_message() -> None:
    # i08
    own = policy("budget", "kind: budget\nlimits: {tool_calls: 10}\n")
    (warning,) = judge(own, {"tool_calls": 9.5}, ()).warnings
    assert (warning.level, warning.marks) == ("90%", ("tool_calls:70%", "tool_calls:90%"))
    assert not judge(own, {"tool_calls": 9.6}, warning.marks).warnings


def test_none_is_no_limit_and_zero_is_zero() -> None:
    free = policy("budget", "kind: budget\nlimits: {tool_calls: none}\n")
    assert judge(free, {"tool_calls": 10**9}, ()).exhausted is None
    nothing = policy("budget", "kind: budget\nlimits: {tool_calls: 0, cost_usd: 0}\n")
    exhausted = judge(nothing, {"tool_calls": 0}, ()).exhausted
    assert exhausted is not None
    assert exhausted.limit == 0


def test_silence_is_the_watchdogs() -> None:
    assert judge(SHIPPED, {"silence": 10_000.0}, ()) == judge(SHIPPED, {}, ())


def test_limits_of_one_task_lie_on_top_and_say_so() -> None:
    # `submit --budget tool_calls=20 --budget wall_time=...`
    own = with_limits(SHIPPED, {"tool_calls": 20.0, "wall_time": 90.0, "nonsense": 1})
    assert (limit_of(own, "tool_calls"), limit_of(own, "wall_time"), limit_of(own, "turns")) == (20, 90.0, 120)
    assert own.ref("limits", "tool_calls").file == "--budget tool_calls"
    assert own.written("limits", "wall_time") == "1m30s"
    assert limit_of(SHIPPED, "tool_calls") == 90  # nobody else's


def test_words_of_a_warning() -> None:
    own = policy(
        "budget",
        'kind: budget\nwarn_at: 50%\nwarning: "{left} of {{{limit}}} {budget} left"\nlimits: {wall_time: 2h}\n',
    )
    assert judge(own, {"wall_time": 5040}, ()).warnings[0].sentence == "36m of {2h} wall_time left"
    silent = policy("budget", "kind: budget\nwarn_at: []\n")
    assert not judge(silent, {"tool_calls": 89}, ()).warnings


@pytest.mark.parametrize(
    ("budget", "amount", "text"),
    [
        ("cost_usd", 3.5, "3.50"),
        ("tokens", 1_234_567, "1234567"),
        ("turns", 7, "7"),
        ("wall_time", 5040, "1h24m"),
        ("wall_time", 59.9, "59s"),
        ("age", 604_800, "7d"),
        ("working_time", 0.25, "250ms"),
        ("working_time", 0, "0s"),
    ],
)
def test_amounts_as_people_read_them(budget: str, amount: float, text: str) -> None:
    assert shown(budget, amount) == text


def test_what_is_refused() -> None:
    assert "0..5 values" not in problems("kind: budget\nwarn_at: [1%, 2%, 3%, 4%, 5%, 6%]\n")[0]
    assert (
        "6 values are out of bounds: write 0 to 5" in problems("kind: budget\nwarn_at: [1%, 2%, 3%, 4%, 5%, 6%]\n")[0]
    )
    assert "0 is out of bounds: write 1..1M" in problems("kind: budget\nlimits: {turns: 0}\n")[0]


@given(st.integers(1, 10_000), st.lists(st.integers(0, 200), max_size=60))
def test_each_mark_is_said_once_and_the_stop_is_exact(limit: int, steps: list[int]) -> None:
    own = with_limits(SHIPPED, {"turns": limit})
    used, warned, said = 0, set[str](), 0
    for step in steps:
        used += step
        verdict = judge(own, {"turns": used}, warned)
        assert (verdict.exhausted is not None) == (used >= limit)
        for warning in verdict.warnings:
            assert not set(warning.marks) & warned
            warned.update(warning.marks)
            said += 1
    assert said <= 2
