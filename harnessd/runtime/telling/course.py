"""Course of incidents: which events begin one, which end it, and what it is about; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harnessd.domain.durable.outbox import Incident
from harnessd.domain.events import EventType as Type
from harnessd.domain.record import StoredEvent
from harnessd.domain.task import Task
from harnessd.policy.notify import EventFacts

# What lasts, and the events that end it for the same dependency (policies: for all of them); the first one is its own.
# Questions end with their answers, and with their tasks.
LASTING: Mapping[str, tuple[Type, ...]] = {
    Type.BREAKER_OPENED: (Type.BREAKER_CLOSED,),
    Type.OUTAGE_STARTED: (Type.OUTAGE_ENDED,),
    Type.CREDENTIAL_DEAD: (Type.RECOVERED, Type.OUTAGE_ENDED, Type.BREAKER_CLOSED),
    Type.DEGRADED: (Type.RECOVERED,),
    Type.NEEDS_HUMAN: (),
    Type.APPROVAL_WANTED: (),
    Type.POLICY_INVALID: (Type.POLICY_APPLIED,),
    Type.POLICY_HELD: (Type.POLICY_APPLIED,),
}
QUESTIONS = frozenset({Type.NEEDS_HUMAN, Type.APPROVAL_WANTED})
# Held open by tasks: each task that meets it says so, and the last one to leave ends it.
BY_TASKS = frozenset({Type.OUTAGE_STARTED, Type.CREDENTIAL_DEAD, Type.DEGRADED})
MOMENTS = frozenset({
    *(Type.UNANSWERED, Type.TASK_STOPPED, Type.BUDGET_WARNING, Type.CEILING_REACHED, Type.POLICY_APPLIED),
    *(Type.INTERNAL_ERROR, Type.DISK_LOW, Type.STORAGE_FULL, Type.NOTIFY_FAILED, Type.RECOVERY_STOPPED, Type.DRAINED),
    *(Type.NODE_LOST, Type.POLICY_MISSING, Type.ACCESS_REFUSED),
})  # fmt: skip
ENDS = frozenset(end for ends_ in LASTING.values() for end in ends_)
TASK_ENDS = frozenset({Type.TASK_STOPPED, Type.TASK_COMPLETED})
AFRESH = frozenset({Type.RESUMED, Type.RETRIED})
ENDERS = frozenset({*ENDS, *TASK_ENDS, *AFRESH, Type.ANSWERED, Type.UNANSWERED})
# policies.md 3.4, and what ends a question without being told for its own sake.
FOLLOWED = frozenset({*LASTING, *MOMENTS, *ENDERS})


def about(event: StoredEvent, task: Task | None) -> dict[str, Any]:
    """The event with the facts of its task: what rules look at and messages are made of."""
    data = event.data
    error_class = data.get("class")
    return {
        "seq": event.seq,
        "at": event.at,
        "event": event.type,
        "task": event.task or "",
        "agent": task.draft.agent if task else "",
        "workspace": task.draft.workspace if task else "",
        "labels": dict(task.draft.labels) if task else {},
        "priority": task.draft.priority if task else None,
        "dependency": str(data.get("dependency") or ""),
        "class": str(error_class or ""),
        "reason": str(data.get("reason") or ""),
        "revision": event.revision,
        "data": dict(data),
    }


def key_of(facts: Mapping[str, Any]) -> str:
    """Which incident an event belongs to: the same event, dependency or task, and class."""
    data = facts["data"]
    whose = facts["dependency"] or facts["task"] or str(data.get("who") or "")
    error_class = facts["class"] or str(data.get("budget") or "")
    if facts["event"] == Type.POLICY_APPLIED:
        whose = f"r{data.get('revision', facts['revision'])}"
    return f"{facts['event']}|{whose}|{error_class}"


def holder_of(event: StoredEvent) -> str:
    """What keeps the incident of this event open; empty where nothing does."""
    if event.type in QUESTIONS:
        return str(event.data.get("question") or "")
    return event.task or "" if event.type in BY_TASKS else ""


def is_echo(event: StoredEvent) -> bool:
    """A task that waits says `needs_human` beside the question that it asked: one of them is enough."""
    return event.type == Type.NEEDS_HUMAN and "question" not in event.data and "waits_for" in event.data


def ends(event: StoredEvent, incident: Incident) -> bool:
    """Whether this event ends the incident as a whole."""
    same_task = bool(event.task) and incident.about["task"] == event.task
    if incident.event in QUESTIONS:
        over = TASK_ENDS | AFRESH | {Type.UNANSWERED}
        return same_task and event.type in over
    if incident.event not in LASTING:
        return same_task and event.type in AFRESH
    if event.type not in LASTING[incident.event]:
        return False
    if event.type == Type.POLICY_APPLIED:
        return True
    # A task that gave up waiting says nothing about the dependency.
    return incident.about["dependency"] == event.data.get("dependency") and event.data.get("answered") is not False


def lets_go(event: StoredEvent, incident: Incident) -> str:
    """The holder that this event takes from the incident; empty where it takes none."""
    if event.type == Type.ANSWERED and incident.event in QUESTIONS and incident.about["task"] == event.task:
        return str(event.data.get("question") or "")
    gone = event.type in TASK_ENDS or (event.type == Type.OUTAGE_ENDED and event.data.get("answered") is False)
    return event.task or "" if gone and incident.event in BY_TASKS else ""


def facts_for_rules(facts: Mapping[str, Any], lasting_s: float) -> EventFacts:
    """What policy looks at."""
    dependency, data = facts["dependency"], facts["data"]
    return EventFacts(
        facts["event"],
        agent=facts["agent"],
        workspace=facts["workspace"],
        labels=facts["labels"],
        priority=facts["priority"],
        error_class=facts["class"],
        dependency=dependency,
        model=dependency if dependency.startswith("model/") else "",
        tool=dependency if dependency.startswith(("tool/", "mcp/")) else "",
        effect=str(data.get("effect") or ""),
        reason=facts["reason"],
        budget=str(data.get("budget") or ""),
        window_used=data.get("window_used"),
        lasting=lasting_s,
    )
