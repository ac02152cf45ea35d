"""Ports: what the runtime needs from the world, as Protocols that adapters fill and one contract suite each proves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from harnessd.domain.durable.backup import Backup
from harnessd.domain.durable.breaker_store import BreakerStore
from harnessd.domain.durable.outbox import OutboxStore
from harnessd.domain.durable.retention import RetentionStore
from harnessd.domain.durable.revision import RevisionStore
from harnessd.domain.durable.store_figures import FiguresStore
from harnessd.domain.effect import Effect, EffectClass
from harnessd.domain.failure import Failure
from harnessd.domain.jobs import JobStore, OwedJob, StartStore
from harnessd.domain.messages import ModelReply, ModelRequest, ToolSpec
from harnessd.domain.record import PersonMessage, Question, Record, StoredDecision, StoredEvent
from harnessd.domain.rollback import RollbackStore
from harnessd.domain.session import Node
from harnessd.domain.task import Lease, Task, TaskDraft, TaskState, Verb
from harnessd.domain.transfer import TransferStore
from harnessd.domain.workspace import CheckpointStore


class Clock(Protocol):
    """Time, handed in."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""

    def monotonic(self) -> float:
        """Seconds that never jump; for durations."""


# --- model services -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallClocks:
    """Limits of one attempt, in seconds: connect; sent to first useful event; between useful events; whole call."""

    connect_s: float = 10.0
    first_event_s: float = 55.0
    idle_s: float = 55.0
    call_s: float = 600.0


Progress = Callable[[str], None]  # called with one word for each useful event: `text`, `thinking`, `tool_use`


class ModelProvider(Protocol):
    """One model alias behind one wire protocol. Never raises for what a service does: that is a `Failure`."""

    async def call(self, request: ModelRequest, clocks: CallClocks, progress: Progress) -> ModelReply | Failure:
        """Perform one attempt. No retry here: retries live in the runtime's gateway only.

        Cancelling the awaiting task closes the connection.
        """

    async def aclose(self) -> None:
        """Give back connections."""


# --- tools ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What policy allows one call: seconds until `on_timeout`, of a background job's life, and bytes to the model."""

    timeout_s: float = 120.0
    timeout_max_s: float = 600.0
    on_timeout: str = "background"  # kill | background
    life_s: float | None = 7200.0
    output_max: int = 65536
    silence_s: float | None = None  # without output and CPU time in its whole tree; then it is ended


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where a call runs. `artefacts` is the task's folder outside the workspace for whole outputs and job files."""

    task: str
    call_id: str
    workspace: str
    artefacts: str
    limits: ToolLimits
    environment: Mapping[str, str]  # the complete environment of the child, built from nothing
    key: str | None = None  # idempotency key, where the effect class has one
    notes: Mapping[str, Any] = field(default_factory=dict)  # the tool's own durable state (task_list), by tool name


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """A tool's own answer, already cut to `output_max`.

    `artefact` names the file that holds the whole, if it was cut. `job` is set when the call was handed over to the
    background. `note` replaces the tool's durable state.
    """

    text: str
    is_error: bool = False
    exit_code: int | None = None
    artefact: str | None = None
    job: str | None = None
    note: Any = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Tool(Protocol):
    """Something an agent can do. Never raises for what the world does: that is a `Failure` with hint and advice."""

    spec: ToolSpec
    effect: EffectClass  # the tool's own declaration; policy decides

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        """Perform one call with arguments that fit the schema.

        Cancelling the awaiting task ends everything the call started, within 2 s, before the cancellation goes on.
        """


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A background job's end, for the model to be woken by. `text` holds the words for it, output's end included."""

    task: str
    job: str
    exit_code: int
    text: str


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """What a watchdog compares: bytes written so far, and CPU seconds of the whole process tree so far."""

    output_bytes: int
    cpu_s: float


class JobKeeper(Protocol):
    """Background jobs of all tasks: whoever ends a task ends its jobs."""

    async def end_task(self, task: str) -> int:
        """Kill and verify everything a task left running; gives the number of jobs ended."""

    def running(self, task: str) -> Sequence[str]:
        """Ids of a task's jobs that still run."""

    def owed(self, task: str) -> Sequence[OwedJob]:
        """The jobs whose end the model was promised to be told, and was not told yet."""

    def signs_of_life(self, task: str) -> Mapping[str, SignOfLife]:
        """By call id, of everything the task has running: calls that are waited for and jobs."""

    def listen(self, heard: Callable[[JobEnded], None]) -> None:
        """Have jobs that end by themselves (or by their life limit) told, on the loop's thread; not what we end."""

    async def aclose(self) -> None:
        """End all jobs of all tasks."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a name in a workspace is. `link` is a symlink's target; `mode` the permission bits."""

    kind: Literal["file", "folder", "link", "other"]
    size: int
    mode: int
    link: str = ""


