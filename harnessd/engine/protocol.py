"""Event, Command, RunState, TRANSITIONS: what happened, what shall be done, and the legal moves as a table.

`receive` answers an event with commands. Records (domain.record) are made durable in one unit of work before anything
else is done; then the acts are performed, and each `CallModel`, `CallTool` and `Wait` comes back as exactly one event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import Failure
from harnessd.domain.jobs import OwedJob
from harnessd.domain.messages import ModelReply, ModelRequest, ToolSpec
from harnessd.domain.ports import ToolLimits, ToolOutcome
from harnessd.domain.record import PersonMessage, Record
from harnessd.domain.task import StopReason
from harnessd.domain.workspace import TakenCheckpoint, Touches

# Why a JSON value does not fit a schema: sentences of the kind "path: expected string, got number 42"; none: it fits.
Fits = Callable[[Any], Sequence[str]]

# --- what a run knows from the start -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model alias. Prices are USD per million tokens; None = unknown, 0 = free.

    `priced` is False where nobody declared a price and the dearest declared one stands in. `tools`: it can call
    tools; `images`: it can look at images. `protocol` is how its service speaks, `service_model` that one's own
    name of it.
    """

    alias: str
    window: int
    max_output: int
    input_usd: float | None = 0.0
    output_usd: float | None = 0.0
    priced: bool = True
    tools: bool = True
    images: bool = True
    protocol: str = "anthropic"
    service_model: str = ""


ActOf = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """A tool the agent has: what the model is told, and the effect the tool itself declares.

    `touches`: what of the workspace it may write: `nothing`, the `path` of its argument, or `anything`.
    `act`: what of its arguments makes the act; two calls that differ in the rest only are the same act (R3.13).
    """

    spec: ToolSpec
    declared: EffectClass
    touches: Touches = "anything"
    act: ActOf = dict


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """A feature or an agent that a chain may name: what a task works with where it takes over.

    `model` is None for a feature, which leaves the model alone. `add` are instructions for the model, `belongs_to` the
    agent of a feature.
    """

    name: str
    tools: tuple[ToolFacts, ...]
    model: ModelFacts | None = None
    add: str = ""
    belongs_to: str = ""


@dataclass(frozen=True, slots=True)
class RunBrief:
    """Everything about a task that does not change while it runs.

    `model` is its own one; `models` are all that a chain may name, by alias. `recoveries`: how often the task was taken
    up again after a crash or a lost lease. `wanted` is the JSON Schema of the agent's answer, `safe` the answer that is
    handed out where the model's cannot be taken; both as JSON text, empty where none is declared. `fits` says what of a
    JSON value does not fit `wanted`, a sentence each with its path.

    `feature` is the one it was given, by name, empty for none; `roles` are all features and agents that a chain may
    name, by full name. `acting` is the agent that stands in for its own: `model` and `tools` are those in use.
    """

    task: str
    prompt: str
    agent: str
    workspace: str
    system: str
    model: ModelFacts
    tools: tuple[ToolFacts, ...]
    submitted_at: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    recoveries: int = 0
    wanted: str = ""
    safe: str = ""
    fits: Fits | None = None
    feature: str = ""
    roles: Mapping[str, RoleFacts] = field(default_factory=dict)
    acting: str = ""
    checkpoints: bool = False  # the workspace is captured around calls that can write
    keys_of: str = ""  # an imported session goes on with the keys of the task it was; empty: its own


