"""Looking: performs one look at a workspace off the loop; a full disk is waited for, a cancelled look ends soon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harnessd.domain.failure import HarnessError, StorageFull
from harnessd.domain.ports import Clock
from harnessd.domain.task import Task
from harnessd.domain.workspace import TakenCheckpoint, Workspace
from harnessd.engine.protocol import CheckpointFailed, CheckpointTaken, TakeCheckpoint
from harnessd.runtime import telemetry
from harnessd.runtime.host.disk import Room

_log = telemetry.log("looking")
CANCELLED = "the look at the workspace was cancelled"


class Running(Protocol):
    """Who knows what a task left running."""

    def running(self, task: str) -> Sequence[str]:
        """Ids of a task's jobs that still run."""


@dataclass(frozen=True, slots=True)
class Looker:
    """What every runner of a daemon shares for its looks."""

    workspace: Workspace
    jobs: Running
    room: Room
    clock: Clock

    async def look(self, task: Task, act: TakeCheckpoint) -> CheckpointTaken | CheckpointFailed:
        """Capture the task's workspace. Cancelling the awaiting task stops the look at its next file."""
        # A job in the background may write anywhere at any time: then no list says what can have changed.
        dirty = None if self.jobs.running(task.id) else act.dirty
        while True:
            try:
                taken = await self._off_the_loop(task.draft.workspace, dirty)
            except StorageFull as full:
                _log.warning("storage_full", kind=("storage_full", task.id), task=task.id, words=full.sentence)
                await self.room.after(full)
                dirty = None
            except HarnessError as fault:
                _log.warning("checkpoint_failed", task=task.id, words=fault.sentence)
                return CheckpointFailed(self.clock.now(), f"{fault.sentence} {fault.remedy}".strip())
            else:
                for note in taken.notes:
                    _log.warning("workspace", kind=("workspace", task.id, note), task=task.id, words=note)
                return CheckpointTaken(self.clock.now(), taken)

    async def _off_the_loop(self, root: str, dirty: tuple[str, ...] | None) -> TakenCheckpoint:
        stop = threading.Event()
        work = asyncio.ensure_future(asyncio.to_thread(self.workspace.take, root, dirty, stop.is_set))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()  # a thread cannot be cancelled, and it holds the workspace until it ends
            await asyncio.wait([work])
            work.exception()
            raise
