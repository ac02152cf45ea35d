"""Ended tasks: whoever ends a task that no worker holds (a cancel, a rollback) leaves its jobs to be ended here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from harnessd.domain.ports import Refused
from harnessd.domain.task import Task, TaskState


class Rows(Protocol):
    """What is asked of the store."""

    def subscribe(self) -> AsyncIterator[int]:
        """See `Journal`."""

    async def find(self, prefix: str) -> Task | Refused:
        """See `TaskQueue`."""


class Keeper(Protocol):
    """What is asked of the keeper of jobs."""

    def tasks(self) -> Sequence[str]:
        """The tasks that have anything running."""

    async def end_task(self, task: str) -> int:
        """See `JobKeeper`."""


@dataclass(slots=True)
class EndedTasks:
    """Looks at the tasks that have something running, whenever the store changed; a daemon without jobs sleeps."""

    store: Rows
    jobs: Keeper
    held: Callable[[], Collection[str]]  # the tasks that a worker holds: it ends their jobs itself

    async def run(self) -> None:
        """Until cancelled."""
        async for _ in self.store.subscribe():
            for task in self.jobs.tasks():
                if task in self.held():
                    continue
                row = await self.store.find(task)
                # No row: it was collected; nothing of it may be left either.
                if isinstance(row, Refused) or row.state.ended or row.state is TaskState.ROLLING_BACK:
                    await self.jobs.end_task(task)
