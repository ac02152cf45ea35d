"""Situation: what a run knows at this moment, and the commands it has decided on until now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harnessd.defence.line3_repair.remembering import Memory
from harnessd.domain.decision import Decision
from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.failure import IllegalEvent
from harnessd.domain.messages import ToolUseBlock
from harnessd.domain.record import (
    AppendNode,
    PersonMessage,
    PlanEffect,
    Question,
    Record,
    RecordDecision,
    RecordEvent,
    SaveCounters,
    SettleEffect,
)
from harnessd.domain.session import Node, NodeKind, assistant_message, letters, open_calls
from harnessd.domain.task import Counters, StopReason
from harnessd.domain.workspace import Uncovered
from harnessd.engine.acts import Done, Journal
from harnessd.engine.protocol import Act, Command, RunBrief, RunState, StepDown
from harnessd.policy import TaskPolicies

# What is known of the window for as long as no person acts: failed compactions, and that no more is tried.
_OF_AN_EPISODE = ("failures", "open", "trimmed", "tries", "told", "fixed", "most", "said")


@dataclass(frozen=True, slots=True)
class JournalView:
    """What was recorded beside the path: effects, words of persons not yet delivered, questions with their answers.

    `partial` holds what an interrupted call had written until the crash, by effect id; `changed` the nodes of results
    that came with a changed workspace, `ended_jobs` the exit codes of background jobs that ended by themselves.
    """

    effects: tuple[Effect, ...] = ()
    messages: tuple[PersonMessage, ...] = ()
    questions: tuple[Question, ...] = ()
    partial: Mapping[str, str] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()
    ended_jobs: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class PendingCall:
    """A tool call of the last reply that has no result yet. `place` is its number in the reply, from 0."""

    use: ToolUseBlock
    place: int
    tries: int = 0
    first_at: float | None = None
    not_before: float = 0.0
    effect: Effect | None = None
    allowed: bool = False
    stand_in: str = ""  # the tool that takes over with the same arguments
    captured: bool = False  # the workspace was captured before it

    @property
    def tool(self) -> str:
        """The tool that does it."""
        return self.stand_in or self.use.name

    @property
    def name(self) -> str:
        """The tool's name in policies."""
        return f"tool/{self.tool}"


