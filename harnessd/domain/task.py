"""Task: its states and legal moves as a table, its lease, its stop reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class TaskState(StrEnum):
    """Where a task stands. A parked, waiting or paused task is a row: no worker, no coroutine."""

    QUEUED = "queued"
    RUNNING = "running"
    PARKED = "parked"
    WAITING = "waiting"
    PAUSED = "paused"
    ROLLING_BACK = "rolling_back"
    STOPPED = "stopped"
    COMPLETED = "completed"

    @property
    def ended(self) -> bool:
        """The task goes no further by itself."""
        return self in (TaskState.STOPPED, TaskState.COMPLETED)


class Verb(StrEnum):
    """What can happen to a task, from inside or by a person."""

    CLAIM = "claim"  # a worker leases it
    HAND_BACK = "hand_back"  # drained, or its lease ran out: somebody else goes on
    PARK = "park"
    ASK = "ask"  # a person is asked
    PAUSE = "pause"
    WAKE = "wake"  # its time came
    ANSWER = "answer"  # the person answered
    RESUME = "resume"
    RETRY = "retry"  # new branch before the failed turn
    CANCEL = "cancel"
    STOP = "stop"
    COMPLETE = "complete"
    ROLL_BACK = "roll_back"
    ROLLED_BACK = "rolled_back"


# A missing entry is the refusal. Diagrams in docs/ are generated from this table.
TASK_TRANSITIONS: Mapping[TaskState, Mapping[Verb, TaskState]] = {
    TaskState.QUEUED: {
        Verb.CLAIM: TaskState.RUNNING,
        Verb.PAUSE: TaskState.PAUSED,
        Verb.CANCEL: TaskState.STOPPED,
        Verb.STOP: TaskState.STOPPED,
        Verb.ROLL_BACK: TaskState.ROLLING_BACK,
    },
    TaskState.RUNNING: {
        Verb.HAND_BACK: TaskState.QUEUED,
        Verb.PARK: TaskState.PARKED,
        Verb.ASK: TaskState.WAITING,
        Verb.PAUSE: TaskState.PAUSED,
        Verb.CANCEL: TaskState.STOPPED,
        Verb.STOP: TaskState.STOPPED,
        Verb.COMPLETE: TaskState.COMPLETED,
        Verb.ROLL_BACK: TaskState.ROLLING_BACK,
    },
    TaskState.PARKED: {
        Verb.WAKE: TaskState.QUEUED,
        Verb.RESUME: TaskState.QUEUED,
        Verb.PAUSE: TaskState.PAUSED,
        Verb.CANCEL: TaskState.STOPPED,
        Verb.STOP: TaskState.STOPPED,
        Verb.ROLL_BACK: TaskState.ROLLING_BACK,
    },
    TaskState.WAITING: {
        Verb.ANSWER: TaskState.QUEUED,
        Verb.RESUME: TaskState.QUEUED,
        Verb.PAUSE: TaskState.PAUSED,
        Verb.CANCEL: TaskState.STOPPED,
        Verb.STOP: TaskState.STOPPED,
        Verb.ROLL_BACK: TaskState.ROLLING_BACK,
    },
    TaskState.PAUSED: {
        Verb.RESUME: TaskState.QUEUED,
        Verb.CANCEL: TaskState.STOPPED,
        Verb.ROLL_BACK: TaskState.ROLLING_BACK,
    },
    TaskState.ROLLING_BACK: {
        Verb.ROLLED_BACK: TaskState.QUEUED,
        Verb.PAUSE: TaskState.PAUSED,
        Verb.STOP: TaskState.STOPPED,
        Verb.COMPLETE: TaskState.COMPLETED,  # it failed, and the task stays as it had ended
    },
    TaskState.STOPPED: {
        Verb.RESUME: TaskState.QUEUED,
        Verb.RETRY: TaskState.QUEUED,
        Verb.ROLL_BACK: TaskState.ROLLING_BACK,
    },
    TaskState.COMPLETED: {
        Verb.RETRY: TaskState.QUEUED,
        Verb.ROLL_BACK: TaskState.ROLLING_BACK,
    },
}


def after(state: TaskState, verb: Verb) -> TaskState | None:
    """The state that `verb` leads to, or None where the table refuses it."""
    return TASK_TRANSITIONS[state].get(verb)


class StopReason(StrEnum):
    """Why a task ended. Waiting for a person, parked and paused are states, not ends."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    ERROR = "error"
    BUDGET_EXHAUSTED = "budget_exhausted"
    LOOP_DETECTED = "loop_detected"
    SERVICE_UNAVAILABLE = "service_unavailable"
    QUOTA_EXHAUSTED = "quota_exhausted"
    CONTEXT_EXHAUSTED = "context_exhausted"
    REFUSED = "refused"
    UNANSWERED = "unanswered"
    INTERRUPTED = "interrupted"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class Lease:
    """Who works on a task. `epoch` is the fencing token: every write carries `WHERE epoch = :mine`."""

    task: str
    owner: str
    epoch: int
    expires_at: float  # seconds since the Unix epoch
    trace: str = ""  # of this attempt, 32 hexadecimal digits; known to whoever claimed, and to the event `started`


