"""Shims: known repairs of arguments, and nothing that guesses (R2.3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.defence.shims import mend
from harnessd.policy.tools import Shim

BOTH = Shim(("array", "object"))
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "edits": {"type": "array", "items": {"type": "object", "properties": {"lines": {"type": "array"}}}},
        "options": {"type": "object", "properties": {"depth": {"type": "integer"}}},
        "either": {"type": ["array", "string"]},
        "text": {"type": "string"},
        "limit": {"type": "integer"},
    },
    "required": ["text"],
}


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ({"edits": "[1, 2]"}, {"edits": [1, 2]}),
        ({"edits": [{"lines": "[3]"}]}, {"edits": [{"lines": [3]}]}),
        ({"options": '{"depth": 1}'}, {"options": {"depth": 1}}),
        ({"edits": '{"a": 1}'}, {"edits": '{"a": 1}'}),  # another kind than the schema wants
        ({"edits": "[1, 2"}, {"edits": "[1, 2"}),
        ({"either": "[1]"}, {"either": "[1]"}),  # a text is allowed here
        ({"text": "[1]"}, {"text": "[1]"}),
        ({"limit": "5"}, {"limit": "5"}),
        ({"text": 42}, {"text": 42}),
        ({"unknown": "[1]"}, {"unknown": "[1]"}),
    ],
)
def test_a_json_string_is_read_only_where_the_schema_wants_that_kind(
    given_: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert mend(SCHEMA, given_, None, BOTH) == wanted
    assert mend(SCHEMA, given_, None, Shim()) == given_


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ({"text": "a", "options": {"options": {"depth": 1}}}, {"text": "a", "options": {"depth": 1}}),
        ({"arguments": {"limit": 3}, "text": "a"}, {"limit": 3, "text": "a"}),
        ({"options": {"depth": 1, "limit": 3}, "text": "a"}, {"options": {"depth": 1}, "limit": 3, "text": "a"}),
        ({"limit": 1, "options": {"limit": 3}}, {"limit": 1, "options": {"limit": 3}}),  # it is there already
        ({"a": {"limit": 3}, "b": {"limit": 4}}, {"a": {"limit": 3}, "b": {"limit": 4}}),  # which one?
        ({"a": {"text": "x"}}, {"a": {"text": "x"}}),  # not optional
        ({"a": {"other": 1}}, {"a": {"other": 1}}),
    ],
)
def test_an_optional_field_is_lifted_one_level_where_it_is_clear(
    given_: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert mend(SCHEMA, given_, None, Shim(unnest=("options", "limit", "text", "absent"))) == wanted


def test_arguments_encoded_once_too_often_are_read() -> None:
    raw = json.dumps(json.dumps({"text": "a"}))
    assert mend(SCHEMA, None, raw, BOTH) == {"text": "a"}
    assert mend(SCHEMA, None, raw, Shim()) is None
    for unreadable in ("", "{", '"{"', "[1]", '"[1]"', "[" * 100_000):
        assert mend(SCHEMA, None, unreadable, BOTH) is None


@given(
    st.dictionaries(
        st.sampled_from([*SCHEMA["properties"], "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.sampled_from(["[]", "{}", "[1]"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["lines", "limit"]), inner),
            max_leaves=8,
        ),
    )
)
def test_what_was_mended_is_left_alone(arguments: dict[str, Any]) -> None:
    once = mend(SCHEMA, arguments, None, BOTH)
    assert once is not None
    assert mend(SCHEMA, once, None, BOTH) == once
    strings = {name for name, value in arguments.items() if not isinstance(value, str | list | dict)}
    assert {name: once[name] for name in strings} == {name: arguments[name] for name in strings}
