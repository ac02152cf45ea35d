"""Arguments: each misfit is one sentence that names the place, the wish and what came."""

from __future__ import annotations

import time
from typing import Any

import pytest

from harnessd.domain.messages import ToolSpec
from harnessd.tools.arguments import cleaned, schema_problem, validate

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "limit": {"type": ["integer", "null"], "minimum": 1},
        "items": {"type": "array", "items": {"type": "object", "properties": {"state": {"enum": ["todo", "done"]}}}},
        "nested": {"type": "object", "properties": {"deep": {"type": "boolean"}}, "required": ["deep"]},
    },
    "required": ["path"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"path": 42}, "path: expected string, got number 42"),  # R2.3
        ({"path": None}, "path: expected string, got null"),
        ({"path": "x", "limit": True}, "limit: expected integer or null, got boolean true"),
        ({"path": "x", "limit": 0}, "limit: 0 is less than the minimum of 1"),
        ({"path": "x", "items": "[]"}, 'items: expected array, got string "[]"'),
        ({"path": "x", "items": [{"state": "x"}]}, 'items[0].state: expected one of ["todo", "done"], got string "x"'),
        ({"path": "x", "nested": {}}, "nested.deep: missing"),
        ({}, "path: missing"),
        ({"path": "x", "file": 1}, "arguments: unknown: file"),
        ([], "arguments: expected object, got array []"),
    ],
)
def test_a_misfit_is_told_as_path_wish_and_fact(arguments: Any, sentence: str) -> None:
    assert sentence in validate(ToolSpec("t", "", SCHEMA), arguments)


def test_what_fits_has_no_sentence() -> None:
    assert validate(ToolSpec("t", "", SCHEMA), {"path": "x", "limit": None, "items": []}) == []


def test_values_are_shown_short_and_problems_are_bounded() -> None:
    spec = ToolSpec("t", "", {"type": "array", "items": {"type": "string"}})
    sentences = validate(spec, [list(range(1000))] * 50)
    assert len(sentences) == 10
    assert all(len(sentence) < 200 for sentence in sentences)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:1/x.json", "file:///etc/passwd", "https://example.invalid/x"])
def test_remote_references_are_refused_not_fetched(reference: str) -> None:
    problem = schema_problem({"properties": {"x": {"$ref": reference}}})
    assert problem is not None
    assert "not fetched" in problem
    assert "\n" not in problem


def test_local_references_work_and_a_broken_schema_is_told() -> None:
    schema = {"$defs": {"s": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/s"}}}
    assert schema_problem(schema) is None
    assert validate(ToolSpec("t", "", schema), {"x": 1}) == ["x: expected string, got number 1"]
    assert schema_problem({"type": "strin"}) is not None


def test_a_catastrophic_pattern_in_a_strangers_schema_is_bounded() -> None:
    spec = ToolSpec("t", "", {"properties": {"x": {"type": "string", "pattern": r"^(?=a)(a+)+$"}}})
    started = time.monotonic()
    validate(spec, {"x": "a" * 5000 + "!"})
    assert time.monotonic() - started < 1


def test_lone_surrogates_become_replacement_characters_everywhere() -> None:  # j11
    assert cleaned({"a\ud83c": ["ok \ud83c done \ud83c\udf78", 1, None, {"b": "\udf78\0"}]}) == {
        "a\ufffd": ["ok \ufffd done \U0001f378", 1, None, {"b": "\ufffd\0"}]
    }
