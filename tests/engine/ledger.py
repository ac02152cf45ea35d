"""A ledger in memory that takes units of work as a store does: whole or not at all, and by the same rules."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from harnessd.domain.effect import Effect, EffectState
from harnessd.domain.events import EventType
from harnessd.domain.record import (
    AppendNode,
    AskPerson,
    ChangeTask,
    FreezeSystem,
    KeepCheckpoint,
    MovePointer,
    PersonMessage,
    PlanEffect,
    Question,
    Record,
    RecordDecision,
    RecordEvent,
    SaveCounters,
    SettleEffect,
    TakeMessage,
)
from harnessd.domain.session import Checkpoint, Node, NodeKind, blocks_of, open_calls, path_to
from harnessd.domain.task import Counters, StopReason, TaskState, Verb, after
from harnessd.engine.situation import JournalView

# What may only grow, whatever happens to the process (I8).
GROWING = ("turns", "tool_calls", "tokens", "cost_usd", "working_s", "wall_s", "nodes", "effects")


def through_json(value: Any) -> Any:
    """The value as it comes back from a column."""
    return json.loads(json.dumps(value, allow_nan=False))


def stored_counters(counters: Counters) -> Counters:
    """The counters as they come back from a column."""
    known = through_json(asdict(counters))
    for name in ("warned", "pending_warnings"):
        known[name] = tuple(known[name])
    return Counters(**known)


@dataclass
class Ledger:
    """One task's rows."""

    task: str = "t1"
    state: TaskState = TaskState.QUEUED
    nodes: dict[str, Node] = field(default_factory=dict)
    pointer: str | None = None
    effects: dict[str, Effect] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    questions: dict[str, Question] = field(default_factory=dict)
    messages: dict[int, PersonMessage] = field(default_factory=dict)
    delivered: dict[int, str] = field(default_factory=dict)
    decisions: list[RecordDecision] = field(default_factory=list)
    events: list[RecordEvent] = field(default_factory=list)
    moves: list[ChangeTask] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    system: str | None = None
    until: float | None = None
    reason: StopReason | None = None
    recoveries: int = 0
    partial: dict[str, str] = field(default_factory=dict)  # what calls had written, by effect id
    ended_jobs: dict[str, int] = field(default_factory=dict)  # exit codes of those that ended by themselves

    @property
    def path(self) -> tuple[Node, ...]:
        """The nodes up to the pointer."""
        return path_to(self.nodes, self.pointer)

    @property
    def last_move(self) -> ChangeTask:
        """The task's newest own move."""
        return self.moves[-1]

    def commit(self, records: Sequence[Record], now: float) -> None:
        """One unit of work under the lease."""
        assert self.state is TaskState.RUNNING, f"a unit without a lease: the task is {self.state}"
        draft = copy.copy(self)
        rows = ("nodes", "effects", "questions", "messages", "delivered", "decisions", "events", "moves", "checkpoints")
        for name in rows:
            setattr(draft, name, copy.copy(getattr(self, name)))
        for record in records:
            draft._take(record, now)
        self.__dict__.update(draft.__dict__)

    def _take(self, record: Record, now: float) -> None:
        match record:
            case AppendNode(node):
                self._append(node)
            case MovePointer(expected, to):
                assert self.pointer == expected
                self.pointer = to
            case PlanEffect(effect):
                assert effect.id not in self.effects
                assert effect.state is EffectState.INTENT
                assert effect.node in self.nodes
                self.effects[effect.id] = replace(effect, arguments=through_json(dict(effect.arguments or {})))
            case SettleEffect(effect_id, state, result):
                unsettled = self.effects[effect_id].state
                # What nobody knew may be learnt later: from a probe, or from a person.
                assert unsettled.open or unsettled is EffectState.UNKNOWN, f"{effect_id} is settled twice"
                assert not state.open
                self.effects[effect_id] = replace(
                    self.effects[effect_id], state=state, result=through_json(dict(result))
                )
            case SaveCounters(counters):
                self._save(counters)
            case ChangeTask():
                self._move(record)
            case _:
                self._take_word(record, now)

    def _take_word(self, record: Record, now: float) -> None:
        match record:
            case RecordDecision():
                self.decisions.append(record)
            case RecordEvent():
                assert record.type in set(EventType)
                self.events.append(record)
            case TakeMessage(message, node):
                assert message in self.messages
                assert node in self.nodes
                del self.messages[message]
                self.delivered[message] = node
            case AskPerson():
                assert record.id not in self.questions, f"{record.id} is asked twice"
                self.questions[record.id] = self._question(record, now)
            case KeepCheckpoint(checkpoint):
                assert checkpoint.node in self.nodes
                assert checkpoint.ref not in {one.ref for one in self.checkpoints}
                self.checkpoints.append(checkpoint)
            case FreezeSystem(text):
                assert self.system is None
                self.system = text
            case _:
                raise AssertionError(record)

    def _append(self, node: Node) -> None:
        assert node.parent == self.pointer
        assert node.id not in self.nodes
        if node.kind is NodeKind.TOOL_RESULT:
            (block,) = blocks_of(node)
            assert getattr(block, "tool_use_id", None) in open_calls(self.path), "a result without an open call"
        self.nodes[node.id] = replace(node, payload=through_json(dict(node.payload)))
        self.pointer = node.id

    def _save(self, counters: Counters) -> None:
        for name in GROWING:
            assert getattr(counters, name) >= getattr(self.counters, name), f"{name} went down"
        assert set(self.counters.warned) <= set(counters.warned)
        assert len(counters.warned) == len(set(counters.warned))
        self.counters = stored_counters(counters)

    def _move(self, change: ChangeTask) -> None:
        self.moves.append(change)
        self.move(change.verb)
        self.until = change.until
        self.reason = change.reason if self.state.ended else None

    def _question(self, ask: AskPerson, now: float) -> Question:
        return Question(
            id=ask.id,
            task=self.task,
            kind=ask.kind,
            node=ask.node,
            call_id=ask.call_id,
            sentence=ask.sentence,
            choices=ask.choices,
            asked_at=now,
            until=ask.until,
            data=through_json(dict(ask.data)),
        )

    # --- what happens to the row from outside ---------------------------------------------------------------------

    def move(self, verb: Verb) -> None:
        """A move of TASK_TRANSITIONS."""
        target = after(self.state, verb)
        assert target is not None, f"{verb} in {self.state}"
        self.state = target

    def interrupt(self) -> None:
        """The worker died: queued again, one recovery charged."""
        self.move(Verb.HAND_BACK)
        self.recoveries += 1

    def answer(self, question: str, choice: str, say: str = "") -> None:
        """A person answers; the task is queued again."""
        self.questions[question] = replace(self.questions[question], choice=choice, say=say)
        if self.state is TaskState.WAITING:
            self.move(Verb.ANSWER)

    def say(self, text: str, now: float) -> PersonMessage:
        """A person's word, durable before anybody hears it."""
        message = PersonMessage(len(self.messages) + len(self.delivered) + 1, text, now)
        self.messages[message.id] = message
        return message

    @property
    def asked(self) -> list[Question]:
        """Questions that wait for a person."""
        return [question for question in self.questions.values() if question.choice is None]

    def journal(self) -> JournalView:
        """What recovery reads; questions only of what is still open, as the store gives them."""
        calls, there = set(open_calls(self.path)), {node.id for node in self.path}
        questions = tuple(
            question
            for question in self.questions.values()
            if question.call_id in calls or (question.call_id is None and question.node in there)
        )
        effects, messages = tuple(self.effects.values()), tuple(self.messages.values())
        return JournalView(effects, messages, questions, self.partial, ended_jobs=self.ended_jobs)
