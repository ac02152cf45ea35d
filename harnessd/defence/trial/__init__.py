"""Trial: the real rules on virtual time: steps go in, what would be decided comes out; nothing is done.

What policy tests and, later, a replay of recorded history ask. A step that is repeated gives its last answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from harnessd.defence.trial.calling import called
from harnessd.defence.trial.failing import answered, breaker_open, failed
from harnessd.defence.trial.judging import agent_failed, compacted, in_window, kept, on_disk, time_passed, told, used
from harnessd.defence.trial.state import State
from harnessd.defence.trial.step import Answer, Step
from harnessd.policy import PolicySet, TaskFacts, TaskPolicies

# A task of which no share is told stands in no part of all tasks but the whole.
_LAST = 1 - 2**-53

__all__ = ["Answer", "Chosen", "Step", "Trial"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Whose policies a trial is under.

    Attributes:
        named: kind -> policy, as `submit --policy` names them.
        agent: `assign` and the agent's own policies choose; empty: no agent is known.
        agent_policies: agent -> kind -> policy, as harness.yaml declares them.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    agent: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    agent_policies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Trial:
    """One task under a policy set. Pure: time is what the steps say."""

    def __init__(self, policies: PolicySet, chosen: Chosen) -> None:
        self._policies, self._chosen = policies, chosen
        self._state = State(policies, self._rules(Step()), chosen.agent, dict(chosen.labels))

    def take(self, step: Step) -> Answer:
        """What is decided at this step, the last time if it is repeated."""
        answer = Answer("none")
        for _ in range(step.times):
            answer = self._once(step)
        return answer

    def _once(self, step: Step) -> Answer:
        state = self._state
        state.rules = self._rules(step)
        state.pass_time(step.after_s)
        answer = _judge(state, step)
        return replace(answer, policies={kind: name for kind, (name, _) in state.rules.chosen.items()})

    def _rules(self, step: Step) -> TaskPolicies:
        chosen, facts = self._chosen, step.facts
        agent = str(facts.get("agent", chosen.agent))
        task = TaskFacts(
            "trial",
            agent,
            str(facts.get("workspace", "")),
            {**chosen.labels, **step.labels},
            int(facts.get("priority", 0)),
            facts.get("share", _LAST),
        )
        return self._policies.for_task(task, chosen.agent_policies.get(agent, {}), chosen.named, {})


def _judge(s: State, step: Step) -> Answer:
    if step.context is not None:
        return in_window(s, step.context)
    if step.gained is not None:
        return compacted(s, step.gained)
    if step.disk_free is not None:
        return on_disk(s, step.disk_free)
    plain: tuple[tuple[bool, Callable[[State, Step], Answer]], ...] = (
        (bool(step.used), used),
        (bool(step.kept), kept),
        ("event" in step.facts, told),
        (step.about_agent, agent_failed),
    )
    for applies, judge in plain:
        if applies:
            return judge(s, step)
    return _attempt(s, step)


def _attempt(s: State, step: Step) -> Answer:
    asked = "tool" in step.facts or "model" in step.facts
    if not asked:
        return time_passed(s)
    # Whoever was asked has answered, or nothing would go on.
    s.asked = None
    if step.failed:
        return failed(s, step)
    waits = 0.0 if "lasting" in step.facts else s.closed_for(step.facts.get("tool") or step.facts["model"])
    if waits:
        return breaker_open(s, step, waits)
    return called(s, step) if "tool" in step.facts else answered(s, step.facts["model"])
