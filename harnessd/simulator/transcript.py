"""Transcript: what a request shows the model, free of any protocol.

A script answers what it is shown and nothing else, so that a repeated or resumed call gets the same step.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that stands in the transcript."""

    id: str
    tool: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Result:
    """A tool's result; `tool` is the name that its call bore."""

    call_id: str
    tool: str
    text: str
    failed: bool


@dataclass(frozen=True)
class Shown:
    """One message: words, calls and results. Thinking is left out; its own rule looks at it on the wire."""

    role: Role
    text: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()

    @functools.cached_property
    def digest(self) -> str:
        """Names the message by what it says. Ids are left out: a client may map them to another form."""
        calls = [[call.tool, call.arguments] for call in self.calls]
        results = [[result.tool, result.text, result.failed] for result in self.results]
        return digest_of([self.role, self.text, calls, results])


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of the prompt in wire order, for the prompt cache. `breakpoint`: a prefix may end here."""

    digest: str
    tokens: int
    breakpoint: bool = False


@dataclass(frozen=True)
class Transcript:
    """A whole request as the script sees it."""

    protocol: str
    model: str
    system: str
    tools: tuple[str, ...]
    messages: tuple[Shown, ...]
    max_tokens: int
    stream: bool
    usage_in_stream: bool = True
    tools_digest: str = ""
    segments: tuple[Segment, ...] = field(default=(), repr=False)

    @functools.cached_property
    def tokens(self) -> int:
        """Our estimate of the prompt's size; the service's own tokenizer is not public either."""
        return sum(segment.tokens for segment in self.segments)

    @property
    def turn(self) -> int:
        """Number of assistant messages so far."""
        return sum(1 for message in self.messages if message.role == "assistant")

    @functools.cached_property
    def results(self) -> tuple[Result, ...]:
        """Every tool result, oldest first."""
        return tuple(result for message in self.messages for result in message.results)

    @property
    def last_results(self) -> tuple[Result, ...]:
        """The results that answer the last assistant message."""
        found: list[Result] = []
        for message in reversed(self.messages):
            if message.role == "assistant":
                break
            found[:0] = message.results
        return tuple(found)

    @property
    def last_calls(self) -> tuple[Call, ...]:
        """The calls of the last assistant message."""
        return next((message.calls for message in reversed(self.messages) if message.role == "assistant"), ())

    @property
    def first_user(self) -> str:
        """The words that opened the conversation."""
        return next((message.text for message in self.messages if message.role == "user"), "")

    @property
    def user_text(self) -> str:
        """All that the user's side said in words."""
        return "\n".join(message.text for message in self.messages if message.role == "user" and message.text)

    @property
    def last_text(self) -> str:
        """The newest words of the user's side."""
        return next(
            (message.text for message in reversed(self.messages) if message.role == "user" and message.text), ""
        )

    @functools.cached_property
    def everything(self) -> str:
        """Words and results in order: what is left of the past after a compaction."""
        pieces: list[str] = []
        for message in self.messages:
            pieces += [message.text, *(result.text for result in message.results)]
        return "\n".join(piece for piece in pieces if piece)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Names this point of this conversation: equal bytes shown, equal fingerprint."""
        return digest_of([message.digest for message in self.messages])

    @property
    def shape(self) -> str:
        """Names the point by opening words and calls alone: a seed draws alike whatever paths the tools printed."""
        calls = [[call.tool for call in message.calls] for message in self.messages if message.role == "assistant"]
        return digest_of([self.first_user, calls, len(self.results)])


# One encoder kept: json.dumps with options makes a new one each time, and a long transcript has many messages.
canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str).encode


def digest_of(value: Any) -> str:
    """Sixteen hexadecimal digits over the canonical JSON of a value."""
    return digest_of_text(canonical(value))


def digest_of_text(text: str) -> str:
    """Sixteen hexadecimal digits over a text; a lone surrogate counts as itself."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def tokens_of(text: str) -> int:
    """About four characters of English a token; one token a character of anything beyond ASCII."""
    wide = 0 if text.isascii() else sum(1 for character in text if character > "\x7f")
    return (len(text) - wide + 3) // 4 + wide


def segment_of(value: Mapping[str, Any] | str, *, images: int = 0) -> Segment:
    """The cache segment of one piece of the prompt; a moved `cache_control` mark changes no bytes that count."""
    marked = has_mark(value)
    plain = without_marks(value) if marked else value
    text = plain if isinstance(plain, str) else canonical(plain)
    # An image costs by its pixels, not by the length of its base64.
    return Segment(digest_of_text(text), tokens_of(text) if not images else 1600 * images, marked)


def without_marks(value: Any) -> Any:
    """The value with every `cache_control` taken out."""
    if isinstance(value, Mapping):
        return {key: without_marks(inner) for key, inner in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [without_marks(inner) for inner in value]
    return value


def has_mark(value: Any) -> bool:
    """Whether a `cache_control` stands anywhere in the value."""
    if isinstance(value, Mapping):
        return "cache_control" in value or any(has_mark(inner) for inner in value.values())
    return isinstance(value, list) and any(has_mark(inner) for inner in value)
