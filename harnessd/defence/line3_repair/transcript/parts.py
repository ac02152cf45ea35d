"""Parts: what is wrong with a single piece of a message, whatever stands around it."""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harnessd.defence.line3_repair.transcript.reading import is_object
from harnessd.defence.line3_repair.transcript.receiver import Receiver
from harnessd.defence.line3_repair.transcript.turns import Kind, Notes, Part, Role, Turn, mended, with_parts

NO_OUTPUT = "(no output)"
UNKNOWN_TOOL = "unknown_tool"
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]+")
_SIGNATURE_SHORTEST = 40
# Three hyphens or more are a UUID or a name: what other services, and relays, write there.
_STAND_IN = re.compile(r"(?!(?:[^-]*-){3})[a-zA-Z0-9+/=_.:<>\u2026-]+")


def calls_in_answers(turn: Turn, notes: Notes) -> list[Turn]:
    """A call that got into a message of the user's stands in an answer of its own."""
    if turn.role == "assistant" or not turn.calls:
        return [turn]
    notes.add("misplaced_call", turn, f"a call in a message of the {turn.role} is moved into an answer")
    out: list[Turn] = []
    for is_call, group in itertools.groupby(turn.parts, key=lambda part: part.kind is Kind.CALL):
        role: Role = "assistant" if is_call else turn.role
        out.append(replace(turn, role=role, parts=tuple(group), wire=None, touched=True))
    return out


def mend(turn: Turn, receiver: Receiver, notes: Notes) -> Turn:
    """The turn with each part as the receiver takes it; parts that cannot be are left out."""
    parts = [kept for part in turn.parts for kept in _part(part, turn, receiver, notes)]
    turn = with_parts(turn, tuple(parts))
    return _served(turn, notes) if receiver.protocol == "anthropic" else turn


def _part(part: Part, turn: Turn, receiver: Receiver, notes: Notes) -> list[Part]:
    match part.kind:
        case Kind.TEXT:
            return _text(part, turn, receiver, notes)
        case Kind.CALL:
            return [_call(part, turn, receiver, notes)]
        case Kind.RESULT:
            return [_result(part, turn, receiver, notes)]
        case Kind.THOUGHT:
            return _thought(part, turn, receiver, notes)
        case Kind.OTHER:
            return _other(part, turn, receiver, notes)
        case Kind.MEDIA:
            return _media(part, turn, receiver, notes)
        case Kind.KEPT:
            return [part]
        case Kind.SERVER_CALL | Kind.SERVER_RESULT:
            return _served_part(part, turn, receiver, notes)


def _served_part(part: Part, turn: Turn, receiver: Receiver, notes: Notes) -> list[Part]:
    if receiver.protocol == "anthropic" and turn.role == "assistant":
        return [part]
    notes.add("unknown_block", turn, f"a {part.kind} that does not belong here is left out")
    return []


def _text(part: Part, turn: Turn, receiver: Receiver, notes: Notes) -> list[Part]:
    if receiver.protocol != "anthropic" or part.text.strip():
        return [part]
    notes.add("blank_text", turn, "a text without words is left out")
    return []


def _media(part: Part, turn: Turn, receiver: Receiver, notes: Notes) -> list[Part]:
    if turn.role == "user" or (turn.role == "system" and receiver.protocol == "openai-responses"):
        return [part]
    notes.add("media_misplaced", turn, "only the user's messages hold pictures: a note stands in its place")
    return [Part(Kind.TEXT, text="[A picture was left out here.]", touched=True)]


def _call(part: Part, turn: Turn, receiver: Receiver, notes: Notes) -> Part:
    if not part.name.strip():
        notes.add("bad_tool_name", turn, f"a call without a tool's name is named {UNKNOWN_TOOL}")
        part = mended(part, name=UNKNOWN_TOOL)
    elif receiver.name_shape.fullmatch(part.name) is None:
        name = _ILLEGAL.sub("_", part.name)[: receiver.name_length].strip("_") or UNKNOWN_TOOL
        notes.add("bad_tool_name", turn, f"the tool's name {part.name[:60]!r} becomes {name!r}")
        part = mended(part, name=name)
    if part.arguments is None:
        notes.add("bad_arguments", turn, f"the arguments of {part.id or part.name} are not a JSON object")
        part = mended(part, arguments={"invalid_json": part.text})
    elif part.touched and not _had_object(part):
        notes.add("bad_arguments", turn, f"the arguments of {part.id or part.name} are written as a JSON object")
    return part


def _had_object(part: Part) -> bool:
    """The arguments came as they should, and the part is rewritten for another reason."""
    wire: Any = part.wire
    if not isinstance(wire, Mapping):
        return True
    source: Mapping[str, Any] = wire["function"] if isinstance(wire.get("function"), Mapping) else wire
    if "input" in source:
        return isinstance(source["input"], Mapping)
    return is_object(source.get("arguments")) or isinstance(source.get("args"), Mapping)


def _result(part: Part, turn: Turn, receiver: Receiver, notes: Notes) -> Part:
    if _nothing_in(part, receiver):
        notes.add("result_not_text", turn, f"a result without content says {NO_OUTPUT}")
        return mended(part, text=NO_OUTPUT, inner=None)
    if part.touched and part.inner is None and isinstance(part.wire, Mapping) and not _was_text(part.wire):
        notes.add("result_not_text", turn, "a result that is no text is written as text")
    if part.inner is None or receiver.protocol == "openai-chat":
        return part
    return _contents(part, turn, receiver, notes)


