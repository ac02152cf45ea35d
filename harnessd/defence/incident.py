"""Incident: everything the four lines may look at; built once, never looked up again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harnessd.domain.decision import RuleRef
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure, Owner
from harnessd.policy import TaskPolicies
from harnessd.policy import retry as retry_policy


@dataclass(frozen=True, slots=True)
class Incident:
    """One failed attempt, classified, with the facts of its episode.

    Attributes:
        tries: failed attempts of this episode, this one included.
        elapsed_s: since the first attempt of the episode, parked time left out.
        parked_s: how long the episode has been parked until now.
        luck: a random number in [0, 1) that was handed in: the jitter's only source.
    """

    task: str
    failure: Failure
    error_class: ErrorClass
    classified_by: RuleRef
    owner: Owner
    settings: retry_policy.ClassSettings
    tries: int
    elapsed_s: float
    parked_s: float
    luck: float
    effect_class: EffectClass | None = None

    def evidence(self) -> dict[str, Any]:
        """What `why` shows of it; empty fields left out."""
        failure = self.failure
        facts = {
            "class": self.error_class.value,
            "dependency": failure.dependency,
            "message": failure.message[:500],
            "status": failure.status,
            "code": failure.code,
            "type": failure.type,
            "transport": failure.transport,
            "ended": failure.ended,
            "retry_after_s": failure.retry_after_s,
            "request_id": failure.request_id,
            "exit_code": failure.exit_code,
            "effect": self.effect_class.value if self.effect_class else None,
            "tries": self.tries,
            "elapsed_s": round(self.elapsed_s, 3),
            "classified_by": rule_json(self.classified_by),
        }
        return {name: value for name, value in facts.items() if value not in (None, "")}


def rule_json(rule: RuleRef) -> dict[str, Any]:
    """A rule reference as JSON."""
    return {
        "kind": rule.kind,
        "name": rule.name,
        "rule": rule.rule,
        "file": rule.file,
        "line": rule.line,
        "revision": rule.revision,
    }


@dataclass(frozen=True, slots=True)
class Episode:
    """Where a call stands when an attempt of it fails."""

    task: str
    tries: int
    elapsed_s: float = 0.0
    parked_s: float = 0.0
    luck: float = 0.0
    effect_class: EffectClass | None = None


def incident_of(failure: Failure, episode: Episode, policies: TaskPolicies) -> Incident:
    """Classify a failure and gather what the lines need."""
    classified = retry_policy.classify(policies.retry, failure)
    # Rules may find an answer complete ("ok"); one that reaches us as a failure all the same is the service's fault.
    error_class = classified.error_class or ErrorClass.SERVER_ERROR
    settings = retry_policy.for_class(policies.retry, failure.source, error_class)
    return Incident(
        task=episode.task,
        failure=failure,
        error_class=error_class,
        classified_by=classified.rule,
        owner=settings.owner,
        settings=settings,
        tries=episode.tries,
        elapsed_s=episode.elapsed_s,
        parked_s=episode.parked_s,
        luck=episode.luck,
        effect_class=episode.effect_class,
    )
