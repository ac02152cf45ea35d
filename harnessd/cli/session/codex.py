"""Codex: the rollout file of a session as items of the Responses protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
_LINES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")


def is_line(row: Row) -> bool:
    """One line of a rollout."""
    return row.get("type") in _LINES and isinstance(row.get("payload"), Mapping)


def items(rows: Sequence[tuple[int, Row]]) -> tuple[list[Any], list[int]]:
    """The items in the order of the file; a compaction stands for what was before, a rolled back turn is gone."""
    found: list[tuple[int, Any]] = []
    for number, row in rows:
        payload = row.get("payload")
        if not isinstance(payload, Mapping):
            if row.get("type") in ("message", "function_call", "function_call_output", "reasoning"):
                found.append((number, dict(row)))  # rollouts of the first versions hold bare items
            continue
        match row.get("type"):
            case "response_item" if payload.get("type") != "ghost_snapshot":
                found.append((number, dict(payload)))
            case "compacted":
                found = _compacted(number, payload)
            case "event_msg" if payload.get("type") == "thread_rolled_back":
                found = _rolled_back(found, payload.get("num_turns"))
            case _:
                pass
    return [item for _, item in found], [number for number, _ in found]


def _compacted(number: int, payload: Row) -> list[tuple[int, Any]]:
    history = payload.get("replacement_history")
    if isinstance(history, list):
        return [(number, item) for item in history]
    words = payload.get("message")
    if not isinstance(words, str) or not words.strip():
        return []
    return [(number, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]})]


def _rolled_back(found: list[tuple[int, Any]], turns: Any) -> list[tuple[int, Any]]:
    starts = [
        place for place, (_, item) in enumerate(found) if isinstance(item, Mapping) and item.get("role") == "user"
    ]
    if not isinstance(turns, int) or turns < 1 or not starts:
        return found
    return found[: starts[max(0, len(starts) - turns)]]
