"""State: what one policy test has seen until now: the clock, the call under way, tallies, breakers, loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from harnessd.defence.trial.step import START, Step
from harnessd.domain.effect import canonical_json
from harnessd.domain.failure import Source
from harnessd.policy import PolicySet, TaskPolicies
from harnessd.policy import breaker as breaker_policy
from harnessd.policy import loop as loop_policy
from harnessd.policy import retry as retry_policy


@dataclass(slots=True)
class CallEpisode:
    """One call with all its tries, links and parks.

    Attributes:
        home: who was asked first; chains start there.
        key: tells a tool's call from the next one.
        links: who failed or was handed the call, with the tries that failed there.
        taken: steps of the class's ladder, by class and word.
    """

    source: Source
    home: str
    key: str
    began_at: float
    links: Counter[str] = field(default_factory=Counter)
    tries: int = 0
    parked_s: float = 0.0
    taken: dict[str, Counter[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody was asked and has not answered: an approval (policy kind tools) or a question (kind escalation)."""

    kind: Literal["approval", "question"]
    at: float


@dataclass(slots=True)
class State:
    """Mutable on purpose, and only here. `rules` are the task's policies at the step under way."""

    policies: PolicySet
    rules: TaskPolicies
    agent: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    at: float = START
    resumes_at: float = START
    call: CallEpisode | None = None
    away: dict[str, str] = field(default_factory=dict)  # a link that answers for another -> who it stands in for
    warned: set[str] = field(default_factory=set)
    breakers: dict[str, breaker_policy.BreakerState] = field(default_factory=dict)
    classified: tuple[Step, retry_policy.RetryPolicy, retry_policy.Classified] | None = None  # the last failure's
    failing: tuple[str, int] = ("", 0)  # the class of the model's last failures, and how many in a row
    ended: list[tuple[str, str | None]] = field(default_factory=list)  # tool and class of each result
    taken: dict[str, Counter[str]] = field(default_factory=dict)  # of loop and escalation
    turns: list[loop_policy.Turn] = field(default_factory=list)
    seen: set[tuple[str, str]] = field(default_factory=set)
    calls_of: Counter[str] = field(default_factory=Counter)
    asked: Asked | None = None
    starts: int = 0  # again, after crashes and hangs
    compactions: int = 0  # after an overflow, since the model last answered
    failed_compactions: int = 0

    def pass_time(self, after_s: float) -> None:
        """The next step comes after `after_s`, and not before a wait that was decided is over."""
        self.at = self.resumes_at = max(self.at + after_s, self.resumes_at)

    def wait(self, wait_s: float) -> None:
        """Nothing happens for so long."""
        self.resumes_at = self.at + wait_s

    def call_about(self, source: Source, dependency: str, key: str) -> CallEpisode:
        """The call that an attempt belongs to: the one under way, or a new one."""
        call = self.call
        if call is not None and call.source == source:
            handed_on = dependency != call.home and (dependency in call.links or self.away.get(dependency) == call.home)
            if handed_on or (call.home == dependency and call.key == key):
                return call
        self.call = CallEpisode(source, self.away.get(dependency, dependency), key, self.at)
        return self.call

    def person_acts(self) -> None:
        """A person was asked: what comes next is after the answer, and every tally starts again."""
        self.call = None
        self.taken.clear()
        self.turns.clear()
        self.step_taken()

    def step_taken(self) -> None:
        """Tallies start again after each step taken against them."""
        self.failing = ("", 0)
        self.ended.clear()

    def streak(self, error_class: str) -> int:
        """Failures of models of this class in a row, with the one that is judged."""
        before, count = self.failing
        return count + 1 if before == error_class else 1

    def count_failure(self, error_class: str) -> None:
        """A model's attempt failed."""
        self.failing = (error_class, self.streak(error_class))

    def tool_tallies(self, tool: str, error_class: str) -> tuple[int, int]:
        """Calls in a row that ended in this class, with the one that is judged; corrections of this tool in vain."""
        alike, vain = 1, 0
        for _, ended in reversed(self.ended):
            if ended != error_class:
                break
            alike += 1
        for name, ended in reversed(self.ended):
            if name == tool and ended is None:
                break
            vain += name == tool
        return alike, vain

    def attempt(self, dependency: str, outcome: breaker_policy.Outcome) -> str:
        """Tell a dependency's breaker of an attempt; the sentence of a change, or nothing."""
        limits = breaker_policy.settings(self.policies.breaker, dependency)
        before = self.breakers.get(dependency, breaker_policy.BreakerState())
        admitted = breaker_policy.admit(limits, before, self.at).state
        after = breaker_policy.settle(limits, admitted, outcome, self.at)
        self.breakers[dependency] = after
        if after.phase == admitted.phase:
            return ""
        how = f"opened for {after.open_s:g}s: {after.why}" if after.phase == "open" else "closed"
        return f"The breaker of {dependency} {how}."

    def closed_for(self, dependency: str) -> float:
        """Seconds for which an open breaker lets nothing through; 0: it does."""
        state = self.breakers.get(dependency)
        if state is None:
            return 0.0
        limits = breaker_policy.settings(self.policies.breaker, dependency)
        return breaker_policy.admit(limits, state, self.at).wait_s

    def end_turn(self, call: loop_policy.Call) -> loop_policy.Looping | None:
        """A tool call has its result: progress ends the episode of every ladder; else it may be a loop."""
        turn = loop_policy.Turn((call,))
        if loop_policy.progressed(turn, self.seen):
            self.taken.clear()
        self.seen.add((canonical_json([call.tool, call.arguments]), loop_policy.fingerprint(call.result)))
        self.turns.append(turn)
        self.ended.append((call.tool, call.error_class))
        looping = loop_policy.detect(self.rules.loop, self.turns)
        if looping is not None:
            self.turns.clear()
            self.ended.clear()
        return looping

    def labels_of(self, step: Step) -> dict[str, str]:
        """The task's labels and those of the step."""
        return {**self.labels, **step.labels}

    def agent_of(self, step: Step) -> str:
        """The task's agent, or the step's."""
        return str(step.facts.get("agent", self.agent))
