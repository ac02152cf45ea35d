"""Turns and parts: a transcript free of its protocol, each piece with the form in which it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


class Kind(StrEnum):
    """What a part of a message is."""

    TEXT = "text"
    CALL = "call"
    RESULT = "result"
    THOUGHT = "thought"
    MEDIA = "media"
    SERVER_CALL = "server_call"  # a tool that the service runs itself
    SERVER_RESULT = "server_result"
    OTHER = "other"
    KEPT = "kept"  # of a sort that only the service knows that made it, and takes back as it is


@dataclass(frozen=True, slots=True)
class Media:
    """A picture or a paper: base64 `data`, or a `url` where the bytes lie elsewhere."""

    sort: Literal["image", "document"]
    media_type: str = ""
    data: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a message.

    Attributes:
        text: its words; of a call whose arguments are unreadable: what the model wrote.
        id: the name by which call and result find each other; empty: none was given.
        arguments: of a call; None where what came is not a JSON object.
        inner: contents of a result that are more than one text.
        carried: pictures that may not stand in the result and follow it.
        missing: of a call: it came without any arguments; invalid: with some that are no JSON object.
        wire: the piece as it came; it leaves byte-identical unless `touched`.
    """

    kind: Kind
    text: str = ""
    id: str = ""
    name: str = ""
    arguments: Mapping[str, Any] | None = None
    is_error: bool = False
    inner: tuple[Part, ...] | None = None
    carried: tuple[Part, ...] = ()
    media: Media | None = None
    missing: bool = False
    invalid: bool = False
    wire: Any = None
    touched: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One message, or one item of a protocol of items.

    Attributes:
        place: its index in what was given; None: we put it there.
        wire: the message as it came; it leaves byte-identical unless `touched`.
        aborted: the answer ended in an error or was stopped.
        foreign: it is another model's: its thoughts are nobody else's. own: it is the receiver's own, as it sent it.
    """

    role: Role
    parts: tuple[Part, ...]
    place: int | None = None
    wire: Any = None
    touched: bool = False
    aborted: bool = False
    foreign: bool = False
    own: bool = False

    @property
    def intact(self) -> bool:
        """Nothing in it was changed: it leaves as it came."""
        return not self.touched and not any(part.touched for part in self.parts)

    @property
    def calls(self) -> tuple[Part, ...]:
        """The calls in it, in order."""
        return tuple(part for part in self.parts if part.kind is Kind.CALL)


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that is wrong with a transcript, and what is done about it; `index` counts messages from 0."""

    code: str
    index: int
    message: str


@dataclass(slots=True)
class Notes:
    """What was found until now."""

    found: list[Note] = field(default_factory=list)

    def add(self, code: str, turn: Turn | int | None, message: str) -> None:
        """One more finding."""
        index = turn.place if isinstance(turn, Turn) else turn
        self.found.append(Note(code, index if index is not None else 0, message))


def mended(part: Part, **fields: Any) -> Part:
    """The part with other fields; its wire form is written anew."""
    return replace(part, touched=True, **fields)


def with_parts(turn: Turn, parts: tuple[Part, ...]) -> Turn:
    """The turn with these parts; itself where they are the same ones."""
    same = len(parts) == len(turn.parts) and all(a is b for a, b in zip(parts, turn.parts, strict=True))
    return turn if same else replace(turn, parts=parts, touched=True)


def said(role: Role, text: str, place: int | None = None) -> Turn:
    """A turn of ours that is one text."""
    return Turn(role, (Part(Kind.TEXT, text=text, touched=True),), place=place, touched=True)
