"""Caller: whose call it is; what limits, breakers and chaos may look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harnessd.domain.task import Task
from harnessd.policy import TaskPolicies


@dataclass(frozen=True, slots=True)
class Caller:
    """The task behind a call. `call` numbers it in its task (an effect's id); `attempt` counts tries there, from 1."""

    task: str = ""
    agent: str = ""
    workspace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    call: str = ""
    attempt: int = 1
    policies: TaskPolicies | None = None

    @classmethod
    def of(cls, task: Task, call: str, policies: TaskPolicies, attempt: int = 1) -> Caller:
        """The caller of a task's call."""
        draft = task.draft
        return cls(task.id, draft.agent, draft.workspace, draft.labels, draft.priority, call, attempt, policies)

    @property
    def names(self) -> tuple[str, ...]:
        """What the call touches besides its dependency: agent, labels, daemon."""
        return (*owner_names(self.agent, self.labels), "daemon")


NOBODY = Caller()


def owner_names(agent: str, labels: Mapping[str, str]) -> Iterable[str]:
    """`agent/coder`, `label/team=web`."""
    if agent:
        yield f"agent/{agent}"
    for key, value in labels.items():
        yield f"label/{key}={value}"


def task_names(task: Task) -> tuple[str, ...]:
    """The names under which a running task counts."""
    return tuple(owner_names(task.draft.agent, task.draft.labels))