class Confinement(Protocol):
    """A workspace from which no path leads out: every name is opened beneath the root by the kernel's own rules.

    Paths are relative to the root; an absolute one is understood where it lies textually beneath the root. Raises
    OSError: EXDEV where a path leaves the workspace (`..`, a link outwards, a magic link), ELOOP, ENOENT, and so on;
    EINVAL for a name that no file can have. Not for the event loop's thread: all of it may block on the disk.
    """

    def relative(self, path: str) -> str:
        """The path as seen from the root, in plain text: nothing is opened or resolved."""

    def open_read(self, path: str) -> int:
        """A descriptor of a regular file; EISDIR for a folder, ENXIO for a pipe, socket or device. Never waits."""

    def write(self, path: str, content: bytes) -> bool:
        """Replace or create a file in one step, through links that stay inside; True if it is new.

        Missing folders are made; an existing file's mode is kept.
        """

    def facts(self, path: str) -> FileFacts:
        """What the name is, its links followed."""

    def entries(self, path: str) -> Sequence[tuple[str, FileFacts]]:
        """Names in a folder, sorted; links are not followed."""

    def close(self) -> None:
        """Give the root's descriptor back."""


Confine = Callable[[str], Confinement]  # from a workspace's root; raises OSError if there is no such folder


# --- store ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submitted:
    """`fresh` is False when the same key and body was there before."""

    task: Task
    fresh: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A person's wish that the present state does not allow. `code`: conflict, not_found, ambiguous, refused."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """What `list` asks for; empty fields do not filter."""

    states: tuple[TaskState, ...] = ()
    reasons: tuple[str, ...] = ()
    error_class: str | None = None
    agent: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    since: float | None = None
    until: float | None = None
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class History:
    """What recovery reads: everything that is known of a task at its last durable step."""

    task: Task
    path: tuple[Node, ...]
    effects: tuple[Effect, ...]  # of this task, in order of planning
    messages: tuple[PersonMessage, ...]  # not yet delivered
    questions: tuple[Question, ...]  # answered or not, of open calls
    changed: frozenset[str] = frozenset()  # the nodes of results that came with a changed workspace
    ended_jobs: Mapping[str, int] = field(default_factory=dict)  # exit codes of slow jobs that ended by themselves


