"""Catalog: the agents and models of harness.yaml as the runtime needs them, free of how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harnessd.domain.ports import Tool
from harnessd.domain.task import Task
from harnessd.engine.protocol import ModelFacts, RunBrief, ToolFacts


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """One agent: what it is told, what it may use, which policies it asks for."""

    name: str
    system: str
    tools: tuple[str, ...]
    model: str
    policies: Mapping[str, str] = field(default_factory=dict)
    wanted: str = ""  # JSON Schema of its answer, as JSON text
    safe: str = ""  # the answer where the model's cannot be read, as JSON text


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything a task may name."""

    agents: Mapping[str, AgentFacts]
    models: Mapping[str, ModelFacts]
    tools: Mapping[str, Tool]

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
        tools = tuple(ToolFacts(self.tools[name].spec, self.tools[name].effect) for name in agent.tools)
        return RunBrief(
            task=task.id,
            prompt=task.draft.prompt,
            agent=agent.name,
            workspace=task.draft.workspace,
            system=task.system if task.system is not None else agent.system,
            model=model,
            tools=tools,
            submitted_at=task.submitted_at,
            labels=task.draft.labels,
            priority=task.draft.priority,
            models=self.models,
            recoveries=task.recoveries,
            wanted=agent.wanted,
            safe=agent.safe,
        )
