"""Transfer: a whole session on its way out of a store and into one; the port that reads and writes it in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harnessd.domain.effect import Effect
from harnessd.domain.record import Question, StoredDecision, StoredEvent
from harnessd.domain.session import Checkpoint
from harnessd.domain.task import Counters, Task, TaskDraft


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node as it lies in the store: `payload` byte for byte, `chain` the hash that ties it to the one before."""

    seq: int
    id: str
    parent: str | None
    kind: str
    payload: str
    at: float
    chain: bytes


@dataclass(frozen=True, slots=True)
class Outline:
    """A session at one moment, and how far each of its parts reached then.

    What is read afterwards in pages stops at these numbers, so that a task that runs on gives one consistent state.
    `settled` is when the newest outcome was recorded: what was settled later was still open.
    """

    task: Task
    nodes: int
    chain: bytes
    node: int
    effect: int
    decision: int
    event: int
    settled: float


@dataclass(frozen=True, slots=True)
class Brought:
    """A session as it was read from a file, checked: what becomes the history of a new task.

    Attributes:
        source: the id of the task it was, or a word for where a foreign transcript is from.
        nodes: parents before their children; `seq` says nothing.
        pointer: the node to go on from.
        system: the system prompt it was frozen with; None: the agent's own.
    """

    source: str
    draft: TaskDraft
    nodes: Sequence[StoredNode]
    effects: Sequence[Effect]
    decisions: Sequence[StoredDecision]
    pointer: str | None
    counters: Counters
    system: str | None


class TransferStore(Protocol):
    """Sessions out of the store in pages, and into it in one unit."""

    async def outline(self, task: str) -> Outline:
        """The task and the bounds of its session, in one consistent read. Raises HarnessError for an unknown task."""

    async def stored_nodes(self, of: Outline, after: int, limit: int) -> Sequence[StoredNode]:
        """The next nodes of all branches in order of creation, behind sequence number `after`."""

    async def stored_effects(self, of: Outline, after: int, limit: int) -> Sequence[tuple[int, Effect]]:
        """The next rows of the journal, each with its place, as they stood at the moment of the outline."""

    async def stored_decisions(self, of: Outline, after: int, limit: int) -> Sequence[tuple[int, StoredDecision]]:
        """The next decisions, each with its place."""

    async def stored_events(self, of: Outline, after: int, limit: int) -> Sequence[StoredEvent]:
        """The next events; nodes, which are events too, are left out."""

    async def stored_questions(self, of: Outline) -> Sequence[Question]:
        """What persons were asked, answered or not."""

    async def stored_checkpoints(self, of: Outline) -> Sequence[Checkpoint]:
        """What is known of the checkpoints."""

    async def bring_in(self, session: Brought, now: float, by: str) -> Task:
        """A new task, paused, with this history; all of it in one unit of work."""
