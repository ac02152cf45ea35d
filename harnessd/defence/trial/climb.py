"""Climb: a ladder taken from the top with what was taken of it before; the first step that can act."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from harnessd.defence.trial.step import Answer

# These act until what they need is used up; every other step acts once an episode for each time it is named.
UNTIL_USED_UP = frozenset({"retry", "fallback", "park", "compact"})

Steps = Mapping[str, Callable[[], Answer | str]]


def climb(do: Sequence[str], steps: Steps, taken: Counter[str]) -> Answer | tuple[str, ...]:
    """The answer of the first step that can act, counted in `taken`; else why none could."""
    passed: list[str] = []
    named: Counter[str] = Counter()
    for word in do:
        named[word] += 1
        if word not in UNTIL_USED_UP and taken[word] >= named[word]:
            passed.append(f"{word}: taken before in this episode")
            continue
        answer = steps[word]() if word in steps else "not possible here"
        if isinstance(answer, str):
            passed.append(f"{word}: {answer}")
            continue
        taken[word] += 1
        return replace(answer, passed=tuple(passed))
    return tuple(passed)
