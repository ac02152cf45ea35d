"""Carrying: messages of a session as turns of its receiver, and back; what was not changed is the same message."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harnessd.defence.line3_repair.transcript import FORMS, Receiver
from harnessd.defence.line3_repair.transcript.forms.anthropic import block_of
from harnessd.defence.line3_repair.transcript.forms.openai_chat import message_of
from harnessd.defence.line3_repair.transcript.forms.openai_responses import item_of
from harnessd.defence.line3_repair.transcript.messages import turn_of
from harnessd.defence.line3_repair.transcript.turns import Kind, Notes, Part, Turn, mended
from harnessd.domain.effect import well_formed
from harnessd.domain.messages import Block, Message, OpaqueBlock, TextBlock, ToolResultBlock, ToolUseBlock

_BAD = re.compile("[\x00\ud800-\udfff]")
_PLAIN_CHAT = frozenset({"role", "content", "tool_calls"})


@dataclass(frozen=True, slots=True)
class Carried:
    """One message and the turns it became, by which it is told whether it was changed."""

    message: Message
    turns: tuple[Turn, ...]


def carried(message: Message, place: int, to: Receiver, model: str, notes: Notes) -> Carried:
    """The turns of a message for this receiver."""
    if message.role == "user":
        return Carried(message, _of_user(message, place, to, notes))
    return Carried(message, tuple(_of_model(message, place, to, model, notes)))


def _of_user(message: Message, place: int, to: Receiver, notes: Notes) -> tuple[Turn, ...]:
    parts = _parts(message.blocks, place, notes)
    if to.protocol == "anthropic":
        return (Turn("user", parts, place),)
    results = tuple(Turn("tool", (part,), place) for part in parts if part.kind is Kind.RESULT)
    words = tuple(part for part in parts if part.kind is not Kind.RESULT)
    return (*results, Turn("user", words, place)) if words else results


def _parts(blocks: Sequence[Block], place: int, notes: Notes) -> tuple[Part, ...]:
    """What is said, asked and answered; no service is sent texts without words, or blocks of another's making."""
    told = (block for block in blocks if not isinstance(block, OpaqueBlock))
    return tuple(
        _part(block, place, notes) for block in told if not (isinstance(block, TextBlock) and not block.text.strip())
    )


def _part(block: Block, place: int, notes: Notes) -> Part:
    match block:
        case TextBlock(text):
            clean = _clean(text, place, notes)
            return Part(Kind.TEXT, text=clean, wire=block, touched=clean is not text)
        case ToolResultBlock(id_, text, is_error):
            clean = _clean(text, place, notes)
            return Part(Kind.RESULT, text=clean, id=id_, is_error=is_error, wire=block, touched=clean is not text)
        case ToolUseBlock(id_, name, arguments, raw):
            return Part(
                Kind.CALL, text=raw or "", id=id_, name=name, arguments=arguments, invalid=arguments is None, wire=block
            )
        case OpaqueBlock(_, wire):
            return Part(Kind.KEPT, wire=wire)


def _clean(text: str, place: int, notes: Notes) -> str:
    if "\x00" not in text and (text.isascii() or _BAD.search(text) is None):
        return text
    notes.add("bad_characters", place, "NUL bytes or half characters are taken out")
    return well_formed(text).replace("\x00", "")


def _of_model(message: Message, place: int, to: Receiver, model: str, notes: Notes) -> list[Turn]:
    wire = message.wire
    if wire is None or wire.get("protocol") != to.protocol or to.plain:
        return [Turn("assistant", _parts(message.blocks, place, notes), place, touched=wire is not None and to.plain)]
    own = wire.get("model") == model or not model
    elements = _elements(wire.get("content"), to, own=own)
    found = [turn for one in elements if (turn := turn_of(place, one, notes)) is not None]
    return [replace(turn, role="assistant", parts=_kept(turn, own=own), own=own, foreign=not own) for turn in found]


