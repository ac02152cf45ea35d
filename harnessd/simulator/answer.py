"""Answers: what a script says at one point of a transcript, free of any protocol; and the tokens it is billed at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harnessd.simulator.transcript import Call, Segment, Shown, Transcript, digest_of, tokens_of

# A prefix shorter than this is not cached by either service.
CACHE_MINIMUM_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A tool call to be answered with. `raw` is sent instead of the arguments: a model's malformed JSON."""

    id: str
    tool: str
    arguments: Mapping[str, Any]
    raw: str | None = None

    @property
    def json(self) -> str:
        """The argument text as it goes over the wire."""
        return self.raw if self.raw is not None else json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply of the model. `finish` is one of stop, tool_use, length, refusal, content_filter."""

    say: str = ""
    think: str = ""
    calls: tuple[PlannedCall, ...] = ()
    finish: str = "stop"
    delay_s: float = 0.0
    pace_s: float = 0.0
    usage: Mapping[str, int] = field(default_factory=dict)
    without_finish: bool = False  # a stream that ends without saying why

    @property
    def tokens(self) -> int:
        """Output tokens by our estimate."""
        return tokens_of(self.think) + tokens_of(self.say) + sum(12 + tokens_of(call.json) for call in self.calls)

    @property
    def as_shown(self) -> Shown:
        """The message that a faithful client shows us back."""
        calls = tuple(Call(call.id, call.tool, dict(call.arguments)) for call in self.calls)
        return Shown("assistant", self.say, calls)


@dataclass(frozen=True, slots=True)
class Bill:
    """Tokens of one exchange: input beside the cache, read from it, written to it, and output."""

    fresh: int
    cache_read: int
    cache_write: int
    output: int


def call_id(prefix: str, transcript: Transcript, index: int, salt: str = "") -> str:
    """An id that is the same whenever the same transcript is shown; `salt` makes it another one each time."""
    return f"{prefix}{digest_of([transcript.model, transcript.fingerprint, index, salt])}"


def cut_to_tokens(answer: Answer, max_tokens: int) -> Answer:
    """The answer stopped where the client's `max_tokens` ends it, in the middle of a call's arguments too."""
    left = max_tokens - tokens_of(answer.think)
    if answer.tokens <= max_tokens:
        return answer
    say = answer.say[: max(left, 0) * 4]
    left -= tokens_of(say)
    kept: list[PlannedCall] = []
    for call in answer.calls:
        left -= 12
        if left <= 0:
            break
        whole = tokens_of(call.json) <= left
        kept.append(call if whole else replace(call, raw=call.json[: left * 4]))
        left -= tokens_of(call.json)
    return replace(answer, say=say or answer.say[:1], calls=tuple(kept), finish="length")


@dataclass(slots=True)
class PromptCache:
    """Which prefixes were seen before: a prefix is named by the digests of all its segments."""

    seen: set[str] = field(default_factory=set)
    limit: int = 100_000

    def account(self, segments: tuple[Segment, ...], *, marked_only: bool) -> tuple[int, int, int]:
        """Tokens fresh, read and written. `marked_only`: only prefixes that end at a mark are kept (Anthropic)."""
        prefix, running, read, keep = "", 0, 0, 0
        ends: list[tuple[str, int, bool]] = []
        for segment in segments:
            prefix = digest_of([prefix, segment.digest])
            running += segment.tokens
            ends.append((prefix, running, segment.breakpoint or not marked_only))
        marks = [end for end in ends if end[2] and end[1] >= CACHE_MINIMUM_TOKENS]
        if marks:
            keep = marks[-1][1]
            # A lookup walks back from a mark over earlier message borders, so a moved mark still finds its prefix.
            read = max((tokens for name, tokens, _ in ends if tokens <= keep and name in self.seen), default=0)
            self.remember([name for name, tokens, marked in ends if marked and tokens <= keep])
        return running - max(keep, read), read, max(keep - read, 0)

    def remember(self, names: list[str]) -> None:
        """Keep prefixes, within bounds."""
        if len(self.seen) > self.limit:
            self.seen.clear()
        self.seen.update(names)


def bill(answer: Answer, transcript: Transcript, cache: PromptCache) -> Bill:
    """What the exchange costs; a script's `usage` overrides any figure."""
    marked_only = transcript.protocol == "anthropic"
    fresh, read, written = cache.account(transcript.segments, marked_only=marked_only)
    if not marked_only:
        fresh, written = fresh + written, 0  # OpenAI bills no cache writes
    usage = answer.usage
    return Bill(
        fresh=usage.get("input", max(fresh, 1)),
        cache_read=usage.get("cache_read", read),
        cache_write=usage.get("cache_write", written),
        output=usage.get("output", max(answer.tokens, 1)),
    )
