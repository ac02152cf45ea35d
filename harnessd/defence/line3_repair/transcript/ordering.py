"""Ordering: who speaks first, last and in turn; rules of the system in the middle; thoughts without what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harnessd.defence.line3_repair.transcript.receiver import Receiver
from harnessd.defence.line3_repair.transcript.turns import Kind, Notes, Part, Turn, mended, said, with_parts

BEGINNING = "[The beginning of this conversation was left out.]"
GO_ON = "Continue."
NOTED = "I have the results."
INSTRUCTION = "[Instruction of the system] "


def without_empty(turns: list[Turn], receiver: Receiver, notes: Notes | None = None) -> list[Turn]:
    """The turns that hold something. A text of no words is something only where the protocol takes it."""
    out = []
    for turn in turns:
        if not _empty(turn, receiver):
            out.append(turn)
        elif notes is not None:
            notes.add("empty_message", turn, f"a message of the {turn.role} without content is left out")
    return out


def _empty(turn: Turn, receiver: Receiver) -> bool:
    if not turn.parts:
        return True
    # An assistant that says nothing and asks for nothing is refused by every service.
    silent = all(part.kind is Kind.TEXT and not part.text.strip() for part in turn.parts)
    return silent and turn.role == "assistant" and receiver.protocol != "openai-responses"


def rules_of_the_system(turns: list[Turn], receiver: Receiver, notes: Notes) -> list[Turn]:
    """Instructions in the middle become words of the user, marked as what they are, where a service wants none there.

    They are not lifted into the system prompt: that stays as it was, so that the prompt cache holds.
    """
    if receiver.protocol != "anthropic" and not receiver.alternates:
        return turns
    out: list[Turn] = []
    for turn in turns:
        if turn.role != "system" or (receiver.protocol != "anthropic" and not out):
            out.append(turn)
            continue
        notes.add("system_in_the_middle", turn, "an instruction of the system becomes marked text of the user")
        parts = tuple(mended(part, text=INSTRUCTION + part.text) for part in turn.parts if part.kind is Kind.TEXT)
        out.append(replace(turn, role="user", parts=parts, wire=None, touched=True))
    return out


def thoughts_with_their_items(turns: list[Turn], receiver: Receiver, notes: Notes) -> list[Turn]:
    """Responses: a thought is followed by what was thought of; where it is left out, what it belonged to loses its id.

    `turns` still hold the thoughts that were dropped as turns without parts.
    """
    if receiver.protocol != "openai-responses":
        return turns
    out: list[Turn] = []
    alone = False
    for number, turn in enumerate(turns):
        thought = _is_thought(turn)
        lost = thought and not turn.parts
        if thought and not lost and not _said_by_model(turns, number + 1):
            notes.add("reasoning_alone", turn, "a thought without the item that followed it is left out")
            lost = True
        alone = lost or (alone and turn.role == "assistant" and not thought)
        if lost:
            continue
        out.append(_nameless(turn, notes) if alone else turn)
    return out


def _is_thought(turn: Turn) -> bool:
    wire = turn.wire if isinstance(turn.wire, Mapping) else {}
    return wire.get("type") == "reasoning" or any(part.kind is Kind.THOUGHT for part in turn.parts)


def _said_by_model(turns: list[Turn], number: int) -> bool:
    if number >= len(turns) or not turns[number].parts:
        return False
    following = turns[number]
    return following.role == "assistant" and not _is_thought(following)


def _nameless(turn: Turn, notes: Notes) -> Turn:
    """An id ties an item to its thought: the service refuses the one without the other."""
    wire = turn.wire
    if not isinstance(wire, Mapping) or "id" not in wire:
        return turn
    notes.add("reasoning_alone", turn, "the id of an item whose thought is left out goes with it")
    bare = {name: value for name, value in wire.items() if name != "id"}
    return replace(turn, wire=bare)


def alternating(turns: list[Turn], receiver: Receiver, notes: Notes) -> list[Turn]:
    """User and assistant in turn: neighbours of one role are joined, and words are put between where they cannot be.

    Templates of local models count only the user's messages and the answers without calls.
    """
    if not receiver.alternates:
        return turns
    out: list[Turn] = []
    newest = before = ""  # who spoke last, and who had before the last turn of `out`
    for turn in turns:
        if out and out[-1].role == turn.role and turn.role != "tool" and _joinable(out[-1], turn, receiver):
            notes.add("same_role_twice", turn, f"two messages of the {turn.role} in a row are joined")
            out[-1] = _joined(out[-1], turn, receiver)
            newest = before
        else:
            if turn.role == "user" and newest == "user" and receiver.protocol != "anthropic":
                notes.add("same_role_twice", turn, "the user speaks twice: a word of the assistant stands between")
                out.append(said("assistant", NOTED, turn.place))
                newest = "assistant"
            before = newest
            out.append(turn)
        if turn.role == "user" or (turn.role == "assistant" and _speaks(out[-1])):
            newest = turn.role
    return out


def _speaks(turn: Turn) -> bool:
    return not turn.calls and any(part.kind is not Kind.THOUGHT for part in turn.parts)


def _joinable(one: Turn, other: Turn, receiver: Receiver) -> bool:
    if receiver.protocol != "openai-responses":
        return not (one.calls and receiver.protocol == "openai-chat")
    return all(part.kind in (Kind.TEXT, Kind.MEDIA) for part in (*one.parts, *other.parts))


def _joined(one: Turn, other: Turn, receiver: Receiver) -> Turn:
    parts = one.parts + other.parts
    if receiver.protocol == "anthropic" and one.role == "user":
        parts = tuple(sorted(parts, key=lambda part: part.kind is not Kind.RESULT))
    if _texts(one) and _texts(other):
        text = "\n\n".join(part.text for part in parts)
        return replace(one, parts=(Part(Kind.TEXT, text=text, touched=True),), touched=True)
    return replace(one, parts=parts, touched=True)


def _texts(turn: Turn) -> bool:
    return all(part.kind is Kind.TEXT for part in turn.parts)


def edges(turns: list[Turn], receiver: Receiver, notes: Notes) -> list[Turn]:
    """The first and the last word are whose they must be; a conversation of nothing gets its first word."""
    first = next((turn for turn in turns if turn.role != "system"), None)
    out = list(turns)
    if first is None:
        notes.add("empty_conversation", None, "nothing is left of the conversation but its rules")
        return [*out, said("user", GO_ON)]
    if receiver.user_first and first.role != "user":
        place = next(number for number, turn in enumerate(out) if turn is first)
        notes.add("starts_with_assistant", first, "the user speaks first: a word of theirs is put in front")
        out.insert(place, said("user", BEGINNING, first.place))
    if receiver.user_last and out[-1].role not in ("user", "tool"):
        notes.add("ends_with_assistant", out[-1], "the user speaks last: a word of theirs is put behind")
        out.append(said("user", GO_ON, out[-1].place))
    return out


def thoughts_beside_calls(turns: list[Turn], receiver: Receiver, notes: Notes) -> list[Turn]:
    """Some services want the thoughts beside each call, be they empty."""
    if not receiver.keeps_thoughts or receiver.protocol != "openai-chat":
        return turns
    out = []
    for turn in turns:
        wire = turn.wire if isinstance(turn.wire, Mapping) else {}
        if turn.calls and not isinstance(wire.get("reasoning_content"), str):
            notes.add("reasoning_missing", turn, "a call without its thoughts gets empty ones")
            turn = replace(turn, wire={**wire, "reasoning_content": ""}, touched=True)  # noqa: PLW2901 - the same turn
        out.append(turn)
    return out


def without_last_thoughts(turns: list[Turn], receiver: Receiver, notes: Notes) -> list[Turn]:
    """Anthropic: an answer may not end with a thought; one that is nothing else is none."""
    if receiver.protocol != "anthropic":
        return turns
    return [_without_last_thoughts(turn, notes) for turn in turns]


def _without_last_thoughts(turn: Turn, notes: Notes) -> Turn:
    parts = list(turn.parts)
    while parts and parts[-1].kind is Kind.THOUGHT:
        parts.pop()
        notes.add("thinking_dropped", turn, "a thought that nothing follows is left out")
    return with_parts(turn, tuple(parts))
