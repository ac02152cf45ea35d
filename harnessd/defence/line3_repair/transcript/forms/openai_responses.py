"""OpenAI's Responses: items instead of messages; which are its own, and how a turn is written as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harnessd.defence.line3_repair.transcript.reading import compact, is_object
from harnessd.defence.line3_repair.transcript.turns import Kind, Media, Notes, Part, Role, Turn, mended

_FIELDS: Mapping[str, frozenset[str]] = {
    "message": frozenset({"type", "role", "content", "id", "status", "phase"}),
    "function_call": frozenset({"type", "id", "call_id", "name", "arguments", "status"}),
    "function_call_output": frozenset({"type", "id", "call_id", "output", "status"}),
    "reasoning": frozenset({"type", "id", "summary", "content", "encrypted_content", "status"}),
}
# Items that its services make and take back themselves, with the outputs that some of them want.
_SERVED = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "item_reference"),
        *("computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output", "compaction"),
        *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output", "tool_search_call"),
        *("custom_tool_call", "custom_tool_call_output", "mcp_call", "mcp_list_tools", "mcp_approval_request"),
        *("mcp_approval_response", "tool_search_output"),
    }
)
_USERS = ("input_text", "input_image", "input_file")
_MODELS = ("output_text", "refusal")


def settle(turn: Turn, notes: Notes) -> list[Turn]:
    """The turn as items in the protocol's own form: each call, output and thought is one of its own."""
    wire: Mapping[str, Any] = turn.wire if isinstance(turn.wire, Mapping) else {}
    kind = str(wire.get("type", "message"))
    if "role" not in wire and kind != "message":
        return [_item(turn, kind, notes)]
    if all(part.kind in (Kind.TEXT, Kind.MEDIA, Kind.OTHER) for part in turn.parts) and turn.role != "tool":
        return [_message(turn, notes)]
    notes.add("foreign_form", turn, "calls, results and thoughts inside a message become items of their own")
    return _split(turn, notes)


def _split(turn: Turn, notes: Notes) -> list[Turn]:
    items: list[Turn] = []
    spoken: list[Part] = []
    role: Role = "user" if turn.role == "tool" else turn.role

    def flush() -> None:
        if spoken:
            items.append(_message(replace(turn, role=role, parts=tuple(spoken), touched=True), notes))
            spoken.clear()

    for part in turn.parts:
        if part.kind in (Kind.TEXT, Kind.MEDIA, Kind.OTHER):
            spoken.append(part)
            continue
        flush()
        own: Role = "tool" if part.kind is Kind.RESULT else "assistant"
        items.append(replace(turn, role=own, parts=(mended(part),), wire=None, touched=True))
    flush()
    return items


def _item(turn: Turn, kind: str, notes: Notes) -> Turn:
    part, wire = turn.parts[0], turn.wire
    fields = _FIELDS.get(kind)
    if fields is None:
        if kind in _SERVED:
            return turn
        if part.kind is Kind.OTHER:
            notes.add("unknown_block", turn, f"an item of type {kind[:40]!r} is none that a service knows: left out")
            return replace(turn, parts=(), touched=True)
        notes.add("foreign_form", turn, f"an item of type {kind[:40]!r} is rewritten")
        return replace(turn, parts=(mended(part),), touched=True)
    touched = False
    if extra := set(wire) - fields:
        notes.add("unknown_field", turn, f"fields a {kind} does not have: {', '.join(sorted(map(str, extra)))}")
        touched = True
    if kind == "function_call":
        touched = touched or not is_object(wire.get("arguments")) or not isinstance(wire.get("call_id"), str)
        touched = touched or _odd_id(wire, turn, notes)
    return replace(turn, parts=(mended(part),), touched=True) if touched else turn


def _odd_id(wire: Mapping[str, Any], turn: Turn, notes: Notes) -> bool:
    if "id" not in wire or (isinstance(wire["id"], str) and wire["id"].startswith("fc") and len(wire["id"]) <= 64):
        return False
    notes.add("bad_id", turn, "the item's own id is none of the service's and is left out")
    return True


