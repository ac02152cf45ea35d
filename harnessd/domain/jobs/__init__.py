"""Jobs: what is kept of a background command, so that whoever comes after a crash can say what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

# What a task is parked on while it waits for its jobs. No dependency has this name, so that no breaker wakes it.
WAITED_FOR = "tool/job"


@dataclass(frozen=True, slots=True)
class KeptJob:
    """A job's row. `pid`, `started` (clock ticks) and `boot` are its supervisor's: together they name one process.

    `kind`: `slow` was handed over at its timeout; `left` are processes that a command left behind when it ended.
    Times are seconds since the Unix epoch; `ended_at` is None while it runs.
    """

    task: str
    id: str
    command: str
    kind: Literal["slow", "left"]
    pid: int
    started: int
    boot: str
    began_at: float
    output: str
    life_s: float | None = None
    ended_at: float | None = None
    code: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class OwedJob:
    """A job whose end the model was promised to be told. `left_s`: at most so long until its life limit ends it."""

    id: str
    command: str
    left_s: float | None = None


class JobBook(Protocol):
    """What the keeper of jobs writes down. Nothing here fails for a full disk: it waits for room."""

    async def begun(self, job: KeptJob) -> None:
        """Durable before the model hears of the job."""

    async def ended(self, job: KeptJob, text: str) -> None:
        """The job's end; `text` are words for the model, empty where nobody is to be told. Twice is once."""

    async def find(self, task: str, job: str) -> KeptJob | None:
        """A job of any earlier time."""


class JobStore(Protocol):
    """Where jobs are kept."""

    async def begin_job(self, job: KeptJob) -> None:
        """A row, and the event `job_started`."""

    async def end_job(self, job: KeptJob, text: str, now: float) -> bool:
        """The end in the row, the event `job_ended`, and `text` as a notice for the task, in one unit.

        A task that is parked on its jobs is queued. False where the job was ended before: nothing is written.
        """

    async def open_jobs(self) -> Sequence[KeptJob]:
        """All jobs that did not end, oldest first."""

    async def find_job(self, task: str, job: str) -> KeptJob | None:
        """One job, running or ended."""


class StartStore(Protocol):
    """What is kept of the daemon's own starts (R6.1a)."""

    async def begin_start(self, now: float, within_s: float) -> int:
        """Note this start; gives how many unclean ones there were within this time, it included."""

    async def end_start(self, now: float) -> None:
        """This start came to its planned end: the next one is clean."""

    async def hold_interrupted(self, now: float, why: str) -> int:
        """Pause every task that a crash interrupted and nobody took up since; gives how many."""

    async def held(self) -> int:
        """How many tasks are still held this way."""
