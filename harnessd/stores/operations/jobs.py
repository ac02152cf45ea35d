"""Jobs: background commands as rows, the notice that tells of their end, and who is woken by it."""

from __future__ import annotations

from collections.abc import Sequence

from harnessd.domain.events import EventType
from harnessd.domain.jobs import WAITED_FOR, KeptJob
from harnessd.stores.database import Row, Statement, Unit
from harnessd.stores.kernel import Kernel, event
from harnessd.stores.rows import plain

SHOWN = 200  # characters of a command in an event


class Jobs(Kernel):
    """`JobStore` of the domain."""

    async def begin_job(self, job: KeptJob) -> None:
        """See the port."""
        row = {
            "task": job.task,
            "id": job.id,
            "command": plain(job.command),
            "kind": job.kind,
            "pid": job.pid,
            "started": job.started,
            "boot": job.boot,
            "began_at": job.began_at,
            "output": plain(job.output),
            "life_s": job.life_s,
        }
        data = {"job": job.id, "kind": job.kind, "command": job.command[:SHOWN], "life_s": job.life_s}
        await self._write((
            Statement("begin_job", row),
            event(EventType.JOB_STARTED, job.began_at, job.task, data),
        ))  # fmt: skip

    async def end_job(self, job: KeptJob, text: str, now: float) -> bool:
        """See the port."""
        row = {"task": job.task, "id": job.id, "code": job.code, "why": plain(job.why), "now": now}
        said: Unit = ()
        if text:
            # What a command left behind was promised nothing: its end is told beside, and nobody goes on for it.
            kind, owed = ("notice", True) if job.kind == "slow" else ("aside", False)
            said = (
                Statement("insert_notice", {"task": job.task, "text": plain(text), "now": now, "kind": kind}),
                *(woken_by_word(job.task, now, f"job {job.id} ended") if owed else ()),
            )
        data = {"job": job.id, "code": job.code, "why": job.why, "command": job.command[:SHOWN]}
        answer = await self._write((
            Statement("end_job", row, or_stop=True),
            *said,
            event(EventType.JOB_ENDED, now, job.task, data),
        ))  # fmt: skip
        if text:
            self._queued.set()
        return bool(answer[0])

    async def open_jobs(self) -> Sequence[KeptJob]:
        """See the port."""
        return [_job(row) for row in await self._rows("open_jobs", {})]

    async def find_job(self, task: str, job: str) -> KeptJob | None:
        """See the port."""
        row = await self._row("find_job", {"task": task, "id": job})
        return _job(row) if row is not None else None


def woken_by_word(task: str, now: float, why: str) -> Unit:
    """Queue a task that is parked on its jobs: there is something for it to read."""
    row = {"task": task, "now": now, "why": why, "parked_on": WAITED_FOR}
    return Statement("event_woken_by_word", row), Statement("wake_by_word", row)


def _job(row: Row) -> KeptJob:
    return KeptJob(*row)
