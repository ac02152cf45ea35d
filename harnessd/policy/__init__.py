"""Policy: what operators declare, frozen as one PolicySet; each kind is a shape and a pure rule.

FLOOR 1. One YAML kind = one module. Nothing here reads a clock, a file or the environment: facts come in, judgements
go out, each with the line of the file that made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from harnessd.policy.assemble import content_hash
from harnessd.policy.budget import BudgetPolicy, with_limits
from harnessd.policy.kinds import TASK_KINDS
from harnessd.policy.references import Known, references, unresolved
from harnessd.policy.retry import RetryPolicy
from harnessd.policy.shape import Policy
from harnessd.policy.source import Place, Problem
from harnessd.policy.tools import ToolsPolicy

__all__ = ["Known", "Place", "Policy", "PolicySet", "Problem", "TaskFacts", "TaskPolicies"]


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What is known of a task when its policies are chosen."""

    id: str
    agent: str
    workspace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0


@dataclass(frozen=True, slots=True)
class TaskPolicies:
    """The policies of one task. `chosen`: kind -> (name, why). `missing`: sentences about named ones that are gone."""

    revision: int
    retry: RetryPolicy
    budget: BudgetPolicy
    tools: ToolsPolicy
    chosen: Mapping[str, tuple[str, str]]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All kinds, frozen, one revision. `revision` is 0 until the store has numbered it."""

    policies: Mapping[tuple[str, str], Policy[Any]]
    revision: int = 0
    hash: str = ""

    @classmethod
    def of(cls, policies: dict[tuple[str, str], Policy[Any]]) -> PolicySet:
        """A set with its content hash."""
        return cls(policies, hash=content_hash(policies))

    def at(self, revision: int) -> PolicySet:
        """The same set under its number."""
        numbered = {key: policy.at(revision) for key, policy in self.policies.items()}
        return replace(self, policies=numbered, revision=revision)

    def get(self, kind: str, name: str = "default") -> Policy[Any] | None:
        """One policy, or None."""
        return self.policies.get((kind, name))

    def names(self, kind: str) -> tuple[str, ...]:
        """The names of a kind's policies."""
        return tuple(name for known, name in self.policies if known == kind)

    def problems(self, names: Known) -> tuple[Problem, ...]:
        """Names that lead nowhere, resolved once for the whole set."""
        found: list[Problem] = []
        for policy in self.policies.values():
            for reference in references(policy.shape):
                problem = unresolved(reference, names)
                if problem is not None:
                    found.append(problem)
        return tuple(sorted(dict.fromkeys(found)))

    def for_task(
        self,
        facts: TaskFacts,
        agent_policies: Mapping[str, str],
        overrides: Mapping[str, str],
        budget: Mapping[str, float],
    ) -> TaskPolicies:
        """The policies of one task: `submit --policy`, then assign, then the agent's, then `default`.

        A named one that is gone gives way to the next in this order, with a sentence. `budget` holds limits of this
        task alone, in their base units, applied last.
        """
        chosen: dict[str, tuple[str, str]] = {}
        missing: list[str] = []
        for kind in TASK_KINDS:
            chosen[kind] = ("default", "nobody names another")
            for name, why in self._wishes(kind, facts, agent_policies, overrides):
                if self.get(kind, name) is not None:
                    chosen[kind] = (name, why)
                    break
                missing.append(f"{kind}/{name} ({why}) is gone")
        limits = cast("BudgetPolicy", self._chosen("budget", chosen))
        return TaskPolicies(
            revision=self.revision,
            retry=cast("RetryPolicy", self._chosen("retry", chosen)),
            budget=with_limits(limits, budget),
            tools=cast("ToolsPolicy", self._chosen("tools", chosen)),
            chosen=chosen,
            missing=tuple(missing),
        )

    def _chosen(self, kind: str, chosen: Mapping[str, tuple[str, str]]) -> Policy[Any]:
        return self.policies[kind, chosen[kind][0]]

    def _wishes(
        self, kind: str, facts: TaskFacts, agent_policies: Mapping[str, str], overrides: Mapping[str, str]
    ) -> list[tuple[str, str]]:
        """Who names which policy of a kind, last word first."""
        wishes: list[tuple[str, str]] = []
        if kind in overrides:
            wishes.append((overrides[kind], "named for this task"))
        if kind in agent_policies:
            wishes.append((agent_policies[kind], f"agent {facts.agent} in harness.yaml"))
        return wishes
