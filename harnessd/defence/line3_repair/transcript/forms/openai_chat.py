"""OpenAI's Chat Completions: which fields and parts are its own, and how a turn is written in its form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harnessd.defence.line3_repair.transcript.reading import compact, is_object
from harnessd.defence.line3_repair.transcript.turns import Kind, Media, Notes, Part, Role, Turn, mended

_MESSAGE = frozenset(
    {
        *("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "audio", "annotations"),
        *("reasoning_content", "prefix"),
    }
)
_OWN: Mapping[Kind, tuple[str, ...]] = {
    Kind.TEXT: ("text", "refusal"),
    Kind.MEDIA: ("image_url", "file"),
    Kind.CALL: ("function", "custom"),
}
_USERS_ALONE = ("input_audio",)


def settle(turn: Turn, notes: Notes) -> list[Turn]:
    """The turn with everything marked that is not in the protocol's own form; each result is a message of its own."""
    if isinstance(turn.wire, Mapping) and (extra := set(turn.wire) - _MESSAGE):
        notes.add("unknown_field", turn, f"fields the service does not take: {', '.join(sorted(map(str, extra)))}")
        turn = replace(turn, touched=True)
    if isinstance(turn.wire, Mapping) and _no_calls(turn.wire.get("tool_calls")):
        notes.add("empty_calls", turn, "tool_calls that are no list of calls are left out")
        turn = replace(turn, touched=True)
    results = [part for part in turn.parts if part.kind is Kind.RESULT]
    if turn.role == "tool" and len(turn.parts) == 1:
        return [_tool(turn, notes)]
    if not results:
        return [_spoken(turn, notes)]
    notes.add("foreign_form", turn, "results inside a message become tool messages")
    tools = [
        Turn("tool", (_settled_result(mended(part), turn, notes),), turn.place, None, touched=True) for part in results
    ]
    rest = tuple(part for part in turn.parts if part.kind is not Kind.RESULT)
    role: Role = "user" if turn.role == "tool" else turn.role
    if not rest:
        return tools
    spoken = _spoken(replace(turn, role=role, parts=rest, touched=True), notes)
    return [*tools, spoken] if role == "user" else [spoken, *tools]


def _no_calls(calls: Any) -> bool:
    return calls is not None and not (isinstance(calls, list) and calls)


def _tool(turn: Turn, notes: Notes) -> Turn:
    part = turn.parts[0]
    own = isinstance(turn.wire, Mapping) and turn.wire.get("role") == "tool"
    own = own and isinstance(turn.wire.get("tool_call_id"), str)
    settled = _settled_result(part, turn, notes)
    touched = turn.touched or not own or settled is not part
    return replace(turn, parts=(settled,), touched=touched)


def _settled_result(part: Part, turn: Turn, notes: Notes) -> Part:
    """Tool messages take texts alone: pictures follow them in a message of the user's."""
    if part.inner is None:
        return part
    media = tuple(_settled(one, turn, notes) for one in part.inner if one.kind is Kind.MEDIA)
    texts = tuple(one for one in part.inner if one.kind is Kind.TEXT)
    foreign = [one for one in texts if isinstance(one.wire, Mapping) and one.wire.get("type") != "text"]
    if len(texts) == len(part.inner) and not foreign:
        return part
    if media:
        notes.add("media_in_result", turn, "a tool message takes text alone: what is no text follows it")
        words = part.text or "(see the picture below)"
        return mended(part, text=words, inner=None, carried=media)
    notes.add("result_not_text", turn, "a tool message takes text alone: its other contents are left out")
    return mended(part, text=part.text or compact([one.wire for one in part.inner]), inner=None)


def _spoken(turn: Turn, notes: Notes) -> Turn:
    parts = tuple(_settled(part, turn, notes) for part in turn.parts)
    same = all(a is b for a, b in zip(parts, turn.parts, strict=True))
    return replace(turn, parts=parts, touched=turn.touched or not same)


def _settled(part: Part, turn: Turn, notes: Notes) -> Part:
    if isinstance(part.wire, str) or part.kind not in _OWN:
        return part
    wire: Mapping[str, Any] = part.wire if isinstance(part.wire, Mapping) else {}
    kind = str(wire.get("type"))
    wrong_side = part.kind is Kind.MEDIA and turn.role != "user"
    if kind not in _OWN[part.kind] or wrong_side or (kind == "refusal" and turn.role != "assistant"):
        if part.wire is not None:
            notes.add("foreign_form", turn, f"a {part.kind} in another protocol's form ({kind}) is rewritten")
        return mended(part)
    return mended(part) if part.kind is Kind.CALL and kind == "function" and not _whole(wire) else part


def _whole(call: Mapping[str, Any]) -> bool:
    """The call is written as it should be, with arguments that are a JSON object in a text."""
    function = call.get("function")
    return isinstance(function, Mapping) and is_object(function.get("arguments")) and isinstance(call.get("id"), str)


def write(turns: list[Turn]) -> list[dict[str, Any]]:
    """The messages."""
    return [message_of(turn) for turn in turns]


def message_of(turn: Turn) -> dict[str, Any]:
    """One message."""
    wire = turn.wire
    if turn.intact and isinstance(wire, dict):
        return wire
    base = {k: v for k, v in wire.items() if k in _MESSAGE and k != "tool_calls"} if isinstance(wire, Mapping) else {}
    if turn.role == "tool":
        part = turn.parts[0]
        content: Any = part.text if part.inner is None else [_part(one) for one in part.inner]
        base.pop("name", None)
        return {**base, "role": "tool", "tool_call_id": part.id, "content": content}
    role = base.get("role") if base.get("role") in ("system", "developer") and turn.role == "system" else turn.role
    message: dict[str, Any] = {**base, "role": role, "content": _content(turn)}
    if turn.calls:
        message["tool_calls"] = [call_of(part) for part in turn.calls]
    return message


def _content(turn: Turn) -> Any:
    shown = [part for part in turn.parts if part.kind in (Kind.TEXT, Kind.MEDIA, Kind.OTHER)]
    if not shown:
        return None if turn.role == "assistant" else ""
    listed = isinstance(turn.wire, Mapping) and isinstance(turn.wire.get("content"), list)
    if all(part.kind is Kind.TEXT for part in shown) and (not listed or turn.role != "user"):
        return "\n\n".join(part.text for part in shown)
    return [_part(part) for part in shown]


def _part(part: Part) -> dict[str, Any]:
    if not part.touched and isinstance(part.wire, dict):
        return part.wire
    if part.kind is Kind.MEDIA and part.media is not None:
        return _media(part.media)
    return {"type": "text", "text": part.text}


def _media(media: Media) -> dict[str, Any]:
    link = media.url or f"data:{media.media_type or 'image/png'};base64,{media.data}"
    if media.sort == "image":
        return {"type": "image_url", "image_url": {"url": link}}
    return {"type": "file", "file": {"filename": "document.pdf", "file_data": link}}


def call_of(part: Part) -> dict[str, Any]:
    """One call."""
    if not part.touched and isinstance(part.wire, dict):
        return part.wire
    arguments = part.text if is_object(part.text) and not part.invalid else compact(part.arguments or {})
    return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": arguments}}
