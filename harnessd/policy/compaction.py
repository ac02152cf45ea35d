"""Compaction: when the history is made smaller, what is kept word for word, what counts as a gain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.policy.language.figures import Count, Ratio, Size
from harnessd.policy.language.names import Ladder, Name, Names
from harnessd.policy.language.shape import Policy, Shape
from harnessd.policy.language.source import Problem
from harnessd.policy.values import ListOf, Text

SECTIONS = ("goal", "progress", "decisions", "files", "next_steps")


class Tiers(Shape):
    """Parts of the effective window, looked at before every model call."""

    compact: Annotated[float, Ratio(low="10%", high="95%")] = Field(description="The history is compacted.")
    warn: Annotated[float, Ratio(low="10%", high="99%")] = Field(
        description="Still above after compaction: tell person and model."
    )
    block: Annotated[float, Ratio(low="10%")] = Field(description="No new request until handled.")


class Summary(Shape):
    """The words that stand for what was left out."""

    model: Annotated[Name | None, Names(sorts=("model",), star=False, patterns=False, single=True, none=True)] = Field(
        description="Who writes it; none = the task's own model, then its chain."
    )
    max_tokens: Annotated[int, Count(low="500", high="200k")] = Field(description="Its length; at most `reserve`.")
    sections: Annotated[
        tuple[str, ...],
        ListOf(each=Text(pattern=r"[a-z][a-z_]{0,30}", wanted="a section"), least=1, most=12, always=SECTIONS),
    ] = Field(description="Its headings; the five shipped ones always.")


class CompactionShape(Shape):
    """When and how the history is made smaller."""

    reserve: Annotated[int, Count(high="200k")] = Field(
        description="Effective window = window - min(model's max output, reserve)."
    )
    tiers: Tiers = Field(description="Parts of the effective window.")
    keep_turns: Annotated[int, Count(low="1", high="100")] = Field(
        description="Newest turns kept word for word; system rules, request, task list, receipts always."
    )
    squeeze_over: Annotated[int, Size(low="256B", high="1MiB")] = Field(
        description="Older tool results above this become artefacts first."
    )
    gain_at_least: Annotated[float, Ratio(low="1%", high="90%")] = Field(
        description="Less, by the next real usage = a failed compaction."
    )
    summary: Summary = Field(description="The summary.")
    failures: Annotated[int, Count(low="1", high="20")] = Field(
        description="Failed compactions in a row open the compaction breaker."
    )
    emergency_tries: Annotated[int, Count(low="1", high="10")] = Field(
        description="After an overflow, whatever our estimate said."
    )
    do: Annotated[tuple[str, ...], Ladder(actions=("needs_human", "stop"))] = Field(
        description="When the breaker opens, after the trim that needs no model."
    )


CompactionPolicy = Policy[CompactionShape]

Tier = Literal["none", "compact", "warn", "block"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a view stands in its window. `used` is a ratio of the effective window."""

    tier: Tier
    used: float
    window: int
    rule: RuleRef


def effective_window(policy: CompactionPolicy, window: int, max_output: int) -> int:
    """Tokens that a view may use: what the summary itself needs is kept back. At least 1."""
    return max(1, window - min(max_output, policy.shape.reserve))


def standing(policy: CompactionPolicy, size: int, window: int, max_output: int) -> Standing:
    """The highest tier that a view of `size` tokens reaches."""
    effective = effective_window(policy, window, max_output)
    used = size / effective
    tiers = policy.shape.tiers
    found: Tier = "none"
    for name, level in (("compact", tiers.compact), ("warn", tiers.warn), ("block", tiers.block)):
        if used >= level:
            found = name  # type: ignore[assignment]
    key = "compact" if found == "none" else found
    return Standing(found, used, effective, policy.ref("tiers", key))


def gained_enough(policy: CompactionPolicy, before: int, after: int) -> bool:
    """Whether a compaction was worth it, by the next real usage; one metric before and after."""
    return before > 0 and (before - after) / before >= policy.shape.gain_at_least


def overhead_too_large(policy: CompactionPolicy, overhead: int, window: int, max_output: int) -> bool:
    """System prompt and tools alone reach the first tier: compacting for ever would not help."""
    return overhead >= policy.shape.tiers.compact * effective_window(policy, window, max_output)


def relations(policy: CompactionPolicy) -> Iterator[Problem]:
    """Tiers rise; the summary fits in the reserve."""
    tiers = policy.shape.tiers
    for low, high in (("compact", "warn"), ("warn", "block")):
        if getattr(tiers, low) > getattr(tiers, high):
            message = f"tiers.{low} {policy.written('tiers', low)} is above {high} {policy.written('tiers', high)}"
            yield Problem.at(policy.blame(("tiers", high), ("tiers", low)), message, "write compact <= warn <= block")
    if policy.shape.summary.max_tokens > policy.shape.reserve > 0:
        message = f"summary.max_tokens {policy.written('summary', 'max_tokens')} is above reserve"
        place = policy.blame(("summary", "max_tokens"), ("reserve",))
        yield Problem.at(place, f"{message} {policy.written('reserve')}", "write at most the reserve")