@dataclass(slots=True)
class Look:
    """Where the looks at the workspace stand: the call that waits for one, whether one is due and at what."""

    call: PendingCall | None = None
    due: bool = False
    dirty: tuple[str, ...] | None = None
    uncovered: tuple[Uncovered, ...] = ()  # as last told
    changed: set[str] = field(default_factory=set)  # the results that came with a changed workspace, by node


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run will end once nothing is in flight."""

    reason: StopReason
    sentence: str
    error_class: str | None = None
    next_steps: tuple[tuple[str, ...], ...] = ()
    not_started: str = "the task was stopped"


@dataclass(slots=True)
class Situation:
    """Mutable on purpose, and only here: the machine fills it during one `receive` and gives the commands away."""

    brief: RunBrief
    path: list[Node]
    counters: Counters
    own: RunBrief  # without the roles that stand in
    policies: TaskPolicies | None = None  # in force for the event under way
    state: RunState = RunState.NEW
    pending: list[PendingCall] = field(default_factory=list)
    in_flight: dict[str, PendingCall | None] = field(default_factory=dict)  # effect id -> its call; None: the model
    effects: dict[str, Effect] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    done: Done = field(default_factory=Done)
    mail: list[PersonMessage] = field(default_factory=list)
    questions: dict[str, Question] = field(default_factory=dict)  # by id
    partial: Mapping[str, str] = field(default_factory=dict)
    ended_jobs: dict[str, int] = field(default_factory=dict)  # exit codes of jobs that ended by themselves
    ending: Ending | None = None
    step_down: StepDown | None = None
    last_at: float | None = None
    at: float = 0.0  # of the event under way
    sizes: dict[str, int] = field(default_factory=dict)  # our estimates in tokens, by node
    keep: dict[str, str] = field(default_factory=dict)  # whole texts to lie as files before the next call, by name
    laid_out: bool = False  # those of earlier runs lie there again
    records: list[Record] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    saved: Counters = field(default_factory=Counters)
    views: Memory = field(default_factory=Memory)  # the legal beginning of the last view
    doing: str = ""
    look: Look = field(default_factory=Look)

    @property
    def head(self) -> str | None:
        """Id of the newest node of the path."""
        return self.path[-1].id if self.path else None

    @property
    def asked_node(self) -> str:
        """Id of the newest assistant node: the one whose calls are open, while any are."""
        return next(node.id for node in reversed(self.path) if node.kind is NodeKind.ASSISTANT)

    def count(self, **changes: Any) -> None:
        """Change counters."""
        self.counters = replace(self.counters, **changes)

    @property
    def asking(self) -> str | None:
        """A question about the task, put to a person as soon as nothing is in flight."""
        return self.counters.asking or None

    @property
    def rolling(self) -> bool:
        """Whether it is decided to go back, as soon as nothing is in flight; a restart does not forget it."""
        return bool(self.counters.rollback)

    def effect_of(self, node: str, call: str) -> Effect | None:
        """The newest row of the journal for a call, by the answer that asked for it and the call's id."""
        rows = self.journal.of_call.get((node, call))
        return self.effects[rows[-1]] if rows else None

    @property
    def notes(self) -> Mapping[str, Any]:
        """The durable state of tools as it stands on the path, by tool name (the agent's task list)."""
        return dict(self.done.follow(self.path, self.acts_asked).notes)

    def acts_asked(self, node: Node) -> list[ToolUseBlock]:
        """The calls of an answer, with what makes the act in place of all arguments."""
        return [self.act_of(use) for use in asked_calls(node)]

    def act_of(self, use: ToolUseBlock) -> ToolUseBlock:
        """A call with what its tool takes for the act; the call itself where the agent has no such tool."""
        tool = next((tool for tool in self.brief.tools if tool.spec.name == use.name), None)
        if tool is None or use.arguments is None:
            return use
        return replace(use, arguments=tool.act(use.arguments))

    def person_acts(self) -> None:
        """A person decided or said something: ladders and tallies begin anew."""
        now = self.counters.nodes
        known = {name: value for name, value in self.counters.context.items() if name not in _OF_AN_EPISODE}
        if self.counters.context.get("open"):
            sentence = "A person decided how to go on: the history is made smaller again."
            self.say("breaker_closed", dependency=f"compaction/{self.brief.task}", sentence=sentence)
        self.count(taken={}, streak={}, misfits={}, tallies_from=now, loop_from=now)
        self.count(recoveries_seen=self.brief.recoveries)
        self.count(context=known)

    @property
    def rules(self) -> TaskPolicies:
        """The policies in force for the event under way."""
        if self.policies is None:
            raise IllegalEvent("no event is under way")
        return self.policies

    def append(self, kind: NodeKind, payload: Mapping[str, Any]) -> Node:
        """A new node under the head."""
        number = self.counters.nodes + 1
        node = Node(id=f"n{number}", parent=self.head, kind=kind, payload=payload, at=self.at)
        self.count(nodes=number, session_bytes=self.counters.session_bytes + letters(payload))
        self.path.append(node)
        self.records.append(AppendNode(node))
        return node

    def plan(self, effect: Effect) -> Effect:
        """An intent, numbered here."""
        number = self.counters.effects + 1
        planned = replace(effect, id=f"e{number}", state=EffectState.INTENT)
        self.count(effects=number)
        self.effects[planned.id] = planned
        self.journal.add(planned)
        self.records.append(PlanEffect(planned))
        return planned

    def plan_model_call(self, alias: str, attempt: int, arguments: Mapping[str, Any]) -> Effect:
        """The intent of one attempt of a model call; what it may cost is among the arguments."""
        return self.plan(
            Effect(
                id="",
                kind="model",
                node=self.head or "",
                call_id="",
                name=f"model/{alias}",
                effect_class=EffectClass.READ_ONLY,
                state=EffectState.INTENT,
                arguments=arguments,
                attempt=attempt,
                at=self.at,
            )
        )

    def settle(self, effect: str, state: EffectState, **result: Any) -> None:
        """The outcome of an intent."""
        self.effects[effect] = replace(self.effects[effect], state=state, result=result)
        self.records.append(SettleEffect(effect, state, result))

    def decide(self, decision: Decision, call_id: str | None = None) -> None:
        """Keep a decision for `why`."""
        self.records.append(RecordDecision(self.head, call_id, decision))

    def say(self, type_: str, **data: Any) -> None:
        """Keep an event."""
        self.records.append(RecordEvent(type_, data, self.head))

    def used(self) -> dict[str, float]:
        """What the budgets count, by the names policies have for them."""
        used = self.counters.used(max(0.0, self.at - self.brief.submitted_at))
        return used | {"session_nodes": self.counters.nodes, "session_bytes": self.counters.session_bytes}

    def pass_time(self, at: float) -> None:
        """Move the task's clocks: wall time runs while a worker holds it, working time while a call is under way."""
        step = max(0.0, at - self.last_at) if self.last_at is not None else 0.0
        # A wall clock may jump back; the task's own time never does.
        self.at = self.last_at = max(at, self.last_at or at)
        if step:
            working = self.counters.working_s + (step if self.in_flight else 0.0)
            self.count(wall_s=self.counters.wall_s + step, working_s=working)

    def take_commands(self) -> tuple[Command, ...]:
        """Records first, acts after; the counters go with the records they belong to.

        Where nothing else is recorded, a clock that ran on is no reason to write.
        """
        saved = self.saved
        if not self.records:
            saved = replace(saved, wall_s=self.counters.wall_s, working_s=self.counters.working_s)
        if self.counters != saved:
            self.records.append(SaveCounters(self.counters, self.doing))
            self.saved = self.counters
        commands: tuple[Command, ...] = (*self.records, *self.acts)
        self.records, self.acts = [], []
        return commands