@dataclass(frozen=True, slots=True)
class Counters:
    """What a task has used and where its clocks stand; carried over every resume, compaction and reload.

    Times are seconds. `nodes`, `effects` number the next ones (`n14`, `e7`). `tries` counts the attempts of the call
    under way that failed; `episode_at` is when its first attempt began, `park_s` how long it has been parked.
    `wait_until` is set while a backoff runs. `warned` holds `budget:level` once a warning was given.

    `link` is the alias that answers instead of the task's own model since `link_since`, `probing` the one that takes
    over again at once if the try to return fails. `tries_of` counts the failed attempts of the call under way by link,
    `streak` those of one class in a row. `degraded` names what another link answers for, `outage` what the task was
    parked for and has not answered yet. `taken` counts the steps of ladders that act once an episode; tallies and loops
    look at nodes numbered above `tallies_from` and `loop_from`. `asking` is a question that is put to a person as soon
    as nothing is under way, `stand_ins` the tools that take over open calls, `recoveries_seen` how many of the task's
    recoveries lie before its last step, `ending` how the task ends once nothing is under way. `context` is what is
    known of the window: measure and true size by model, failed compactions, the one under way (`engine/context`).

    `misfits` counts last words that had not the wanted form, by the model that gave them. `roles` are the feature
    and the agent (`feature`, `agent` -> full name) that stand in for the task's own since `roles_since`, for the
    reason in `roles_why`. `reachable` is when a link of the call under way may next be asked, as its breaker or its
    service says, by alias. `checkpoints` numbers the workspace's (`c9`), `checkpoint` is the manifest of the
    newest. `rollback` is the one that was decided on and is being carried out. `doubt` is set where the store was
    restored from a backup and nobody knows what the task did between `from` (the backup) and `until` (the restore).
    `session_bytes` counts the text of all nodes, in UTF-8.
    """

    turns: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    reserved_usd: float = 0.0
    working_s: float = 0.0
    wall_s: float = 0.0
    nodes: int = 0
    effects: int = 0
    tries: int = 0
    episode_at: float | None = None
    episode_parked_s: float = 0.0
    wait_until: float | None = None
    warned: tuple[str, ...] = ()
    pending_warnings: tuple[str, ...] = ()
    calls_of: Mapping[str, int] = field(default_factory=dict)
    last_turn: bool = False
    link: str = ""
    link_since: float = 0.0
    probing: str = ""
    tries_of: Mapping[str, int] = field(default_factory=dict)
    streak: Mapping[str, int] = field(default_factory=dict)
    degraded: Mapping[str, str] = field(default_factory=dict)
    outage: str = ""
    taken: Mapping[str, int] = field(default_factory=dict)
    tallies_from: int = 0
    loop_from: int = 0
    asking: str = ""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    recoveries_seen: int = 0
    ending: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    misfits: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    roles_since: Mapping[str, float] = field(default_factory=dict)
    roles_why: Mapping[str, str] = field(default_factory=dict)
    reachable: Mapping[str, float] = field(default_factory=dict)
    checkpoints: int = 0
    checkpoint: str = ""
    rollback: Mapping[str, Any] = field(default_factory=dict)
    doubt: Mapping[str, float] = field(default_factory=dict)
    session_bytes: int = 0

    def used(self, age_s: float) -> dict[str, float]:
        """What the budgets count, by the names policies have for them; times in seconds."""
        return {
            "tool_calls": self.tool_calls,
            "turns": self.turns,
            "tokens": self.tokens,
            "cost_usd": self.cost_usd + self.reserved_usd,
            "working_time": self.working_s,
            "wall_time": self.wall_s,
            "age": age_s,
        }


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """What `submit` asks for. Times are seconds since the Unix epoch."""

    prompt: str
    agent: str
    workspace: str
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    not_before: float | None = None
    after: tuple[str, ...] = ()
    model: str | None = None
    budget: Mapping[str, float] = field(default_factory=dict)  # limit name -> limit of this task alone
    policies: Mapping[str, str] = field(default_factory=dict)  # kind -> policy name
    pinned_revision: int | None = None
    feature: str | None = None  # with which of its agent's features it begins; None: the agent's own choice
    keys_of: str | None = None  # an imported session: the task whose idempotency keys its acts go on with
    keep_s: float | None = None  # how long it is kept after its end, where that is longer than policy says

    def identity(self) -> dict[str, Any]:
        """What must be equal for the same client key to mean the same task."""
        return {
            "prompt": self.prompt,
            "agent": self.agent,
            "workspace": self.workspace,
            "model": self.model,
            **({"feature": self.feature} if self.feature else {}),
            "budget": dict(self.budget),
            "policies": dict(self.policies),
            "after": list(self.after),
            "labels": dict(self.labels),
        }


@dataclass(frozen=True, slots=True)
class Task:
    """A task's row: what was asked, where it stands, how it ended."""

    id: str
    draft: TaskDraft
    state: TaskState
    submitted_at: float
    pointer: str | None = None  # node id of the session's head
    started_at: float | None = None
    ended_at: float | None = None
    reason: StopReason | None = None
    error_class: str | None = None
    sentence: str = ""
    next_steps: tuple[tuple[str, ...], ...] = ()  # commands, as argument lists
    until: float | None = None  # parked or waiting: when it wakes by itself
    why: str = ""  # parked or waiting: what for
    waits_for: str | None = None  # approval | answer | workspace | task
    counters: Counters = field(default_factory=Counters)
    lease: Lease | None = None
    doing: str = ""
    system: str | None = None  # the system prompt, frozen when the session starts
    pause_asked: bool = False
    recoveries: int = 0
    cancel_asked: bool = False
