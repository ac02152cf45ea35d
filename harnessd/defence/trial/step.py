"""Step: one thing that happens to a task in a policy test, and the answer that the rules give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.decision import RuleRef
from harnessd.domain.failure import ErrorClass
from harnessd.policy.language.facts import MODEL_CLASSES, TOOL_CLASSES

# The clock of every test starts at 2026-01-01 00:00:00 UTC: dates in `retry-after` count from there.
START = 1_767_225_600.0

# Words of `expect.do` beside the actions of a ladder: what is decided about calls, sizes, events and what is kept.
VERDICTS = ("allow", "ask", "deny", "kill", "background", "wait", "warn", "block", "notify", "collect", "none")
ACTIONS = (
    *("observe", "nudge", "retry", "fallback", "park", "compact", "repair", "probe", "rollback"),
    *("needs_human", "stop"),
)
AGENT_CLASSES = tuple(word.value for word in ErrorClass if word.value not in (*MODEL_CLASSES, *TOOL_CLASSES))

_SIGNS_OF_FAILURE = frozenset(
    {
        *("class", "status", "code", "type", "message", "transport", "ended", "finish", "call_cut", "window_used"),
        *("exit_code", "rpc_code", "consecutive", "failed_corrections"),
    }
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `facts` stand under the names of conditions, numbers in base units.

    Attributes:
        used: budgets or limits of a name: how much is used until now.
        context: the part of the effective window that the history fills.
        gained: what a compaction took off, as a part of what was there before.
        disk_free: free part of the store's disk.
        kept: what retention keeps (`sessions`, ...) -> its age in seconds.
        result: what a tool answered.
        after_s: the clock moves so far before the step; a wait that was decided is waited out in any case.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    context: float | None = None
    gained: float | None = None
    disk_free: float | None = None
    kept: Mapping[str, float] = field(default_factory=dict)
    result: str = ""
    after_s: float = 0.0
    times: int = 1

    @property
    def failed(self) -> bool:
        """The facts speak of an attempt that did not go well."""
        return any(name in _SIGNS_OF_FAILURE or name.startswith(("body.", "header.")) for name in self.facts)

    @property
    def about_agent(self) -> bool:
        """The failure is the task's own: no model's and no tool's."""
        return self.facts.get("class") in AGENT_CLASSES or ("recoveries" in self.facts and "class" not in self.facts)

    @property
    def labels(self) -> dict[str, str]:
        """The labels among the facts."""
        return {name[len("label.") :]: value for name, value in self.facts.items() if name.startswith("label.")}

    def below(self, prefix: str) -> dict[str, Any]:
        """The facts below `body.` or `arg.` as nested JSON."""
        tree: dict[str, Any] = {}
        for name, value in self.facts.items():
            if not name.startswith(prefix):
                continue
            *parents, last = name[len(prefix) :].split(".")
            place = tree
            for parent in parents:
                inner = place.get(parent)
                if not isinstance(inner, dict):
                    inner = place[parent] = {}
                place = inner
            place[last] = value
        return tree


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policies decide. `rules`: first the line that decided, then others that had a part in it.

    Attributes:
        do: an action, or one of VERDICTS; `none`: nothing is done.
        to: who takes over, where the session goes back to, which channels are told.
        waited_s: the wait before the next attempt, without jitter.
        reason: the stop reason, where the task ends.
        policies: kind -> name of the task's policies.
        passed: steps of the ladder that could not act, each with the reason.
    """

    do: str
    rules: tuple[RuleRef, ...] = ()
    error_class: str | None = None
    to: str = ""
    waited_s: float = 0.0
    says: str = ""
    reason: str | None = None
    policies: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()

    def field(self, name: str) -> str | None:
        """A text field under the name that `expect` has for it."""
        value = self.error_class if name == "class" else getattr(self, name)
        return value if isinstance(value, str) else None
