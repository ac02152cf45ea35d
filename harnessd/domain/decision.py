"""Decision: what shall be done about an incident, and which line of which file says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.task import StopReason


@dataclass(frozen=True, slots=True)
class RuleRef:
    """Where a decision comes from. `file` is `builtin retry.yaml` or the operator's path as given."""

    kind: str
    name: str
    rule: str
    file: str
    line: int
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Observe:
    """The failure becomes the call's result; the model goes on."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The same again after `after_s` seconds; `attempt` is the try that follows (2 = first retry), of `of` in all."""

    after_s: float
    attempt: int
    of: int


@dataclass(frozen=True, slots=True)
class Nudge:
    """One line in the newest tool result asks the model to plan anew."""

    text: str


@dataclass(frozen=True, slots=True)
class Fallback:
    """The next link takes over: `to` is its name in policies; `passed` are the links that could not, and why."""

    to: str
    passed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Compact:
    """The history is made smaller and sent again; number `attempt` of at most `of` since the window overflowed."""

    attempt: int
    of: int


@dataclass(frozen=True, slots=True)
class Repair:
    """A stricter view of the same history is sent to a service that refused it; `rules` are what it keeps besides."""

    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Park:
    """Worker given back; woken after `for_s` seconds."""

    for_s: float


@dataclass(frozen=True, slots=True)
class Probe:
    """The world is asked whether an act was done whose outcome was lost; `tool` (its name in policies) asks it."""

    tool: str


@dataclass(frozen=True, slots=True)
class Rollback:
    """Pointer and workspace go back to a trusted node: `to` is its id, `which` the word of policy that names it."""

    to: str
    which: str


@dataclass(frozen=True, slots=True)
class NeedsHuman:
    """The task waits for a person, without a worker."""

    question: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The task ends with this stop reason."""

    reason: StopReason


# Closed union: each member is one word of every `do` in policies; mypy's exhaustive match names each place of it.
Remedy = Observe | Nudge | Retry | Fallback | Compact | Repair | Park | Probe | Rollback | NeedsHuman | Stop


@dataclass(frozen=True, slots=True)
class Pass:
    """A line's answer "not mine": handed up with what was tried or why it could not act."""

    line: str
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A line's answer "mine, do this", with everything `why` needs to tell the story.

    `evidence` is JSON: class, dependency, status, message, tries and so on. `alternatives` are sentences: what the
    ladder would have done otherwise. `tried` is what the lines below handed up.
    """

    remedy: Remedy
    error_class: str
    rule: RuleRef
    evidence: Mapping[str, Any] = field(default_factory=dict)
    alternatives: tuple[str, ...] = ()
    tried: tuple[Pass, ...] = ()
