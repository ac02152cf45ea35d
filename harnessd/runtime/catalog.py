"""Catalog: the agents, features and models of harness.yaml as the runtime needs them, free of how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.ports import History, Refused, Tool
from harnessd.domain.task import Task
from harnessd.domain.workspace import Touches
from harnessd.engine.context.report import report
from harnessd.engine.protocol import ActOf, Fits, ModelFacts, RoleFacts, RunBrief, ToolFacts
from harnessd.policy import TaskPolicies

_FORM = (
    "When the task is done, your last answer is one JSON value and nothing else, "
    "without words around it. It fits this JSON Schema: {form}"
)


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """One agent: what it is told, what it may use, which policies it asks for."""

    name: str
    system: str
    tools: tuple[str, ...]
    model: str
    policies: Mapping[str, str] = field(default_factory=dict)
    wanted: str = ""  # JSON Schema of its answer, as JSON text
    safe: str = ""  # the answer where the model's cannot be taken, as JSON text
    fits: Fits | None = None  # what of an answer does not fit `wanted`
    feature: str = ""  # with which its tasks begin


@dataclass(frozen=True, slots=True)
class FeatureFacts:
    """A named set of tools and instructions of an agent."""

    name: str
    agent: str
    tools: tuple[str, ...]
    add: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything a task may name."""

    agents: Mapping[str, AgentFacts]
    models: Mapping[str, ModelFacts]
    tools: Mapping[str, Tool]
    features: Mapping[str, FeatureFacts] = field(default_factory=dict)
    touches: Mapping[str, Touches] | None = None  # what tools may write of a workspace; None: no checkpoints are taken
    acts: Mapping[str, ActOf] = field(default_factory=dict)  # see ToolFacts

    def model_of(self, agent: str) -> str:
        """The alias of an agent's model; empty if there is no such agent any more."""
        return self.agents[agent].model if agent in self.agents else ""

    def brief(self, task: Task) -> RunBrief | str:
        """What a run knows from the start, or the sentence why there is none: harness.yaml no longer fits the task."""
        agent = self.agents.get(task.draft.agent)
        if agent is None:
            return f"Agent {task.draft.agent!r} is no longer in harness.yaml."
        alias = task.draft.model or agent.model
        model = self.models.get(alias)
        if model is None:
            return f"Model {alias!r} is no longer in harness.yaml."
        wanted = task.draft.feature or agent.feature
        feature = self.features.get(wanted)
        if wanted and feature is None:
            return f"Feature {wanted!r} is no longer in harness.yaml."
        return RunBrief(
            task=task.id,
            prompt=task.draft.prompt,
            agent=agent.name,
            workspace=task.draft.workspace,
            system=task.system if task.system is not None else _system(agent, feature),
            model=model,
            tools=self._tools(agent.tools if feature is None else feature.tools),
            submitted_at=task.submitted_at,
            labels=task.draft.labels,
            priority=task.draft.priority,
            models=self.models,
            recoveries=task.recoveries,
            wanted=agent.wanted,
            safe=agent.safe,
            fits=agent.fits,
            feature=wanted,
            roles=self._roles(),
            checkpoints=self.touches is not None,
            keys_of=task.draft.keys_of or "",
        )

    def window(self, history: History, policies: TaskPolicies) -> Mapping[str, Any] | Refused:
        """What fills a task's window, by the figures that its run decides by."""
        brief = self.brief(history.task)
        if isinstance(brief, str):
            return Refused("refused", brief, "Put it back, or submit the task anew.")
        return report(brief, history.path, history.task.counters, policies)

    def _roles(self) -> dict[str, RoleFacts]:
        """What chains may name: features with their tools, agents with their models too."""
        roles = {
            f"feature/{one.name}": RoleFacts(
                f"feature/{one.name}", self._tools(one.tools), add=one.add, belongs_to=one.agent
            )
            for one in self.features.values()
        }
        for agent in self.agents.values():
            feature = self.features.get(agent.feature)
            tools = self._tools(agent.tools if feature is None else feature.tools)
            words = agent.system if feature is None else f"{agent.system}\n\n{feature.add}".strip()
            roles[f"agent/{agent.name}"] = RoleFacts(
                f"agent/{agent.name}", tools, model=self.models.get(agent.model), add=words
            )
        return roles

    def _tools(self, names: Iterable[str]) -> tuple[ToolFacts, ...]:
        known = self.touches or {}
        tools = ((name, self.tools[name]) for name in names if name in self.tools)
        return tuple(
            ToolFacts(tool.spec, tool.effect, known.get(name, "anything"), self.acts.get(name, dict))
            for name, tool in tools
        )


def _system(agent: AgentFacts, feature: FeatureFacts | None) -> str:
    """The system prompt of a session that begins now; it is frozen then."""
    parts = (
        agent.system,
        feature.add if feature is not None else "",
        _FORM.format(form=agent.wanted) if agent.wanted else "",
    )
    return "\n\n".join(part for part in parts if part)
