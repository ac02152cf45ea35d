"""Rows of a file: the task, its acts and its decisions as values, each field of the sort that the store keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.record import StoredDecision
from harnessd.domain.task import Counters

_EFFECT = re.compile(r"e[1-9][0-9]{0,8}(-undo)?")
_TASK = re.compile(r"[0-9a-z_.-]{1,40}")
_KINDS = frozenset({"tool", "model", "probe", "undo"})
_KEY_MAX = 200
_SYSTEM_MAX = 1024 * 1024
_DECISION: Mapping[str, type] = {
    "do": str,
    "remedy": dict,
    "error_class": str,
    "rule": dict,
    "evidence": dict,
    "alternatives": list,
    "tried": list,
}
_RULE: Mapping[str, type] = {"kind": str, "name": str, "rule": str, "file": str, "line": int}
# What a task has used goes on in the new one; where its clocks and its calls stood does not.
_KEPT_COUNTS = ("turns", "tool_calls", "tokens", "checkpoints")
_KEPT_AMOUNTS = ("cost_usd", "working_s", "wall_s")
_COUNT_MAX = 2**53


class Odd(Exception):  # noqa: N818 - what is said of a line, in words
    """A row cannot be used."""


def word(value: Any) -> str:
    """A value of the file in a sentence."""
    return repr(value)[:60]


def text(row: Mapping[str, Any], name: str) -> str:
    """A field that is a text. Raises Odd."""
    value = row.get(name)
    if not isinstance(value, str):
        raise Odd(f"{name} is no text")
    return value


def number(row: Mapping[str, Any], name: str) -> float:
    """A field that is a finite number of zero or more. Raises Odd."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _COUNT_MAX:
        raise Odd(f"{name} is no number")
    return float(value)


def task_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The task's line with the fields that are used. Raises Odd."""
    pointer, system = row.get("pointer"), row.get("system")
    for name in ("draft", "counters"):
        if not isinstance(row.get(name), dict):
            raise Odd(f"{name} is no object")
    if pointer is not None and not isinstance(pointer, str):
        raise Odd("the pointer is no id of a node")
    if system is not None and (not isinstance(system, str) or len(system) > _SYSTEM_MAX):
        raise Odd("the system prompt cannot be used")
    for name in ("task", *(("keys_of",) if row.get("keys_of") is not None else ())):
        if not _TASK.fullmatch(text(row, name)):
            raise Odd(f"{word(row[name])} is no id of a task")
    number(row, "nodes")
    text(row, "chain")
    counters_from(row["counters"], 0, 0)
    return row


def counters_from(stored: Mapping[str, Any], nodes: int, effects: int) -> Counters:
    """What was used, for a task that goes on behind these nodes and effects; ladders and loops begin anew."""
    kept: dict[str, Any] = {name: int(number({name: stored.get(name, 0)}, name)) for name in _KEPT_COUNTS}
    kept |= {name: number({name: stored.get(name, 0.0)}, name) for name in _KEPT_AMOUNTS}
    warned, calls = stored.get("warned", []), stored.get("calls_of", {})
    if not isinstance(warned, list) or not all(isinstance(mark, str) for mark in warned):
        raise Odd("warned is no list of texts")
    if not isinstance(calls, dict):
        raise Odd("calls_of is no object")
    return Counters(
        **kept,
        nodes=nodes,
        effects=effects,
        tallies_from=nodes,
        loop_from=nodes,
        warned=tuple(warned),
        calls_of={name: int(number(calls, name)) for name in calls},
    )


def effect_from(row: Mapping[str, Any]) -> Effect:
    """A row of the journal. Raises Odd."""
    id_, kind = text(row, "effect"), text(row, "kind")
    if not _EFFECT.fullmatch(id_):
        raise Odd(f"{word(id_)} is no id of an effect")
    if kind not in _KINDS:
        raise Odd(f"effect {id_} is of the kind {word(kind)}, which is none")
    try:
        class_, state = EffectClass(text(row, "class")), EffectState(text(row, "state"))
    except ValueError as wrong:
        raise Odd(f"effect {id_}: {wrong}") from None
    key, attempt = row.get("key"), row.get("attempt")
    if key is not None and (not isinstance(key, str) or not 0 < len(key) <= _KEY_MAX):
        raise Odd(f"the key of effect {id_} cannot be used")
    if isinstance(attempt, bool) or not isinstance(attempt, int) or not 0 < attempt < _COUNT_MAX:
        raise Odd(f"the attempt of effect {id_} is no number")
    for name in ("arguments", "result"):
        if row.get(name) is not None and not isinstance(row[name], dict):
            raise Odd(f"the {name} of effect {id_} are no object")
    return Effect(
        id=id_,
        kind=kind,
        node=text(row, "node"),
        call_id=text(row, "call"),
        name=text(row, "name"),
        effect_class=class_,
        state=state,
        key=key,
        arguments=row.get("arguments"),
        result=row.get("result"),
        attempt=attempt,
        at=number(row, "at"),
    )


def decision_from(row: Mapping[str, Any]) -> StoredDecision:
    """A decision. Raises Odd."""
    for name, sort in _DECISION.items():
        if not isinstance(row.get(name), sort):
            raise Odd(f"{name} of a decision is of another sort")
    for name, sort in _RULE.items():
        if not isinstance(row["rule"].get(name), sort):
            raise Odd(f"{name} of a decision's rule is of another sort")
    node, call = row.get("node"), row.get("call")
    if not isinstance(node, str | None) or not isinstance(call, str | None):
        raise Odd("a decision stands at no node")
    return StoredDecision(number(row, "at"), "", node, call, {name: row[name] for name in _DECISION})


def highest(ids: list[str]) -> int:
    """The highest number in ids like `n14`, `e7`, `e7-undo`."""
    return max((int(id_[1:].partition("-")[0]) for id_ in ids), default=0)
