"""Messages: one element of a transcript as a turn, whichever protocol's it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harnessd.defence.line3_repair.transcript.reading import part_of, parts_of, result_of, words
from harnessd.defence.line3_repair.transcript.turns import Kind, Notes, Part, Role, Turn, mended

_ROLES: Mapping[str, Role] = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
    "toolResult": "tool",
}
OWN_ROLES = frozenset({"user", "assistant", "system", "developer", "tool"})
# Items of the Responses protocol that are no messages. Its services pair an `X_call` with an `X_call_output`.
_OUTPUT = "_output"
_ABORTED = frozenset({"error", "aborted", "cancelled", "canceled"})


def turns_of(messages: Sequence[Any], notes: Notes) -> list[Turn]:
    """All turns that can be read; what cannot is left out, with a note."""
    found = (turn_of(place, message, notes) for place, message in enumerate(messages))
    return [turn for turn in found if turn is not None]


def turn_of(place: int, message: Any, notes: Notes) -> Turn | None:
    """One element; None where it cannot be read."""
    if not isinstance(message, Mapping):
        notes.add("not_a_message", place, f"a {type(message).__name__} where a message should be: left out")
        return None
    kind = words(message.get("type"))
    if "role" not in message and kind not in ("", "message"):
        return _item(place, kind, message)
    if "role" not in message and "call_id" in message:
        kind = "function_call_output" if "output" in message else "function_call"
        return replace(_item(place, kind, {**message, "type": kind}), touched=True)
    name = words(message.get("role"))
    role = _ROLES.get(name)
    if role is None:
        notes.add("unknown_role", place, f"role {name[:40]!r} is none that a service knows: left out")
        return None
    if name not in OWN_ROLES:
        notes.add("unknown_role", place, f"role {name!r} is written {role!r} here")
    parts = _parts(role, message)
    aborted = role == "assistant" and _stopped(message)
    return Turn(role, parts, place, message, touched=name not in OWN_ROLES, aborted=aborted)


def _stopped(message: Mapping[str, Any]) -> bool:
    return str(message.get("stopReason", message.get("stop_reason"))) in _ABORTED or bool(
        message.get("isApiErrorMessage")
    )


def _parts(role: Role, message: Mapping[str, Any]) -> tuple[Part, ...]:
    content = message.get("content")
    if role == "tool":
        id_ = message.get("tool_call_id", message.get("toolCallId", message.get("tool_use_id")))
        if id_ is None and isinstance(content, list) and _results_in(content):
            return parts_of(content)
        return (result_of(words(id_), content, message),)
    parts = parts_of(content)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        parts += tuple(_chat_call(call) for call in calls)
    legacy = message.get("function_call")
    if isinstance(legacy, Mapping):
        parts += (mended(part_of({"type": "function", "function": legacy}), wire=None),)
    if not any(part.text for part in parts) and not parts and isinstance(message.get("refusal"), str):
        parts = (Part(Kind.TEXT, text=message["refusal"], touched=True),)
    return parts


def _results_in(content: list[Any]) -> bool:
    return any(part_of(block).kind is Kind.RESULT for block in content)


def _chat_call(call: Any) -> Part:
    if not isinstance(call, Mapping):
        return Part(Kind.OTHER, wire=call, touched=True)
    if call.get("type") in ("function", "custom"):
        return part_of(call) if call["type"] == "function" else _custom(call)
    return mended(part_of({**call, "type": "function"}))


def _custom(call: Mapping[str, Any]) -> Part:
    """A call whose input is words, not JSON."""
    inside = call.get("custom")
    facts: Mapping[str, Any] = inside if isinstance(inside, Mapping) else {}
    return Part(Kind.CALL, id=words(call.get("id")), name=words(facts.get("name")), arguments={}, wire=call)


def _item(place: int, kind: str, message: Mapping[str, Any]) -> Turn:
    """An item without a role: a call, an output, a thought, or one that only its service knows."""
    part = part_of(message)
    if part.kind is Kind.OTHER and kind.endswith("_call" + _OUTPUT):
        part = result_of(words(message.get("call_id")), message.get("output"), message)
    elif part.kind is Kind.OTHER and kind.endswith("_call") and "call_id" in message:
        part = Part(Kind.CALL, id=words(message["call_id"]), name=kind, arguments={}, wire=message)
    role: Role = "tool" if part.kind is Kind.RESULT else "assistant"
    if part.kind in (Kind.TEXT, Kind.MEDIA):
        role = "user"
    return Turn(role, (part,), place, message)
