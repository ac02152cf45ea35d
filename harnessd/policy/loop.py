"""Loop: the same call, A-B-A-B, the same error, nothing new; what is progress and what only looks like it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.domain.effect import canonical_json, plain
from harnessd.policy.language.figures import Count
from harnessd.policy.language.names import Ladder
from harnessd.policy.language.shape import Policy, Shape
from harnessd.policy.language.source import Problem
from harnessd.policy.values import Template, fill

_Times = Annotated[int | None, Count(low="2", high="100", none=True)]


class LoopShape(Shape):
    """What counts as a loop, and what is done about it."""

    repeat_call: _Times = Field(
        description="Same tool, same arguments, same result (times, pids and ids left out), in a row."
    )
    alternate: _Times = Field(description="A-B pairs, or circles of three or four turns, in a row with nothing new.")
    same_error: _Times = Field(description="Same tool, class and reason, in a row.")
    no_progress: Annotated[int | None, Count(low="2", high="1000", none=True)] = Field(
        description="Turns with no new result, file change or plan step."
    )
    nudge: Annotated[str, Template(names=("times", "tool", "detector"))] = Field(description="What the model is told.")
    do: Annotated[tuple[str, ...], Ladder(actions=("nudge", "rollback", "needs_human", "stop"))] = Field(
        description="The ladder; `rollback` goes to before the loop."
    )


LoopPolicy = Policy[LoopShape]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call with its result. `reason` is the key words of an error; `polling` tools are never a loop.

    `failed`: the tool did its work and says itself that it came to nothing, as a command does by its exit status.
    What it says is its reason; unlike an error with a class it may hold something new.
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    result: str = ""
    error_class: str | None = None
    reason: str = ""
    polling: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call and the tool calls it asked for. `changed`: files or the plan changed during it."""

    calls: tuple[Call, ...] = ()
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Looping:
    """A loop that was found. `do` is the ladder."""

    detector: str
    times: int
    tool: str
    nudge: str
    do: tuple[str, ...]
    rule: RuleRef


# Changes that are no progress: times, dates, process ids, addresses, generated ids, durations. In small letters alone:
# results of 64 KiB are looked at in the event loop, and sets of both cases at each word's border cost three times more.
# What a word may begin with is asked once, before any of the forms.
_MONTHS = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_NOISE = re.compile(
    rf"""
      \b(?=[0-9a-gijl-prstuw])(?:
        (?=[0-9])(?:
            \d{{4}}-\d{{2}}-\d{{2}}(?:[t ]\d{{2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d+)?)?(?:z|[+-]\d{{2}}:?\d{{2}})?)?
          | \d{{1,2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d+)?)?(?:\s?[ap]m)?\b
          | \d{{8}}t\d{{6}}z?\b
          | (?:\d{{4}}/\d{{1,2}}/\d{{1,2}}|\d{{1,2}}([./])\d{{1,2}}\1\d{{4}}|\d{{1,2}}/{_MONTHS}/\d{{4}})\b
          | [0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}}\b
          | 0x[0-9a-f]+\b
          | (?=[0-9]*[a-f])[0-9a-f]{{7,64}}\b
          | [0-7][0-9a-hjkmnp-tv-z]{{25}}\b
          | (?:\d+\s?h\s?)?\d+\s?m\s?\d+(?:\.\d+)?\s?s\b
          | \d+(?:\.\d+)?\s?(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|days?)\b
          | 1[0-9]{{9}}(?:[0-9]{{3}}){{0,3}}(?:\.\d+)?\b
          | \d{{1,3}}(?:\.\d{{1,3}}){{3}}:[3-6]\d{{4}}\b
          )
      | (?=[a-f])(?:
            [0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}}\b
          | (?=[a-f]*[0-9])[0-9a-f]{{7,64}}\b
          )
      | (?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s+(?:\d{{1,2}}\s+)?
        {_MONTHS}[a-z]*(?:\s+\d{{1,4}})?
      | {_MONTHS}\s+\d{{1,2}}(?=\s+\d{{1,2}}:\d{{2}})
      | (?:pid|process|tid|thread|goroutine|inode)[\s:=\#-]*(?:0x[0-9a-f]+|\d+)
      | (?:job|task)(?:\s?\#|=|\s+id[\s:=\#]*)\d+
      | (?:elapsed|duration|took|time|uptime|latency)["']?\s?[:=]\s?\d+(?:\.\d+)?(?:e-?\d+)?\b
      | (?:req|call|toolu|msg|run|id)[_-][a-z0-9]{{6,}}\b
      | tmp[._-]?[a-z0-9_]{{6,}}\b
      )
    | \[\d{{3,}}\]
    | /tmp/[\w.-]+
    | /var/folders/[\w./-]+
    """,
    re.VERBOSE,
)
# What a coloured word looked like is no part of it.
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


