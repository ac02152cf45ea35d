"""The policies in force: one immutable set behind one reference; what each task gets of it is worked out once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harnessd.domain.task import Counters, Task, TaskDraft
from harnessd.policy import PolicySet, TaskFacts, TaskPolicies
from harnessd.policy import budget as budget_policy
from harnessd.policy.language.facts import BUDGETS

# An agent's own wishes (`policies:` in harness.yaml), by agent.
Wishes = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Standing:
    """A running task with what it has used: what a new set is held against before it comes into force."""

    task: Task
    counters: Counters


@dataclass(slots=True)
class InForce:
    """Swapped in one step; running tasks see the new set at their next decision (R7.2)."""

    policies: PolicySet
    wishes: Wishes
    since: float
    source: str = "start"
    pinned: dict[int, PolicySet] = field(default_factory=dict)  # sets that pinned tasks need, by revision
    changed: list[Callable[[], None]] = field(default_factory=list)  # who hears that another set is in force
    _chosen: dict[str, tuple[tuple[int, str], TaskDraft, TaskPolicies]] = field(default_factory=dict)

    def swap(self, policies: PolicySet, now: float, source: str) -> None:
        """Another set from now on. The one that leaves stays for tasks that were pinned to it while they ran."""
        leaving = self.policies
        if any(draft.pinned_revision == leaving.revision for _, draft, _ in self._chosen.values()):
            self.pinned[leaving.revision] = leaving
        self.policies, self.since, self.source = policies, now, source
        self._chosen.clear()
        for hears in self.changed:
            hears()

    def for_task(self, task: Task) -> TaskPolicies:
        """What a task gets; kept until the set or the task's own wishes change."""
        acting = task.counters.roles.get("agent", "").removeprefix("agent/")
        kept = self._chosen.get(task.id)
        if kept is not None and kept[0] == (self.policies.revision, acting) and kept[1] is task.draft:
            return kept[2]
        policies = self._with_stand_in(task, acting) if acting else self.of(task.draft, task.id)
        self._chosen[task.id] = ((self.policies.revision, acting), task.draft, policies)
        return policies

    def forget(self, task: str) -> None:
        """A task that no worker holds needs nothing kept."""
        self._chosen.pop(task, None)

    def of(self, draft: TaskDraft, task: str = "", under: PolicySet | None = None) -> TaskPolicies:
        """The policies of a draft, under the set in force or another one.

        A pinned task keeps its task kinds of that revision, but obeys every `deny` of the set in force.
        """
        facts = TaskFacts(
            id=task, agent=draft.agent, workspace=draft.workspace, labels=draft.labels, priority=draft.priority
        )
        wishes = self.wishes(draft.agent)
        current = under or self.policies
        policies = current.for_task(facts, wishes, draft.policies, draft.budget)
        pinned = self.pinned.get(draft.pinned_revision) if draft.pinned_revision is not None else None
        if pinned is None or pinned.revision == current.revision:
            return policies
        held = pinned.for_task(facts, wishes, draft.policies, draft.budget)
        return replace(held, denies=(policies.tools,))

    def _with_stand_in(self, task: Task, acting: str) -> TaskPolicies:
        """Where another agent stands in, its policies hold; what the task may use, its chains and its denies stay."""
        own = self.of(task.draft, task.id)
        others = self.of(replace(task.draft, agent=acting), task.id)
        denies = (*others.denies, *own.denies, own.tools)
        return replace(others, budget=own.budget, fallback=own.fallback, denies=denies)

    def stopped_by(self, candidate: PolicySet, running: list[Standing], now: float) -> list[str]:
        """Ids of the running tasks that would stop at their next check under another set, and do not under this one."""
        stopped = []
        for standing in running:
            task = standing.task
            if self._exhausted(task, standing.counters, candidate, now) and not self._exhausted(
                task, standing.counters, self.policies, now
            ):
                stopped.append(task.id)
        return stopped

    def effective(self, draft: TaskDraft, task: str | None, model_of: Callable[[str], str]) -> dict[str, Any]:
        """What is in force for a draft, for people: limits, model, policies with the reason for each."""
        policies = self.of(draft, task or "")
        limits = {budget: budget_policy.limit_of(policies.budget, budget) for budget in BUDGETS}
        return {
            "limits": limits,
            "model": draft.model or model_of(draft.agent),
            "policies": {kind: {"name": name, "why": why} for kind, (name, why) in policies.chosen.items()},
            "missing": list(policies.missing),
            "revision": policies.revision,
        }

    def _exhausted(self, task: Task, counters: Counters, under: PolicySet, now: float) -> bool:
        policies = self.of(task.draft, task.id, under)
        used = counters.used(max(0.0, now - task.submitted_at))
        return budget_policy.judge(policies.budget, used, counters.warned).exhausted is not None
