"""Policy: what operators declare, frozen as one PolicySet; each kind is a shape and a pure rule.

FLOOR 1. One YAML kind = one module. Nothing here reads a clock, a file or the environment: facts come in, judgements
go out, each with the line of the file that made it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harnessd.policy.assembly.assemble import content_hash
from harnessd.policy.assembly.kinds import TASK_KINDS
from harnessd.policy.assembly.references import Known, keyed_references, references, unresolved
from harnessd.policy.assembly.warnings import warnings
from harnessd.policy.assign import AssignPolicy, TaskFacts, assigned
from harnessd.policy.breaker import BreakerPolicy
from harnessd.policy.budget import BudgetPolicy, with_limits
from harnessd.policy.chaos import ChaosPolicy
from harnessd.policy.compaction import CompactionPolicy
from harnessd.policy.escalation import EscalationPolicy
from harnessd.policy.fallback import FallbackPolicy
from harnessd.policy.language.shape import Policy
from harnessd.policy.language.source import Place, Problem, did_you_mean
from harnessd.policy.limits import LimitsPolicy
from harnessd.policy.loop import LoopPolicy
from harnessd.policy.notify import NotifyPolicy
from harnessd.policy.retention import RetentionPolicy
from harnessd.policy.retry import RetryPolicy
from harnessd.policy.tools import ToolsPolicy

__all__ = ["Known", "Place", "Policy", "PolicySet", "Problem", "TaskFacts", "TaskPolicies"]


@dataclass(frozen=True, slots=True)
class TaskPolicies:
    """The policies of one task. `chosen`: kind -> (name, why). `missing`: sentences about named ones that are gone.

    `denies` are tools policies whose every deny holds all the same: for a pinned task the one in force; where another
    agent stands in, that of the task's own.
    """

    revision: int
    retry: RetryPolicy
    fallback: FallbackPolicy
    budget: BudgetPolicy
    loop: LoopPolicy
    tools: ToolsPolicy
    compaction: CompactionPolicy
    escalation: EscalationPolicy
    chosen: Mapping[str, tuple[str, str]]
    missing: tuple[str, ...] = ()
    denies: tuple[ToolsPolicy, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All kinds, frozen, one revision. `revision` is 0 until the store has numbered it."""

    policies: Mapping[tuple[str, str], Policy[Any]]
    revision: int = 0
    hash: str = ""

    @classmethod
    def of(cls, policies: Mapping[tuple[str, str], Policy[Any]]) -> PolicySet:
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

    @property
    def assign(self) -> AssignPolicy:
        """Which task gets which policies."""
        return self.policies["assign", "default"]

    @property
    def limits(self) -> LimitsPolicy:
        """What is allowed at the same time, per minute, per day."""
        return self.policies["limits", "default"]

    @property
    def breaker(self) -> BreakerPolicy:
        """The breakers' settings."""
        return self.policies["breaker", "default"]

    @property
    def notify(self) -> NotifyPolicy:
        """Who is told of what."""
        return self.policies["notify", "default"]

    @property
    def retention(self) -> RetentionPolicy:
        """How long things are kept."""
        return self.policies["retention", "default"]

    @property
    def chaos(self) -> ChaosPolicy:
        """Faults on purpose."""
        return self.policies["chaos", "default"]

    def problems(self, names: Known) -> tuple[Problem, ...]:
        """Names that lead nowhere, resolved once for the whole set; a price that nothing tells."""
        found: list[Problem] = []
        for policy in self.policies.values():
            for reference in (*references(policy.shape), *keyed_references(policy.tree)):
                problem = unresolved(reference, names)
                if problem is not None:
                    found.append(problem)
        found.extend(self._unknown_policies())
        found.extend(self._unknown_prices(names))
        found.extend(self._strange_features(names))
        return tuple(sorted(dict.fromkeys(found)))

    def warnings(self, names: Known) -> tuple[Problem, ...]:
        """What is allowed but is hardly meant."""
        return tuple(sorted(dict.fromkeys(warnings(self.policies, names))))

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
        by_rule = assigned(self.assign, facts)
        for kind in TASK_KINDS:
            wishes = [(overrides[kind], "named for this task")] if kind in overrides else []
            wishes += [(rule.name, rule.why) for rule in by_rule.get(kind, ())]
            wishes += [(agent_policies[kind], f"agent {facts.agent}")] if kind in agent_policies else []
            chosen[kind] = ("default", "nobody names another")
            for name, why in wishes:
                if self.get(kind, name) is not None:
                    chosen[kind] = (name, why)
                    break
                missing.append(f"{kind}/{name} ({why}) is gone")
        policies = {kind: self.policies[kind, name] for kind, (name, _why) in chosen.items()}
        return TaskPolicies(
            revision=self.revision,
            retry=policies["retry"],
            fallback=policies["fallback"],
            budget=with_limits(policies["budget"], budget),
            loop=policies["loop"],
            tools=policies["tools"],
            compaction=policies["compaction"],
            escalation=policies["escalation"],
            chosen=chosen,
            missing=tuple(missing),
        )

    def _unknown_policies(self) -> Iterator[Problem]:
        """Policies that assign names and nobody has written."""
        assign = self.get("assign")
        if assign is None:
            return
        for index, rule in enumerate(assign.shape.rules):
            for kind in rule.use.model_fields_set:
                name = getattr(rule.use, kind)
                if self.get(kind, name) is None:
                    place = assign.place("rules", index, "use", kind)
                    yield Problem.at(place, f'no {kind} policy "{name}"', did_you_mean(name, self.names(kind)))

    def _strange_features(self, names: Known) -> Iterator[Problem]:
        """A feature stands in for another one of its own agent only."""
        for (kind, name), policy in self.policies.items():
            chains = policy.shape.chains if kind == "fallback" else {}
            for home, links in chains.items():
                whose = names.feature_agents.get(home.removeprefix("feature/"))
                for link in links if whose is not None else ():
                    other = names.feature_agents.get(link.text.removeprefix("feature/"), whose)
                    if other != whose:
                        message = f"fallback/{name}: {link.text} belongs to agent {other}, {home} to agent {whose}"
                        yield Problem.at(link.place, message, f"write a feature of agent {whose}")

    def _unknown_prices(self, names: Known) -> Iterator[Problem]:
        """A cost limit needs at least one price to charge the unknown ones by."""
        unknown = [model for model, price in names.prices.items() if price is None]
        if not unknown:
            return
        for (kind, name), policy in self.policies.items():
            if kind != "budget" or policy.shape.limits.cost_usd is None or policy.shape.unknown_price != "dearest":
                continue
            place = policy.blame(("unknown_price",), ("limits", "cost_usd"))
            none = "no model in harness.yaml has a price"
            if len(unknown) < len(names.prices):
                none = "some models have no price and the others are free"
            message = f"budget/{name} limits cost_usd, but {none} ({', '.join(unknown)})"
            yield Problem.at(place, message, "write prices: {input: 3, output: 15}, or prices: free, for one of them")
