"""Record: what a running task wants to be durable before anything is done; plain data that every store understands.

A tuple of records is one unit of work: all of it is committed under the task's lease epoch, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harnessd.domain.decision import Decision
from harnessd.domain.effect import Effect, EffectState
from harnessd.domain.session import Checkpoint, Node
from harnessd.domain.task import Counters, StopReason, Verb


@dataclass(frozen=True, slots=True)
class AppendNode:
    """A new node whose parent is the pointer; the pointer moves to it (compare-and-set on the parent)."""

    node: Node


@dataclass(frozen=True, slots=True)
class MovePointer:
    """The pointer goes from `expected` to `to`, an existing node; a later append there makes a branch."""

    expected: str | None
    to: str | None


@dataclass(frozen=True, slots=True)
class PlanEffect:
    """The intent, durable before the effect: state `intent`."""

    effect: Effect


@dataclass(frozen=True, slots=True)
class SettleEffect:
    """The outcome of an intent: `done`, `failed` or `unknown`; its result node stands in the same unit."""

    effect: str
    state: EffectState
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordDecision:
    """A decision with its rule and evidence, at the node where the task stood."""

    node: str | None
    call_id: str | None
    decision: Decision


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Something people may want to see; `type` is one closed list (policies.md 3.4 plus the task's steps)."""

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    node: str | None = None


@dataclass(frozen=True, slots=True)
class SaveCounters:
    """What the task has used until now, and one line on what it is doing."""

    counters: Counters
    doing: str = ""


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """The task's own move in TASK_TRANSITIONS; releases the lease unless it stays running.

    `until` is the wake-up time of a parked task, or the end of a wait for a person; `dependency` what a parked task
    waits for (`model/primary`), so that it can be woken when that is well again.
    """

    verb: Verb
    reason: StopReason | None = None
    error_class: str | None = None
    sentence: str = ""
    next_steps: tuple[tuple[str, ...], ...] = ()
    until: float | None = None
    why: str = ""
    waits_for: Literal["approval", "answer"] | None = None
    dependency: str | None = None


@dataclass(frozen=True, slots=True)
class TakeMessage:
    """A person's message has become a node."""

    message: int
    node: str


@dataclass(frozen=True, slots=True)
class AskPerson:
    """A question that waits in the inbox without a worker. `kind`: approval, outcome or question."""

    id: str
    kind: Literal["approval", "outcome", "question"]
    node: str
    call_id: str | None
    sentence: str
    choices: tuple[str, ...]
    until: float | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeepCheckpoint:
    """A checkpoint counts from here on: its contents are durable, and this row names them."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class FreezeSystem:
    """The system prompt of the session, frozen at its start so that the provider's prompt cache holds."""

    text: str


Record = (
    AppendNode
    | MovePointer
    | PlanEffect
    | SettleEffect
    | RecordDecision
    | RecordEvent
    | SaveCounters
    | ChangeTask
    | TakeMessage
    | AskPerson
    | FreezeSystem
    | KeepCheckpoint
)


@dataclass(frozen=True, slots=True)
class PersonMessage:
    """A word of a person to a task, not yet a node; or our own: a background job ended.

    `kind`: `person`; `notice`, which keeps a task going; `aside`, which is read if there is another turn.
    """

    id: int
    text: str
    at: float
    kind: str = "person"


@dataclass(frozen=True, slots=True)
class Question:
    """A row of the inbox; `choice` is None while it waits."""

    id: str
    task: str
    kind: str
    node: str
    call_id: str | None
    sentence: str
    choices: tuple[str, ...]
    asked_at: float
    until: float | None = None
    choice: str | None = None
    say: str = ""
    answered_by: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One event as everybody sees it: `{seq, at, task, node, type, data, revision, trace}`."""

    seq: int
    at: float
    task: str | None
    node: str | None
    type: str
    data: Mapping[str, Any]
    revision: int = 0
    trace: str = ""


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision as `why` reads it back; `decision` is its JSON."""

    at: float
    task: str
    node: str | None
    call_id: str | None
    decision: Mapping[str, Any]
