"""Retention: what is left of ended tasks, as far as it is needed to say what may go; the port that lets it go."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task that goes no further by itself. Times are seconds since the Unix epoch.

    `touched_at` is when the last of its effects was planned or settled, `keep_s` how long a person wants it kept after
    its end. `checkpoints` counts the rows it has. `needed`: something still stands on it, such as a task that comes
    after it, a restore under way, or a job that runs.
    """

    id: str
    ended_at: float
    touched_at: float
    keep_s: float | None
    checkpoints: int
    needed: bool


@dataclass(frozen=True, slots=True)
class Aged:
    """What is older than it is kept beside tasks: counts."""

    events: int = 0
    alerts: int = 0
    starts: int = 0
    days: int = 0


class RetentionStore(Protocol):
    """Lets go in steps that are short for the writer; each looks again whether it may."""

    async def ended(self, after: tuple[float, str], limit: int) -> Sequence[EndedTask]:
        """Ended tasks behind `(ended_at, id)`, in that order."""

    async def tasks_known(self, tasks: Collection[str]) -> frozenset[str]:
        """Which of these ids are tasks of this store."""

    async def orphans(self) -> Sequence[str]:
        """Tasks whose row is gone and whose history is not: what a crash in the middle of `forget` left."""

    async def forget(self, task: str, ended_at: float) -> bool:
        """Take a task's row away, and what is small; False where it went on meanwhile. `strip` takes the rest."""

    async def strip(self, task: str, rows: int) -> int:
        """Up to so many rows of a forgotten task's history; gives how many there were."""

    async def drop_checkpoints_of(self, task: str, ended_at: float) -> bool:
        """Forget the checkpoints of a task that is still ended as it was; False where it went on meanwhile."""

    async def idle_revisions(self, before: float) -> Sequence[int]:
        """Revisions older than this that are not in force or held, and that nothing kept names."""

    async def forget_revision(self, number: int) -> None:
        """Take one away, its texts too where no other has the same."""

    async def aged(self, before: float) -> Aged:
        """The daemon's own events, alerts that nobody took, starts and costs of days from before this time."""

    async def forget_aged(self, before: float, rows: int) -> int:
        """Up to so many of each; gives how many there were."""
