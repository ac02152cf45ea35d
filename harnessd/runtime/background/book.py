"""Book of jobs: each is durable before the model hears of it; its end is a notice at the task's next turn border."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from harnessd.domain.failure import REFUSED_FOR_NOW
from harnessd.domain.jobs import JobBook, JobStore, KeptJob
from harnessd.domain.ports import Clock
from harnessd.runtime.host.disk import Room

# The events of what a task did hold its command; more of it helps nobody.
_COMMAND_MAX = 2000


@dataclass(slots=True)
class Book(JobBook):
    """Writes jobs into the store, without secrets, and lets the task's worker hear of their end at once."""

    store: JobStore
    clock: Clock
    redact: Callable[[str], str]
    room: Room
    hear: Callable[[str], Awaitable[None]]  # a word lies there for this task

    async def begun(self, job: KeptJob) -> None:
        """See the port."""
        kept = self._clean(job)
        while True:
            try:
                await self.store.begin_job(kept)
            except REFUSED_FOR_NOW as refused:
                await self.room.after(refused)
            else:
                return

    async def ended(self, job: KeptJob, text: str) -> None:
        """See the port."""
        kept, words = self._clean(job), self.redact(text)
        while True:
            try:
                first = await self.store.end_job(kept, words, self.clock.now())
            except REFUSED_FOR_NOW as refused:
                await self.room.after(refused)
                continue
            if first and words:
                await self.hear(job.task)
            return

    async def find(self, task: str, job: str) -> KeptJob | None:
        """See the port."""
        return await self.store.find_job(task, job)

    def _clean(self, job: KeptJob) -> KeptJob:
        return replace(job, command=self.redact(job.command)[:_COMMAND_MAX])
