"""Drafts: amounts as people write them, and what is wrong with the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessd.domain.ports import Refused
from harnessd.domain.task import TaskDraft
from harnessd.runtime.drafts import BUDGETS, FIELDS, Known, draft_from, read_amount, read_changes, write_amount

KNOWN = Known({"coder": "primary"}, ("primary",), "coder")


@pytest.mark.parametrize(
    ("name", "text", "amount"),
    [
        ("tool_calls", "150", 150),
        ("tokens", "2M", 2_000_000),
        ("tokens", "1.5M", 1_500_000),
        ("tokens", "500k", 500_000),
        ("cost_usd", "5.00", 5),
        ("cost_usd", "$20", 20),
        ("wall_time", "1h30m", 5400),
        ("silence", "90s", 90),
        ("age", "2d", 172_800),
        ("working_time", "500ms", 0.5),
        ("tool_calls", 12, 12),
        ("wall_time", 60.5, 60.5),
    ],
)
def test_an_amount_is_read_as_written(name: str, text: object, amount: float) -> None:
    assert read_amount(name, text) == amount


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tool_calls", "1.5"),
        ("tool_calls", "-1"),
        ("tool_calls", -1),
        ("tool_calls", True),
        ("tool_calls", "5m"),
        ("tool_calls", ""),
        ("wall_time", "300"),
        ("wall_time", "1:30"),
        ("wall_time", "1h 30m"),
        ("cost_usd", float("inf")),
        ("cost_usd", None),
        ("cost_usd", [1]),
    ],
)
def test_what_is_no_amount_says_so(name: str, text: object) -> None:
    with pytest.raises(ValueError, match=name):
        read_amount(name, text)


@settings(deadline=None)
@given(name=st.sampled_from(BUDGETS), amount=st.floats(0, 1e9))
def test_what_is_written_can_be_read(name: str, amount: float) -> None:
    assert read_amount(name, write_amount(name, amount)) >= amount


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(body=st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), json, max_size=6))
def test_any_json_gives_a_draft_or_a_refusal(body: dict[str, object]) -> None:
    # S11: no body is a crash
    found = draft_from(body, KNOWN)
    if isinstance(found, Refused):
        assert found.code in ("invalid", "not_found", "refused")
        assert found.message
    else:
        assert found.prompt.strip()
        assert Path(found.workspace).is_dir()


@settings(deadline=None)
@given(body=st.dictionaries(st.sampled_from(["budget", "labels", "policies", "model", "priority"]), json, max_size=5))
def test_any_change_is_read_or_refused(body: dict[str, object]) -> None:
    draft = TaskDraft("x", "coder", "/")
    assert isinstance(read_changes(body, draft, {"tool_calls": 90}), (dict, Refused))