def _nothing_in(part: Part, receiver: Receiver) -> bool:
    if part.inner == () and receiver.protocol == "openai-chat":
        return True
    if part.text or part.inner is not None or not isinstance(part.wire, Mapping) or part.carried:
        return False
    # An anthropic result may go without the field; a null is refused.
    if part.wire.get("type") == "tool_result" and "content" not in part.wire and not part.touched:
        return False
    return not any(isinstance(part.wire.get(name), str) for name in ("content", "output", "result"))


def _was_text(wire: Mapping[str, Any]) -> bool:
    return any(isinstance(wire.get(name), str) for name in ("content", "output", "result"))


def _contents(part: Part, turn: Turn, receiver: Receiver, notes: Notes) -> Part:
    """What stands in a result beside its text: words and pictures, and no pictures in a failure."""
    inner: list[Part] = []
    carried: list[Part] = []
    for one in part.inner or ():
        if one.kind is Kind.MEDIA:
            (carried if part.is_error and receiver.protocol == "anthropic" else inner).append(one)
        elif one.kind is Kind.TEXT:
            inner.extend(_text(one, turn, receiver, notes))
        else:
            notes.add("unknown_block", turn, f"a result holds {one.name or one.kind}: it is written as text")
            inner.append(Part(Kind.TEXT, text=one.text or f"[{one.name or one.kind} left out]", touched=True))
    if carried:
        notes.add("media_in_error", turn, "a failed result holds words alone: its pictures follow it")
    same = len(inner) == len(part.inner or ()) and all(a is b for a, b in zip(inner, part.inner or (), strict=True))
    if same:
        return part
    if not inner:
        return mended(part, inner=None, text="(see below)" if carried else NO_OUTPUT, carried=tuple(carried))
    return mended(part, inner=tuple(inner), carried=tuple(carried))


def _other(part: Part, turn: Turn, receiver: Receiver, notes: Notes) -> list[Part]:
    if receiver.protocol == "openai-responses" and isinstance(turn.wire, Mapping) and "role" not in turn.wire:
        return [part]
    if part.text.strip():
        notes.add("unknown_block", turn, f"a block of type {part.name[:40] or 'none'!r} is written as text")
        return [Part(Kind.TEXT, text=part.text, touched=True)]
    notes.add("unknown_block", turn, f"a block of type {part.name[:40] or 'none'!r} is left out")
    return []


def _thought(part: Part, turn: Turn, receiver: Receiver, notes: Notes) -> list[Part]:
    why = _not_its_own(part, turn, receiver)
    if not why:
        return [part]
    notes.add("thinking_dropped", turn, f"{why}: left out")
    return []


def _not_its_own(part: Part, turn: Turn, receiver: Receiver) -> str:
    """Why a thought cannot be sent; empty where it can."""
    wire = part.wire if isinstance(part.wire, Mapping) else {}
    if turn.role != "assistant":
        return "a thought outside an answer"
    if turn.foreign or receiver.thoughtless:
        return "a thought of another model" if turn.foreign else "a thought that the receiver does not take back"
    if turn.own and receiver.protocol == "anthropic":
        return ""  # as it signed it
    if receiver.protocol == "anthropic":
        return _unsigned(wire)
    if receiver.protocol == "openai-responses" and wire.get("type") == "reasoning":
        sealed = wire.get("encrypted_content")
        if sealed is None and receiver.stored:
            return ""
        return "" if isinstance(sealed, str) and sealed else "a thought without its sealed content, which nobody keeps"
    return "a thought in another service's form"


def _unsigned(wire: Mapping[str, Any]) -> str:
    if wire.get("type") == "redacted_thinking":
        return "" if isinstance(wire.get("data"), str) and wire["data"] else "a sealed thought without its content"
    if wire.get("type") != "thinking":
        return "a thought in another service's form"
    if not isinstance(wire.get("thinking"), str) or not wire["thinking"]:
        return "a thought without words"
    signature = wire.get("signature")
    if not isinstance(signature, str) or not signature:
        return "a thought without a signature"
    return "" if _could_be_signed_here(signature) else "a thought whose signature is none of this service's"


def _could_be_signed_here(signature: str) -> bool:
    """This service's signatures are base64 of hundreds of letters; what another one wrote there mostly is not.

    In transcripts that were made public a short stand-in, such as `sig-1`, tells that there was one.
    """
    if len(signature) < _SIGNATURE_SHORTEST:
        return _STAND_IN.fullmatch(signature) is not None
    try:
        return bool(base64.b64decode(signature, validate=True))
    except (binascii.Error, ValueError):
        return False


def _served(turn: Turn, notes: Notes) -> Turn:
    """Calls that the service answers itself stand with their results in one message, or not at all."""
    asked: dict[str, bool] = {}
    kept: list[Part] = []
    for part in turn.parts:
        if part.kind is Kind.SERVER_RESULT and asked.get(part.id) is not False:
            notes.add("orphan_result", turn, f"a result of the service's own tool without its call {part.id}: left out")
            continue
        if part.kind is Kind.SERVER_CALL:
            asked[part.id] = False
        elif part.kind is Kind.SERVER_RESULT:
            asked[part.id] = True
        kept.append(part)
    lost = [part for part in kept if part.kind is Kind.SERVER_CALL and not asked[part.id]]
    for part in lost:
        notes.add("unanswered_call", turn, f"{part.id} of the service's own tools was never answered: left out")
    return with_parts(turn, tuple(part for part in kept if part not in lost))
