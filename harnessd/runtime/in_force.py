"""The policies in force: one immutable set behind one reference; what each task gets of it is worked out once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.task import Task, TaskDraft
from harnessd.policy import PolicySet, TaskFacts, TaskPolicies
from harnessd.policy.budget import limit_of
from harnessd.policy.facts import BUDGETS

# An agent's own wishes (`policies:` in harness.yaml), by agent.
Wishes = Callable[[str], Mapping[str, str]]


@dataclass(slots=True)
class InForce:
    """Swapped in one step; running tasks see the new set at their next decision (R7.2)."""

    policies: PolicySet
    wishes: Wishes
    since: float
    source: str = "start"
    _chosen: dict[str, tuple[int, TaskDraft, TaskPolicies]] = field(default_factory=dict)

    def swap(self, policies: PolicySet, now: float, source: str) -> None:
        """Another set from now on."""
        self.policies, self.since, self.source = policies, now, source
        self._chosen.clear()

    def for_task(self, task: Task) -> TaskPolicies:
        """What a task gets; kept until the set or the task's own wishes change."""
        kept = self._chosen.get(task.id)
        if kept is not None and kept[0] == self.policies.revision and kept[1] is task.draft:
            return kept[2]
        policies = self._of(task.draft, task.id)
        self._chosen[task.id] = (self.policies.revision, task.draft, policies)
        return policies

    def forget(self, task: str) -> None:
        """A task that no worker holds needs nothing kept."""
        self._chosen.pop(task, None)

    def effective(self, draft: TaskDraft, task: str | None, model_of: Callable[[str], str]) -> dict[str, Any]:
        """What is in force for a draft, for people: limits, model, policies with the reason for each."""
        policies = self._of(draft, task or "")
        limits = {budget: limit_of(policies.budget, budget) for budget in BUDGETS}
        return {
            "limits": limits,
            "model": draft.model or model_of(draft.agent),
            "policies": {kind: {"name": name, "why": why} for kind, (name, why) in policies.chosen.items()},
            "revision": policies.revision,
        }

    def facts(self) -> dict[str, Any]:
        """For `status`."""
        return {"revision": self.policies.revision, "since": self.since, "source": self.source}

    def _of(self, draft: TaskDraft, task: str) -> TaskPolicies:
        facts = TaskFacts(
            id=task, agent=draft.agent, workspace=draft.workspace, labels=draft.labels, priority=draft.priority
        )
        return self.policies.for_task(facts, self.wishes(draft.agent), draft.policies, draft.budget)