# --- events --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskLeased:
    """A worker took a task that never ran."""

    at: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """A worker took a task that ran before; the run was restored from what was recorded."""

    at: float


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """A whole answer came. `jobs` are the background jobs whose end the model is still owed at that moment."""

    at: float
    call: str
    reply: ModelReply
    jobs: tuple[OwedJob, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """An attempt of a model call failed. `luck` is a random number in [0, 1), the jitter's source.

    `first_event_s` is the model's measured median time to the first event, None if nothing is known; `may_retry`
    whether the retry budget (limits, `retry_share`) has room.
    """

    at: float
    call: str
    failure: Failure
    luck: float = 0.0
    first_event_s: float | None = None
    may_retry: bool = True


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """A tool gave its own answer; `outcome.job` is set when the call was handed over to the background."""

    at: float
    call: str
    outcome: ToolOutcome


@dataclass(frozen=True, slots=True)
class ToolFailed:
    """A tool call could not be done, was ended, or was cancelled."""

    at: float
    call: str
    failure: Failure
    luck: float = 0.0


@dataclass(frozen=True, slots=True)
class WaitElapsed:
    """A backoff is over."""

    at: float


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A person wants the task to end."""

    at: float
    by: str = ""


@dataclass(frozen=True, slots=True)
class StepDown:
    """The task shall be handed back at its next step border; with `now`, the calls under way are cancelled."""

    at: float
    why: Literal["drain", "pause", "storage_full"]
    now: bool = False


@dataclass(frozen=True, slots=True)
class PauseWithdrawn:
    """A person takes back a pause that was not yet obeyed."""

    at: float


@dataclass(frozen=True, slots=True)
class PersonSaid:
    """A person's word; it becomes a node at the next turn border."""

    at: float
    message: PersonMessage
    ended_jobs: Mapping[str, int] = field(default_factory=dict)  # see History


@dataclass(frozen=True, slots=True)
class CheckpointTaken:
    """The workspace was looked at, and what it holds is durable."""

    at: float
    taken: TakenCheckpoint


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """The workspace could not be captured, or the look was cancelled."""

    at: float
    sentence: str
    cancelled: bool = False


Event = (
    TaskLeased
    | Resumed
    | ModelReplied
    | ModelFailed
    | ToolReturned
    | ToolFailed
    | CheckpointTaken
    | CheckpointFailed
    | WaitElapsed
    | Cancelled
    | StepDown
    | PauseWithdrawn
    | PersonSaid
)

# --- commands ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallModel:
    """Perform one attempt of a model call; comes back as ModelReplied or ModelFailed.

    `keep` are whole texts that the view shows cut, by name: they lie among the task's artefacts before it is made.
    """

    call: str
    request: ModelRequest
    attempt: int = 1
    keep: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CallTool:
    """Perform one tool call; comes back as ToolReturned or ToolFailed."""

    call: str
    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    limits: ToolLimits
    key: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    agent: str = ""  # that stands in for the task's own


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Capture the workspace; comes back as CheckpointTaken or CheckpointFailed.

    `dirty`: the only paths that can have changed since the last look; None: look at everything.
    """

    call: str
    dirty: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CancelCalls:
    """End these calls; each still comes back as its own event, within 2 seconds."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Comes back as WaitElapsed at `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class HandBack:
    """The run is over, the task is not: parked, waiting, paused or queued again."""

    why: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The task has ended: end its processes, tell who waits."""

    reason: StopReason
    sentence: str


Act = CallModel | CallTool | TakeCheckpoint | CancelCalls | Wait | HandBack | Finish
Command = Record | Act
LAST = (HandBack, Finish)

# --- states --------------------------------------------------------------------------------------------------------


class RunState(StrEnum):
    """Where a run stands."""

    NEW = "new"
    MODEL = "awaiting_model"
    TOOLS = "awaiting_tools"
    BACKOFF = "backoff"
    CANCELLING = "cancelling"
    OVER = "over"


_ANYWHERE = frozenset({RunState.MODEL, RunState.TOOLS, RunState.BACKOFF, RunState.CANCELLING, RunState.OVER})
_DRAINING_OUT = frozenset({RunState.CANCELLING, RunState.OVER})
_OVER = frozenset({RunState.OVER})

# state -> event -> states it may lead to. A missing entry is an illegal event: our bug, and the state stays untouched.
# Diagrams in docs/ are generated from this table.
TRANSITIONS: Mapping[RunState, Mapping[type[Any], frozenset[RunState]]] = {
    RunState.NEW: {
        TaskLeased: _ANYWHERE,
        Resumed: _ANYWHERE,
        PersonSaid: frozenset({RunState.NEW}),
        PauseWithdrawn: frozenset({RunState.NEW}),
        Cancelled: frozenset({RunState.NEW}),
        StepDown: frozenset({RunState.NEW}),
    },
    RunState.MODEL: {
        ModelReplied: _ANYWHERE,
        ModelFailed: _ANYWHERE,
        PersonSaid: frozenset({RunState.MODEL}),
        PauseWithdrawn: frozenset({RunState.MODEL}),
        Cancelled: frozenset({RunState.CANCELLING}),
        StepDown: frozenset({RunState.MODEL}),
    },
    RunState.TOOLS: {
        ToolReturned: _ANYWHERE,
        ToolFailed: _ANYWHERE,
        CheckpointTaken: _ANYWHERE,
        CheckpointFailed: _ANYWHERE,
        PersonSaid: frozenset({RunState.TOOLS}),
        PauseWithdrawn: frozenset({RunState.TOOLS}),
        Cancelled: frozenset({RunState.CANCELLING}),
        StepDown: frozenset({RunState.TOOLS}),
    },
    RunState.BACKOFF: {
        WaitElapsed: _ANYWHERE,
        PersonSaid: frozenset({RunState.BACKOFF}),
        PauseWithdrawn: frozenset({RunState.BACKOFF}),
        Cancelled: _OVER,
        StepDown: _OVER,
    },
    RunState.CANCELLING: {
        ModelReplied: _DRAINING_OUT,
        ModelFailed: _DRAINING_OUT,
        ToolReturned: _DRAINING_OUT,
        ToolFailed: _DRAINING_OUT,
        CheckpointTaken: _DRAINING_OUT,
        CheckpointFailed: _DRAINING_OUT,
        PersonSaid: frozenset({RunState.CANCELLING}),
        PauseWithdrawn: frozenset({RunState.CANCELLING}),
        Cancelled: frozenset({RunState.CANCELLING}),
        StepDown: frozenset({RunState.CANCELLING}),
    },
    # What comes late is no error and changes nothing.
    RunState.OVER: dict.fromkeys(
        (
            *(ModelReplied, ModelFailed, ToolReturned, ToolFailed, CheckpointTaken, CheckpointFailed, WaitElapsed),
            *(PersonSaid, Cancelled, StepDown, PauseWithdrawn),
        ),
        _OVER,
    ),
}
