"""Expected: what a policy test wants of an answer, and where the answer differs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from harnessd.defence.trial.step import Answer

EXACT_S = 0.0005  # waits are written in milliseconds at the finest


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text as written, `*` in it any run of characters."""

    text: str
    compiled: re.Pattern[str] = field(compare=False, repr=False)

    def fits(self, text: str) -> bool:
        """Whether the whole text is meant."""
        return self.compiled.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One key whose value is another one."""

    key: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What one step must give; a key that is not named may be anything.

    Attributes:
        texts: `class`, `do`, `to`, `says`, `reason` -> pattern.
        rule: the name of one of the lines that had a part in the decision.
        policies: kind -> policy that the task must have; the kind "" means the policy that decided.
    """

    texts: Mapping[str, Pattern] = field(default_factory=dict)
    rule: Pattern | None = None
    waited_s: float | None = None
    policies: Mapping[str, Pattern] = field(default_factory=dict)

    @property
    def anything(self) -> bool:
        """Nothing is expected: it cannot fail."""
        return not self.texts and self.rule is None and self.waited_s is None and not self.policies

    def mismatches(self, answer: Answer) -> tuple[Mismatch, ...]:
        """Everything in which the answer differs."""
        return tuple(self._differences(answer))

    def _differences(self, answer: Answer) -> Iterator[Mismatch]:
        for key, pattern in self.texts.items():
            got = answer.field(key)
            if got is None or not pattern.fits(got):
                yield Mismatch(key, pattern.text, got or "none")
        names = [ref.rule for ref in answer.rules]
        if self.rule is not None and not any(self.rule.fits(name) for name in names):
            yield Mismatch("rule", self.rule.text, ", ".join(dict.fromkeys(names)) or "none")
        if self.waited_s is not None and abs(self.waited_s - answer.waited_s) > EXACT_S:
            yield Mismatch("waited", exact_duration(self.waited_s), exact_duration(answer.waited_s))
        for kind, pattern in self.policies.items():
            got = _policy_of(answer, kind)
            if not pattern.fits(got):
                shown = f"{kind}/" if kind else ""
                yield Mismatch("policy", f"{shown}{pattern.text}", f"{shown}{got}")


def _policy_of(answer: Answer, kind: str) -> str:
    if not kind:
        return answer.rules[0].name if answer.rules else "none"
    deciding = next((ref.name for ref in answer.rules if ref.kind == kind), "default")
    return answer.policies.get(kind, deciding)


def exact_duration(seconds: float) -> str:
    """A wait as tests write it, to the millisecond: `500ms`, `1h`, `2m5s500ms`."""
    whole = int(seconds)
    rest_ms = round((seconds - whole) * 1000)
    if rest_ms == 1000:
        whole, rest_ms = whole + 1, 0
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        amount, whole = divmod(whole, size)
        parts += [f"{amount}{unit}"] if amount else []
    return "".join([*parts, *([f"{rest_ms}ms"] if rest_ms else [])]) or "0s"