def situation_of(brief: RunBrief, path: tuple[Node, ...], journal: JournalView, counters: Counters) -> Situation:
    """Rebuild a run's knowledge from what was recorded."""
    situation = Situation(
        brief=brief,
        own=brief,
        path=list(path),
        counters=counters,
        effects={effect.id: effect for effect in journal.effects},
        mail=list(journal.messages),
        questions={question.id: question for question in journal.questions},
        partial=journal.partial,
        ended_jobs=dict(journal.ended_jobs),
        saved=counters,
    )
    for effect in journal.effects:
        situation.journal.add(effect)
    situation.look.changed |= journal.changed
    situation.pending = _pending_calls(situation)
    if counters.ending:
        situation.ending = _ending(counters.ending)
    return situation


def _ending(stored: Mapping[str, Any]) -> Ending:
    """The ending that was decided before the run was cut off."""
    return Ending(**{**stored, "reason": StopReason(stored["reason"]), "next_steps": _steps(stored["next_steps"])})


def _steps(stored: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(step) for step in stored)


def _pending_calls(situation: Situation) -> list[PendingCall]:
    wanted = open_calls(situation.path)
    if not wanted:
        return []
    asked = next(node for node in reversed(situation.path) if node.kind is NodeKind.ASSISTANT)
    pending = []
    for place, use in enumerate(asked_calls(asked)):
        if use.id not in wanted:
            continue
        rows = [
            e for e in situation.effects.values() if e.node == asked.id and e.call_id == use.id and e.kind == "tool"
        ]
        call = PendingCall(use, place, tries=sum(not row.state.open for row in rows))
        call.stand_in = situation.counters.stand_ins.get(use.id, "")
        if rows:
            call.first_at = rows[0].at
            # An unknown outcome stays with its call until a person settles it, over any number of restarts; one that
            # may be repeated has been tried, and no more.
            unknown = rows[-1].state is EffectState.UNKNOWN and not repeatable(rows[-1])
            call.effect = rows[-1] if rows[-1].state.open or unknown else None
        pending.append(call)
    return pending


def asked_calls(node: Node) -> tuple[ToolUseBlock, ...]:
    """The calls of an assistant node as they are made: with the arguments that a shim has put right."""
    mended = node.payload.get("facts", {}).get("mended", {})
    uses = assistant_message(node).tool_uses
    if not mended:
        return uses
    return tuple(
        replace(use, arguments=mended[str(place)], raw=None) if str(place) in mended else use
        for place, use in enumerate(uses)
    )


def repeatable(effect: Effect) -> bool:
    """After a crash the same act may be performed again with the same key."""
    return effect.effect_class in (EffectClass.READ_ONLY, EffectClass.IDEMPOTENT)