# Turns: of the circles that are looked for; a longer one ends as `no_progress`.
_LONGEST_CIRCLE = 4


def fingerprint(result: str) -> str:
    """A result without what changes by itself; two equal ones mean that nothing new was learnt."""
    return " ".join(_NOISE.sub("~", _COLOUR.sub("", result[:200_000]).lower()).split())


def detect(policy: LoopPolicy, turns: Sequence[Turn]) -> Looping | None:
    """The loop that the newest turn completes, or None.

    `turns` are those since the last progress or the last step taken against a loop: tallies start at 0 after each.
    """
    for detector, found in (
        ("repeat_call", _repeats(policy.shape.repeat_call, turns)),
        ("same_error", _same_error(policy.shape.same_error, turns)),
        ("alternate", _alternates(policy.shape.alternate, turns)),
        ("no_progress", _no_progress(policy.shape.no_progress, turns)),
    ):
        if found is None:
            continue
        times, tool = found
        words = fill(policy.shape.nudge, {"times": times, "tool": tool, "detector": detector})
        return Looping(detector, times, tool, words, policy.shape.do, policy.ref(detector))
    return None


def identity(tool: str, arguments: Any) -> str:
    """One spelling for one call: the order of keys, blanks in texts, 1 or 1.0, and what is null make no other call."""
    return canonical_json([tool, plain(arguments)])


def _identity(call: Call) -> str:
    return identity(call.tool, call.arguments)


def _seen(call: Call) -> tuple[str, str]:
    return (_identity(call), fingerprint(call.result))


def _round(turn: Turn) -> tuple[tuple[tuple[str, str], int], ...] | None:
    """A turn's calls whatever their order, or None where it has none or one that polls."""
    if not turn.calls or turn.changed or any(call.polling for call in turn.calls):
        return None
    return tuple(sorted(Counter(_seen(call) for call in turn.calls).items()))


def _repeats(limit: int | None, turns: Sequence[Turn]) -> tuple[int, str] | None:
    """Equal calls in a row, one by one, or whole equal rounds of parallel calls."""
    if limit is None or not turns or not turns[-1].calls:
        return None
    rounds = _in_a_row([_round(turn) for turn in turns])
    calls = _in_a_row([None if call.polling else _seen(call) for turn in turns for call in turn.calls])
    times = max(rounds, calls)
    return (times, turns[-1].calls[-1].tool) if times >= limit else None


def _in_a_row(items: Sequence[Any]) -> int:
    """How often the last item stands at the end in a row; None never counts."""
    count = 0
    for item in reversed(items):
        if item is None or item != items[-1]:
            break
        count += 1
    return count


def _same_error(limit: int | None, turns: Sequence[Turn]) -> tuple[int, str] | None:
    if limit is None:
        return None
    times = _in_a_row([_error(call) for turn in turns for call in turn.calls])
    return (times, turns[-1].calls[-1].tool) if times >= limit and turns[-1].calls else None


def _error(call: Call) -> tuple[str, str, str] | None:
    if call.error_class is not None:
        return (call.tool, call.error_class, fingerprint(call.reason))
    return (call.tool, "", fingerprint(call.result)) if call.failed and not call.polling else None


def _alternates(limit: int | None, turns: Sequence[Turn]) -> tuple[int, str] | None:
    """A-B-A-B with the same results, also A-B-C-A-B-C: whole circles of the least length, counted from the end."""
    if limit is None or len(turns) < 2 * limit:
        return None
    rounds = [_round(turn) for turn in turns]
    for length in range(2, min(_LONGEST_CIRCLE, len(rounds) // limit) + 1):
        circle = rounds[-length:]
        if None in circle or len(set(circle)) == 1:
            continue
        same = 0
        for place, item in enumerate(reversed(rounds)):
            if item != circle[-1 - place % length]:
                break
            same += 1
        if same // length >= limit:
            return (same // length, turns[-1].calls[-1].tool)
    return None


def _no_progress(limit: int | None, turns: Sequence[Turn]) -> tuple[int, str] | None:
    if limit is None:
        return None
    seen: set[tuple[str, str]] = set()
    without = 0
    for turn in turns:
        fresh = progressed(turn, seen)
        seen.update(_seen(call) for call in turn.calls)
        without = 0 if fresh else without + 1
    tool = turns[-1].calls[-1].tool if turns and turns[-1].calls else ""
    return (without, tool) if without >= limit else None


def progressed(turn: Turn, seen: Collection[tuple[str, str]]) -> bool:
    """A file or plan step changed, something new was learnt, or a polled state was looked at."""
    return turn.changed or any(
        call.polling or (call.error_class is None and _seen(call) not in seen) for call in turn.calls
    )


def relations(policy: LoopPolicy) -> Iterator[Problem]:
    """Nothing here is impossible."""
    del policy
    yield from ()