def _elements(content: Any, to: Receiver, *, own: bool) -> list[Any]:
    """The messages or items of the protocol behind one of ours."""
    if to.protocol == "anthropic":
        return [{"role": "assistant", "content": content}]
    if to.protocol == "openai-responses":
        return content if isinstance(content, list) else []
    if isinstance(content, Mapping) and not own:
        # Thoughts and other extra fields are the sending server's own.
        return [{name: value for name, value in content.items() if name in _PLAIN_CHAT}]
    return [content]


def _kept(turn: Turn, *, own: bool) -> tuple[Part, ...]:
    """Sorts of blocks that we do not know are carried back to the model that made them, and to nobody else."""
    if not own or all(part.kind is not Kind.OTHER for part in turn.parts):
        return turn.parts
    return tuple(replace(part, kind=Kind.KEPT) if part.kind is Kind.OTHER else part for part in turn.parts)


def messages_of(turns: Sequence[Turn], before: Sequence[Carried], to: Receiver, model: str) -> tuple[Message, ...]:
    """The turns as messages again: neighbours of the user's side are one, and so is what was one answer."""
    out: list[Message] = []
    group: list[Turn] = []
    for turn in turns:
        if group and not _together(group[-1], turn):
            out.append(_message(group, before, to, model))
            group = []
        group.append(turn)
    if group:
        out.append(_message(group, before, to, model))
    return tuple(out)


def _together(one: Turn, other: Turn) -> bool:
    if one.role == "assistant" or other.role == "assistant":
        return one.role == other.role and one.place == other.place
    return True


def _message(group: list[Turn], before: Sequence[Carried], to: Receiver, model: str) -> Message:
    first = group[0]
    source = before[first.place] if first.place is not None else None
    if source is not None and len(group) == len(source.turns) and _same(group, source.turns):
        return source.message
    blocks = tuple(_block(part, to) for turn in group for part in turn.parts)
    if first.role != "assistant":
        return Message("user", blocks)
    return Message("assistant", blocks, _wire(group, to, model))


def _same(group: Sequence[Turn], source: Sequence[Turn]) -> bool:
    return all(
        one.intact and len(one.parts) == len(other.parts) and all(map(_is, one.parts, other.parts))
        for one, other in zip(group, source, strict=True)
    )


def _is(one: Part, other: Part) -> bool:
    return one is other


def _block(part: Part, to: Receiver) -> Block:
    if not part.touched and isinstance(part.wire, (TextBlock, ToolResultBlock, ToolUseBlock)):
        return part.wire
    match part.kind:
        case Kind.CALL:
            return ToolUseBlock(part.id, part.name, part.arguments)
        case Kind.RESULT:
            return ToolResultBlock(part.id, part.text, part.is_error)
        case Kind.TEXT:
            return TextBlock(part.text)
        case _:
            return OpaqueBlock(to.protocol, part.wire if isinstance(part.wire, Mapping) else {"text": part.text})


def _wire(group: list[Turn], to: Receiver, model: str) -> Mapping[str, Any] | None:
    """The answer in the receiver's own form, where it came in it; else its blocks are enough."""
    if not any(isinstance(turn.wire, Mapping) for turn in group):
        return None
    content: Any
    if to.protocol == "anthropic":
        content = [block_of(part) for turn in group for part in turn.parts]
    elif to.protocol == "openai-responses":
        content = [item_of(turn) for turn in group]
    else:
        content = message_of(group[0])
    return {"protocol": to.protocol, "model": model, "content": content}


def as_sent(messages: Sequence[Message], to: Receiver, model: str) -> list[Any]:
    """The messages as they leave, near enough to tell whether two views are the same bytes to a service."""
    form, notes = FORMS[to.protocol], Notes()
    sent: list[Any] = []
    for place, message in enumerate(messages):
        for turn in carried(message, place, to, model, notes).turns:
            if isinstance(turn.wire, Mapping):
                sent += form.write([turn])
                continue
            bare = tuple(mended(part, wire=None) for part in turn.parts)
            sent += form.write(form.settle(replace(turn, parts=bare, touched=True), notes))
    return sent