def _message(turn: Turn, notes: Notes) -> Turn:
    named = turn.wire.get("id") if isinstance(turn.wire, Mapping) else None
    if named is not None and not str(named).startswith("msg"):
        notes.add("bad_id", turn, "the message's own id is none of the service's and is left out")
        bare = {name: value for name, value in turn.wire.items() if name != "id"}
        turn = replace(turn, wire=bare, touched=True)
    parts = tuple(_settled(part, turn, notes) for part in turn.parts)
    touched = turn.touched or any(a is not b for a, b in zip(parts, turn.parts, strict=True))
    touched = touched or (isinstance(turn.wire, Mapping) and turn.wire.get("type", "message") != "message")
    if isinstance(turn.wire, Mapping) and (extra := set(turn.wire) - _FIELDS["message"]):
        if not turn.touched:
            notes.add("unknown_field", turn, f"fields a message does not have: {', '.join(sorted(map(str, extra)))}")
        touched = True
    return replace(turn, parts=parts, touched=touched)


def _settled(part: Part, turn: Turn, notes: Notes) -> Part:
    if isinstance(part.wire, str) or part.kind is Kind.OTHER:
        return part
    kind = str(part.wire.get("type")) if isinstance(part.wire, Mapping) else ""
    if kind in (_MODELS if turn.role == "assistant" else _USERS):
        return part
    if part.wire is not None:
        notes.add("foreign_form", turn, f"a {part.kind} in another form ({kind}) is rewritten")
    return mended(part)


def write(turns: list[Turn]) -> list[dict[str, Any]]:
    """The items."""
    return [item_of(turn) for turn in turns]


def item_of(turn: Turn) -> dict[str, Any]:
    """One item."""
    wire = turn.wire
    if turn.intact and isinstance(wire, dict):
        return wire
    part = turn.parts[0]
    if part.kind is Kind.CALL:
        return _call(part, wire)
    if part.kind is Kind.RESULT:
        return _output(part, part.wire if wire is None else wire)
    if part.kind is Kind.THOUGHT:
        return {name: value for name, value in dict(wire).items() if name in _FIELDS["reasoning"]}
    base = _kept(wire, "message")
    role = base.get("role") if turn.role == "system" and base.get("role") in ("system", "developer") else turn.role
    return {"type": "message", **base, "role": role, "content": _content(turn)}


def _kept(wire: Any, kind: str) -> dict[str, Any]:
    """What a rewritten item keeps of its own fields."""
    if not isinstance(wire, Mapping) or wire.get("type", "message") != kind:
        return {}
    kept = {name: value for name, value in wire.items() if name in _FIELDS[kind]}
    if kind == "function_call" and not str(kept.get("id", "fc")).startswith("fc"):
        del kept["id"]
    return kept


def _call(part: Part, wire: Any) -> dict[str, Any]:
    kind = str(wire.get("type")) if isinstance(wire, Mapping) else ""
    if kind.endswith("_call") and kind != "function_call":
        return {**wire, "call_id": part.id}
    base = _kept(wire, "function_call")
    arguments = part.text if is_object(part.text) and not part.invalid else compact(part.arguments or {})
    return {**base, "type": "function_call", "call_id": part.id, "name": part.name, "arguments": arguments}


def _output(part: Part, wire: Any) -> dict[str, Any]:
    kind = str(wire.get("type")) if isinstance(wire, Mapping) else ""
    output: Any = part.text if part.inner is None else [_piece(one, "user") for one in part.inner]
    if kind.endswith("_call_output") and kind != "function_call_output":
        return {**wire, "call_id": part.id, "output": output}
    base = _kept(wire, "function_call_output")
    return {**base, "type": "function_call_output", "call_id": part.id, "output": output}


def _content(turn: Turn) -> Any:
    if isinstance(turn.wire, Mapping) and isinstance(turn.wire.get("content"), str):
        return "\n\n".join(part.text for part in turn.parts)
    return [_piece(part, turn.role) for part in turn.parts]


def _piece(part: Part, role: Role) -> dict[str, Any]:
    if not part.touched and isinstance(part.wire, dict):
        return part.wire
    if part.kind is Kind.MEDIA and part.media is not None:
        return _media(part.media)
    return {"type": "output_text" if role == "assistant" else "input_text", "text": part.text}


def _media(media: Media) -> dict[str, Any]:
    link = media.url or f"data:{media.media_type or 'image/png'};base64,{media.data}"
    if media.sort == "image":
        return {"type": "input_image", "image_url": link}
    return {"type": "input_file", "filename": "document.pdf", "file_data": link}
