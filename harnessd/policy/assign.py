"""Assign: which task gets which policies: a team's, a canary's, a label's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.policy.conditions import ALWAYS, NEVER, AnyOf, Conditions, Lookup, When
from harnessd.policy.language.names import ANYTHING, Name, Names
from harnessd.policy.language.shape import NAME_PATTERN, Entry, Policy, Shape
from harnessd.policy.language.source import Problem
from harnessd.policy.values import Text

_PolicyName = Annotated[str, Text(pattern=NAME_PATTERN, wanted="a name of a policy")] | None
_When = Annotated[When, Conditions(scope="assign")]


class Use(Shape):
    """Kind -> name of a policy; a kind that is not named is decided by a later rule."""

    retry: _PolicyName = Field(None, description="A retry policy.")
    fallback: _PolicyName = Field(None, description="A fallback policy.")
    budget: _PolicyName = Field(None, description="A budget policy.")
    loop: _PolicyName = Field(None, description="A loop policy.")
    tools: _PolicyName = Field(None, description="A tools policy.")
    compaction: _PolicyName = Field(None, description="A compaction policy.")
    escalation: _PolicyName = Field(None, description="An escalation policy.")


class AssignRule(Entry):
    """One line: these tasks get these policies."""

    for_: Annotated[tuple[Name, ...], Names(sorts=("agent", "label"))] = Field(
        ANYTHING, alias="for", description="Which tasks: agent/NAME, label/KEY=VALUE."
    )
    when: _When = Field(ALWAYS, description="Which tasks; `share: 10%` = a fixed tenth by task id.")
    unless: _When = Field(NEVER, description="Which tasks not.")
    use: Use = Field(description="What they get; the first rule that names a kind decides for it.")


class AssignShape(Shape):
    """Which task gets which policies."""

    rules: tuple[AssignRule, ...] = Field((), description="Read from the top, for each kind.")


AssignPolicy = Policy[AssignShape]


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What is known of a task when its policies are chosen. `share`: its place in 0..1; None: worked out of its id."""

    id: str
    agent: str
    workspace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Assigned:
    """A policy that a rule names for a task."""

    kind: str
    name: str
    why: str
    rule: RuleRef


def assigned(policy: AssignPolicy, facts: TaskFacts) -> Mapping[str, tuple[Assigned, ...]]:
    """For each kind, the policies that rules name for a task, first rule first."""
    found: dict[str, list[Assigned]] = {}
    touched = touched_by(facts)
    lookup = task_lookup(facts)
    for index, rule in enumerate(policy.shape.rules):
        if not rule.fits(touched, lookup):
            continue
        for kind in rule.use.model_fields_set:
            name = getattr(rule.use, kind)
            ref = policy.ref("rules", index)
            found.setdefault(kind, []).append(Assigned(kind, name, f"assign rule {ref.rule}{_share(rule, facts)}", ref))
    return {kind: tuple(names) for kind, names in found.items()}


def _share(rule: AssignRule, facts: TaskFacts) -> str:
    for clause in rule.when.clauses:
        for asked in clause:
            if asked.name == "share" and isinstance(asked.test, AnyOf):
                return f", this task {_place(facts):.2f} < {asked.test.values[0].text}"
    return ""


def share_of(task: str) -> float:
    """A task's fixed place in 0..1: below 10 % is contained in below 20 %."""
    digest = hashlib.sha256(f"share {task}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _place(facts: TaskFacts) -> float:
    return share_of(facts.id) if facts.share is None else facts.share


def touched_by(facts: TaskFacts) -> tuple[str, ...]:
    """The full names a task touches by itself: its agent and labels."""
    return (f"agent/{facts.agent}", *(f"label/{key}={value}" for key, value in facts.labels.items()))


def task_lookup(facts: TaskFacts) -> Lookup:
    """The facts of a task as conditions ask for them."""

    def look(name: str) -> Any:
        if name == "share":
            return _place(facts)
        if name.startswith("label."):
            return facts.labels.get(name[len("label.") :])
        value = getattr(facts, name, None)
        return value if value != "" else None

    return look


def relations(policy: AssignPolicy) -> Iterator[Problem]:
    """A rule must name something."""
    for index, rule in enumerate(policy.shape.rules):
        if not rule.use.model_fields_set:
            place = policy.place("rules", index, "use")
            yield Problem.at(place, "the rule names no policy", "write use: {KIND: NAME}")
