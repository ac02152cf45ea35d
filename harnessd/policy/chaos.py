"""Chaos: faults on purpose, by rate and seed; nothing happens unless harness.yaml says `chaos: true`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.policy.conditions import ALWAYS, NEVER, Conditions, Lookup, When
from harnessd.policy.language.facts import MODEL_CLASSES, TOOL_CLASSES
from harnessd.policy.language.figures import Count, Duration, Ratio, Size
from harnessd.policy.language.freeform import Json
from harnessd.policy.language.names import ANYTHING, Name, Names
from harnessd.policy.language.shape import Entry, Policy, Shape
from harnessd.policy.language.source import Problem
from harnessd.policy.values import Flag, Word

_When = Annotated[When, Conditions(scope="chaos")]
FAULTS = ("status", "delay", "reset", "cut_after", "malformed", "fail", "crash")


class Inject(Shape):
    """One fault: exactly one of status, delay, reset, cut_after, malformed, fail, crash."""

    status: Annotated[int, Count(low="100", high="599")] | None = Field(None, description="Answer with this status.")
    headers: Annotated[dict[str, Any], Json()] | None = Field(None, description="Beside status: headers.")
    body: Annotated[Any, Json(maps=False)] = Field(None, description="Beside status: the body.")
    delay: Annotated[float, Duration(high="24h")] | None = Field(None, description="Wait so long before the attempt.")
    reset: Annotated[bool, Flag()] | None = Field(None, description="The connection is reset.")
    cut_after: Annotated[int, Size()] | None = Field(None, description="The answer is cut after so many bytes.")
    malformed: Annotated[str, Word(words=("json", "arguments"))] | None = Field(
        None, description="The answer, or a tool call's arguments, cannot be read."
    )
    fail: Annotated[str, Word(words=tuple(dict.fromkeys((*MODEL_CLASSES, *TOOL_CLASSES))))] | None = Field(
        None, description="The attempt fails with this class."
    )
    crash: Annotated[bool, Flag()] | None = Field(None, description="The daemon is killed.")


class ChaosRule(Entry):
    """One line: these attempts, at this rate, get this fault."""

    for_: Annotated[tuple[Name, ...], Names(sorts=("model", "tool", "mcp"))] = Field(
        ANYTHING, alias="for", description="Whose attempts."
    )
    when: _When = Field(ALWAYS, description="Only these tasks.")
    unless: _When = Field(NEVER, description="Not these tasks.")
    rate: Annotated[float, Ratio()] = Field(description="Of the attempts that fit.")
    inject: Inject = Field(description="The fault; entries are drawn one after the other, the first that hits counts.")


class ChaosShape(Shape):
    """Faults on purpose."""

    seed: Annotated[int, Count()] = Field(description="Same seed, same faults.")
    rules: tuple[ChaosRule, ...] = Field((), description="Drawn one after the other; the first that hits counts.")


ChaosPolicy = Policy[ChaosShape]


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """An attempt that may get a fault. `attempt` numbers it in its task, so that a repeat draws again."""

    dependency: str
    task: str
    attempt: int
    agent: str = ""
    workspace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault that was drawn."""

    inject: Inject
    rule: RuleRef


def draw(policy: ChaosPolicy, facts: AttemptFacts) -> Fault | None:
    """The fault of an attempt, or None; the same for the same seed, task and attempt."""
    lookup = _lookup(facts)
    for index, rule in enumerate(policy.shape.rules):
        if rule.fits((facts.dependency,), lookup) and _number(policy.shape.seed, index, facts) < rule.rate:
            return Fault(rule.inject, policy.ref("rules", index))
    return None


def _number(seed: int, rule: int, facts: AttemptFacts) -> float:
    text = f"{seed}/{rule}/{facts.task}/{facts.dependency}/{facts.attempt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _lookup(facts: AttemptFacts) -> Lookup:
    def look(name: str) -> Any:
        if name in ("model", "tool"):
            sorts = ("model/",) if name == "model" else ("tool/", "mcp/")
            return facts.dependency if facts.dependency.startswith(sorts) else None
        if name.startswith("label."):
            return facts.labels.get(name[len("label.") :])
        value = getattr(facts, name, None)
        return value if value != "" else None

    return look


def relations(policy: ChaosPolicy) -> Iterator[Problem]:
    """Exactly one fault an entry."""
    for index, rule in enumerate(policy.shape.rules):
        stated = rule.inject.model_fields_set & set(FAULTS)
        place = policy.place("rules", index, "inject")
        if len(stated) != 1:
            yield Problem.at(place, f"{len(stated)} faults in one entry", f"write one of {', '.join(FAULTS)}")
        elif "status" not in stated and rule.inject.model_fields_set & {"headers", "body"}:
            yield Problem.at(place, "headers and body go with status", "write status too")