class TaskQueue(Protocol):
    """Tasks from submit to end. Times are seconds since the Unix epoch and come from the caller."""

    async def submit(self, draft: TaskDraft, now: float) -> Submitted | Refused:
        """One durable row. Same key and identity: the same task. Same key, other identity: `conflict`."""

    async def known(self, draft: TaskDraft) -> Submitted | Refused | None:
        """What `submit` would find under the draft's key; None where it would make a new task."""

    async def claim(
        self, owner: str, limit: int, now: float, ttl_s: float, full: Collection[str] = ()
    ) -> tuple[Task, ...]:
        """Lease up to `limit` queued tasks that are due, by priority then age; each claim raises the task's epoch.

        Left out: tasks whose `after` are not completed, those whose workspace somebody else holds, and those of an
        agent or label that is `full` (`agent/coder`, `label/team=web`): policy lets no more of them run at once.
        """

    async def heartbeat(self, leases: Sequence[Lease], now: float, ttl_s: float) -> frozenset[str]:
        """Prolong leases; gives the ids that are still ours."""

    async def sweep(self, now: float) -> int:
        """Queue what is due again, and give how many.

        Expired leases (counted as a recovery), parked tasks whose time came, waits for a person that are out of time.
        """

    async def release_all(self, now: float) -> int:
        """At start, the owner lock proves the old owner dead: its leases end at once, each counted as a recovery."""

    async def wait_queued(self) -> None:
        """Return once a commit may have made a task claimable; at once, if one did since the last return.

        For one waiter: the wake-up that replaces polling. Times (`next_due`) are the caller's own timer.
        """

    async def next_due(self, now: float) -> float | None:
        """When the next task becomes due by time alone, or None."""

    async def apply(self, task: str, verb: Verb, now: float, by: str, **facts: Any) -> Task | Refused:
        """A person's verb: resume, retry, cancel, pause.

        On a running task `pause` and `cancel` are remembered in the row (`pause_asked`, `cancel_asked`), so that a
        crash does not forget them; its worker does the rest.
        """

    async def change(self, task: str, now: float, by: str, changes: Mapping[str, Any]) -> Task | Refused:
        """`set`: budget, policies, model, priority, labels, pinned_revision; recorded as an event with who and when."""

    async def send(self, task: str, text: str, now: float, by: str) -> PersonMessage | Refused:
        """A person's word, durable before it is acknowledged."""

    async def answer(self, question: str, choice: str, say: str, now: float, by: str) -> Task | Refused:
        """A person's answer; the task is queued again when nothing else is open."""

    async def find(self, prefix: str) -> Task | Refused:
        """The task of an id or unique prefix; `not_found` or `ambiguous`."""

    async def list(self, wanted: TaskFilter) -> Sequence[Task]:
        """Newest first."""

    async def counts(self) -> Mapping[str, int]:
        """Tasks by state."""

    async def waits_for(self, task: str) -> str | None:
        """The task that holds this queued task's workspace, or the one it comes after."""

    async def questions(self, task: str | None = None) -> Sequence[Question]:
        """The inbox: unanswered questions, oldest first."""


class SessionStore(Protocol):
    """The append-only tree."""

    async def nodes(self, task: str) -> Sequence[Node]:
        """All nodes of all branches, in order of creation."""

    async def verify(self, task: str) -> str | None:
        """Check the hash chain; None, or a sentence naming the first node that does not fit."""


class Journal(Protocol):
    """Intents, outcomes, decisions, events."""

    async def record(self, lease: Lease, records: Sequence[Record], now: float, revision: int = 0) -> None:
        """Commit one unit of work under the lease's epoch.

        Raises LeaseLost (nothing written), OutcomeUnknown (settle by reading), StoreLost (the daemon stops).
        """

    async def log(self, type_: str, data: Mapping[str, Any], now: float, revision: int = 0) -> None:
        """An event of the daemon itself."""

    async def history(self, task: str) -> History:
        """Everything recovery needs, in one consistent read."""

    async def effects(self, task: str) -> Sequence[Effect]:
        """All effects of a task, in order."""

    async def decisions(self, task: str) -> Sequence[StoredDecision]:
        """All decisions of a task, in order."""

    async def events(self, after: int = 0, task: str | None = None, limit: int = 1000) -> Sequence[StoredEvent]:
        """Events with a sequence number above `after`, in order."""

    def subscribe(self) -> AsyncIterator[int]:
        """Yields the newest event sequence number whenever a commit added events; missed ones are coalesced."""


class Store(
    TaskQueue,
    SessionStore,
    Journal,
    RevisionStore,
    BreakerStore,
    OutboxStore,
    JobStore,
    StartStore,
    CheckpointStore,
    RollbackStore,
    TransferStore,
    RetentionStore,
    FiguresStore,
    Protocol,
):
    """One durable store."""

    epoch: int  # of the owner: raised at each start

    async def open(self, owner: str) -> None:
        """Take the owner lock, migrate, check the high-water mark.

        Raises StoreLocked, StoreTooNew, StoreLost, HarnessError (unwritable folder), each a sentence with a remedy.
        """

    async def backup(self, path: str, wanted: Backup = ...) -> int:
        """Write a whole copy to `path`, complete or absent, with the wanted files; gives its size in bytes.

        Others write on meanwhile. Raises HarnessError where it cannot be written.
        """

    async def examine(self) -> Mapping[str, str]:
        """What the database says of itself: `engine`, `version`, how it makes commits durable, `integrity`."""

    async def close(self) -> None:
        """Finish what waits, give the lock back."""
