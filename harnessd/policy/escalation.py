"""Escalation: what goes over the head of the line that has the error, before the class's own ladder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.policy.conditions import ALWAYS, NEVER, Conditions, Lookup, When
from harnessd.policy.language.figures import Count, Duration
from harnessd.policy.language.names import ANYTHING, Ladder, Name, Names
from harnessd.policy.language.shape import Entry, Policy, Shape
from harnessd.policy.language.source import Problem
from harnessd.policy.values import Word

_When = Annotated[When, Conditions(scope="escalation")]
ACTIONS = ("retry", "fallback", "park", "rollback", "probe", "needs_human", "stop")


class EscalationRule(Entry):
    """One line: under these facts, this ladder."""

    for_: Annotated[tuple[Name, ...], Names(sorts=("model", "tool", "mcp", "agent", "label"))] = Field(
        ANYTHING, alias="for", description="Whose failures, or which tasks."
    )
    when: _When = Field(ALWAYS, description="Facts of the failure and of the task.")
    unless: _When = Field(NEVER, description="Facts that speak against it.")
    do: Annotated[tuple[str, ...], Ladder(actions=ACTIONS)] = Field(
        description="First rule that holds decides, before the class's own ladder."
    )
    to: Annotated[str, Word(words=("last_good", "before_loop", "start"))] | None = Field(
        None,
        description="For `rollback`: last_good (also when nothing is written) = before the failing streak began, with "
        "a matching checkpoint.",
    )


class WaitForPerson(Shape):
    """How long a task waits for a person."""

    after: Annotated[float | None, Duration(low="1m", high="365d", none=True)] = Field(description="Then `do`.")
    do: Annotated[str, Word(words=("stop", "park"))] = Field(description="`stop` ends as `unanswered`.")


class EscalationShape(Shape):
    """What goes over the head of the line that has the error."""

    rules: tuple[EscalationRule, ...] = Field(description="First rule that holds decides.")
    ask: WaitForPerson = Field(description="Questions that nobody answers.")
    recoveries: Annotated[int, Count(low="1", high="20")] = Field(
        description="Starts again after crashes for the same interruption, charged before; then needs_human."
    )


EscalationPolicy = Policy[EscalationShape]


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """What is known of a failure when escalation is asked. `model`, `tool` and `dependency` are full names."""

    error_class: str
    dependency: str
    agent: str = ""
    workspace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    model: str = ""
    tool: str = ""
    effect: str | None = None
    window_used: float | None = None
    consecutive: int = 1
    failed_corrections: int = 0
    recoveries: int = 0


@dataclass(frozen=True, slots=True)
class Escalated:
    """The ladder that a rule puts before the class's own."""

    do: tuple[str, ...]
    to: Literal["last_good", "before_loop", "start"]
    rule: RuleRef


def escalate(policy: EscalationPolicy, facts: FailureFacts) -> Escalated | None:
    """The first rule that holds, or None: the class's own ladder decides."""
    lookup = _lookup(facts)
    touched = [name for name in (facts.dependency, facts.model, facts.tool) if name]
    touched += [f"agent/{facts.agent}", *(f"label/{key}={value}" for key, value in facts.labels.items())]
    for index, rule in enumerate(policy.shape.rules):
        if rule.fits(touched, lookup):
            to: Any = rule.to or "last_good"
            return Escalated(rule.do, to, policy.ref("rules", index))
    return None


def _lookup(facts: FailureFacts) -> Lookup:
    def look(name: str) -> Any:
        if name == "class":
            return facts.error_class
        if name.startswith("label."):
            return facts.labels.get(name[len("label.") :])
        value = getattr(facts, name, None)
        return value if value != "" else None

    return look


def relations(policy: EscalationPolicy) -> Iterator[Problem]:
    """`to` belongs to `rollback`; what always stops cannot be given another ladder."""
    for index, rule in enumerate(policy.shape.rules):
        if rule.to is not None and "rollback" not in rule.do:
            yield Problem.at(policy.place("rules", index, "to"), "`to` without rollback in do", "remove to")
