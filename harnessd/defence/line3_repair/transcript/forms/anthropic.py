"""Anthropic's Messages: which blocks and fields are its own, and how a turn is written in its form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harnessd.defence.line3_repair.transcript.turns import Kind, Media, Notes, Part, Turn, mended

_TEXT = frozenset({"type", "text", "cache_control", "citations"})
_USE = frozenset({"type", "id", "name", "input", "cache_control", "caller"})
_RESULT = frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"})
_MEDIA = frozenset({"type", "source", "title", "context", "citations", "cache_control"})
# kind -> the block types that are this protocol's own, with the fields each may have; None: all.
OWN: Mapping[Kind, Mapping[str, frozenset[str] | None]] = {
    Kind.TEXT: {"text": _TEXT},
    Kind.CALL: {"tool_use": _USE},
    Kind.RESULT: {"tool_result": _RESULT},
    Kind.MEDIA: {"image": frozenset({"type", "source", "cache_control"}), "document": _MEDIA},
    Kind.THOUGHT: {
        "thinking": frozenset({"type", "thinking", "signature"}),
        "redacted_thinking": frozenset({"type", "data"}),
    },
}
_MESSAGE = frozenset({"role", "content"})


def settle(turn: Turn, notes: Notes) -> list[Turn]:
    """The turn with everything marked that is not in the protocol's own form; results stand in the user's messages."""
    parts = tuple(_settled(part, turn, notes) for part in turn.parts)
    role = "user" if turn.role == "tool" else turn.role
    touched = turn.touched or role != turn.role
    if isinstance(turn.wire, Mapping) and (extra := set(turn.wire) - _MESSAGE):
        touched = True
        if turn.role in ("user", "assistant"):
            notes.add("unknown_field", turn, f"fields the service does not take: {', '.join(sorted(map(str, extra)))}")
    if role != turn.role:
        notes.add("foreign_form", turn, "a tool message of another protocol becomes a tool_result block")
    same = all(a is b for a, b in zip(parts, turn.parts, strict=True))
    return [Turn(role, parts, turn.place, turn.wire, touched or not same, turn.aborted, turn.foreign)]


def _settled(part: Part, turn: Turn, notes: Notes) -> Part:
    if part.kind in (Kind.SERVER_CALL, Kind.SERVER_RESULT, Kind.OTHER):
        return part
    if isinstance(part.wire, str):
        return part
    kind = str(part.wire.get("type")) if isinstance(part.wire, Mapping) else ""
    own = OWN[part.kind]
    if kind not in own:
        if part.kind is not Kind.THOUGHT and turn.role != "tool":
            notes.add("foreign_form", turn, f"a {part.kind} in another protocol's form ({kind or 'none'}) is rewritten")
        return mended(part)
    fields = own[kind]
    extra = set(part.wire) - fields if fields is not None else set()
    if part.kind is Kind.CALL and not isinstance(part.wire.get("input"), Mapping):
        return mended(part)
    if extra:
        notes.add("unknown_field", turn, f"fields a {kind} block does not have: {', '.join(sorted(map(str, extra)))}")
        return mended(part)
    if part.inner is None:
        return part
    inner = tuple(_settled(one, turn, notes) for one in part.inner)
    return part if all(a is b for a, b in zip(inner, part.inner, strict=True)) else mended(part, inner=inner)


def write(turns: list[Turn]) -> list[dict[str, Any]]:
    """The messages."""
    return [_message(turn) for turn in turns]


def _message(turn: Turn) -> dict[str, Any]:
    if turn.intact and isinstance(turn.wire, dict):
        return turn.wire
    return {"role": turn.role, "content": [block_of(part) for part in turn.parts]}


def block_of(part: Part) -> dict[str, Any]:
    """One block."""
    if not part.touched and isinstance(part.wire, dict):
        return part.wire
    base = _kept(part)
    match part.kind:
        case Kind.CALL:
            return base | {"type": "tool_use", "id": part.id, "name": part.name, "input": part.arguments or {}}
        case Kind.RESULT:
            return base | _result(part)
        case Kind.MEDIA if part.media is not None:
            return base | _media(part.media)
        case Kind.TEXT | Kind.OTHER | Kind.MEDIA:
            return base | {"type": "text", "text": part.text}
        case Kind.THOUGHT:
            return base
        case _:
            return dict(part.wire)


def _kept(part: Part) -> dict[str, Any]:
    """What a rewritten block keeps of its own fields."""
    if not isinstance(part.wire, Mapping):
        return {}
    fields = OWN.get(part.kind, {}).get(str(part.wire.get("type")))
    return {name: value for name, value in part.wire.items() if name in fields and value is not None} if fields else {}


def _result(part: Part) -> dict[str, Any]:
    content: Any = part.text if part.inner is None else [block_of(one) for one in part.inner]
    flag = {"is_error": True} if part.is_error else {}
    if not part.is_error and isinstance(part.wire, Mapping) and part.wire.get("is_error") is not None:
        flag = {"is_error": False}
    return {"type": "tool_result", "tool_use_id": part.id, "content": content} | flag


def _media(media: Media) -> dict[str, Any]:
    if media.url:
        return {"type": media.sort, "source": {"type": "url", "url": media.url}}
    return {
        "type": media.sort,
        "source": {"type": "base64", "media_type": media.media_type, "data": media.data},
    }
