"""Jobs: background commands of all tasks, seen, readable, stoppable, and ended with their task."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from harnessd.domain.jobs import JobBook, KeptJob, OwedJob
from harnessd.domain.ports import JobEnded, JobKeeper, SignOfLife, ToolContext
from harnessd.tools.answers import Excerpt, clip, excerpt
from harnessd.tools.process import OUTPUT_FILE_MAX, TIMED_OUT, Ended, Running, end_leftovers
from harnessd.tools.tree import Identity, identify

WAKING_ROOM = 4096  # bytes of output in the words that wake the model
COMMAND_SHOWN = 200
_SUPERVISED_MAX = 1000
LINGER_S = 0.1  # what a command's last children get to end by themselves before they count as left behind
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(slots=True)
class Job:
    """A command in the background.

    `kind`: `slow` was handed over at its timeout; `left` are processes that a command left behind when it ended.
    `code` is set when the command ended (not: what it left behind).
    """

    id: str
    task: str
    command: str
    running: Running
    kind: Literal["slow", "left"]
    since: float
    life_s: float | None = None
    code: int | None = None
    why: str = ""
    told: bool = False  # its end stands in the book
    began_at: float = field(default_factory=time.time)
    watcher: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Anything of its tree still runs."""
        return not self.running.gone.done()

    def kept(self) -> KeptJob:
        """What is written down of it."""
        who = self.running.identity or Identity(0, 0, "")
        output = str(self.running.output)
        row = KeptJob(
            self.task, self.id, self.command, self.kind, who.pid, who.started, who.boot, self.began_at, output
        )
        return replace(row, life_s=self.life_s, code=self.code, why=self.why)


class Unwritten(JobBook):
    """The book of a keeper whose jobs nobody needs to find again."""

    async def begun(self, job: KeptJob) -> None:
        """Nothing is kept."""

    async def ended(self, job: KeptJob, text: str) -> None:
        """Nothing is kept."""

    async def find(self, task: str, job: str) -> KeptJob | None:
        """Nothing was kept."""
        del task, job
        return None


class Jobs(JobKeeper):
    """All that runs for tasks: jobs in the background, and the calls that are being waited for."""

    def __init__(
        self,
        book: JobBook | None = None,
        *,
        mark: str = "",
        scrub: Callable[[Path], None] = lambda _: None,
        crashpoint: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`book` is where jobs are written down, `mark` what all processes of this installation are known by.

        `scrub` strikes secrets out of an output file, without changing its length; called off the loop. `crashpoint` is
        called with the name of each point passed.
        """
        self._book: JobBook = book or Unwritten()
        self.mark = mark
        self._scrub = scrub
        self._crashpoint = crashpoint
        self._jobs: dict[str, dict[str, Job]] = {}
        self._attended: dict[str, dict[str, Running]] = {}
        self._heard: list[Callable[[JobEnded], None]] = []
        self._supervised: dict[int, str] = {}  # task by the supervisor's pid, of those that ended lately too

    # --- what tools ask ---

    @contextlib.contextmanager
    def attend(self, context: ToolContext, running: Running) -> Iterator[None]:
        """Know of a command while its call waits for it, so that it has a sign of life and ends with its task."""
        self._crashpoint("J10")
        calls = self._attended.setdefault(context.task, {})
        calls[context.call_id] = running
        self._remember(running, context.task)
        try:
            yield
        finally:
            calls.pop(context.call_id, None)
            if not calls:
                self._attended.pop(context.task, None)

    def output_file(self, context: ToolContext) -> Path:
        """Where a new call's output goes; its stem is the job's id, should the call become one."""
        stem = _stem(context.call_id)
        # Some services number their calls anew in each reply: what an earlier call left is never written over.
        paths = (Path(context.artefacts, f"{name}.out") for name in _numbered(stem))
        return next(path for path in paths if not path.exists())

    async def hand_over(
        self, context: ToolContext, running: Running, command: str, kind: Literal["slow", "left"]
    ) -> Job:
        """Take a command into the background: watched to its end, at the latest to its life limit.

        It is written down before anybody hears of it (J19).
        """
        loop = asyncio.get_running_loop()
        job = Job(running.output.stem, context.task, command, running, kind, loop.time(), context.limits.life_s)
        if running.ended.done():
            job.code = running.ended.result().code
        self._jobs.setdefault(context.task, {})[job.id] = job
        try:
            self._crashpoint("J19-before")
            await self._book.begun(job.kept())
            self._crashpoint("J19-after")
        except BaseException:
            self._jobs[context.task].pop(job.id)
            raise
        job.watcher = loop.create_task(self._watch(job))
        return job

    def excerpt(self, path: Path, room: int) -> Excerpt:
        """Head and tail of an output file, no secret left in it. Reads the disk; raises OSError."""
        self._scrub(path)
        return excerpt(path, room)

    async def recall(self, task: str, job: str) -> str:
        """What became of a job that this keeper does not know: one of an earlier start, or a finished call's output."""
        kept = await self._book.find(task, job)
        return f"{job} does not run; this is its output." if kept is None else gone(kept)

    async def bury(self, left: Sequence[KeptJob]) -> None:
        """At start, with the old daemon known to be dead: whatever it left running is ended, and its jobs are told.

        A command's supervisor ends its tree when the daemon is gone; here that is waited for and made sure of.
        """
        known = [Identity(job.pid, job.started, job.boot) for job in left]
        await asyncio.to_thread(end_leftovers, self.mark, known)
        for job in left:
            why = "lost: harnessd ended without warning, and everything it ran was ended with it"
            here = identify(1)
            if here is not None and here.boot != job.boot:
                why = "lost: the machine was started anew"
            over = replace(job, why=why)
            await self._book.ended(over, await asyncio.to_thread(self._words, gone(over), over))

    def find(self, task: str, job: str) -> Job | None:
        """A task's job, running or ended."""
        return self._of(task).get(job)

    async def stop(self, job: Job, why: str = "stopped") -> bool:
        """Kill a job's whole tree. False: something of it could not be ended."""
        if job.watcher is not None:
            job.watcher.cancel()
        if job.alive and not job.why:
            job.why = why
        clean = await job.running.kill()
        await self._enter(job, "")
        return clean

    # --- the port ---

    async def end_task(self, task: str) -> int:
        known = list(self._jobs.pop(task, {}).values())
        jobs = [job for job in known if job.alive]
        attended = list(self._attended.get(task, {}).values())
        ended = "ended with its task"
        await asyncio.gather(*(self.stop(job, ended) for job in jobs), *(running.kill() for running in attended))
        await asyncio.gather(*(job.watcher for job in known if job.watcher is not None), return_exceptions=True)
        return len(jobs) + len(attended)

    def running(self, task: str) -> Sequence[str]:
        return [job.id for job in self._of(task).values() if job.alive]

    def owed(self, task: str) -> Sequence[OwedJob]:
        now = asyncio.get_running_loop().time()
        return [
            OwedJob(job.id, job.command, None if job.life_s is None else max(0.0, job.since + job.life_s - now))
            for job in self._of(task).values()
            if job.kind == "slow" and not job.told
        ]

    def tasks(self) -> Sequence[str]:
        """The tasks that have anything running."""
        return [task for task in {*self._jobs, *self._attended} if self.running(task) or task in self._attended]

    def signs_of_life(self, task: str) -> Mapping[str, SignOfLife]:
        attended = {call: running.sign_of_life() for call, running in self._attended.get(task, {}).items()}
        return attended | {job.id: job.running.sign_of_life() for job in self._of(task).values() if job.alive}

    def listen(self, heard: Callable[[JobEnded], None]) -> None:
        self._heard.append(heard)

    def task_of(self, pids: Sequence[int]) -> str | None:
        """The task whose command's supervisor is, or lately was, among these pids: a process and its parents.

        May be asked from any thread.
        """
        for task in {*self._jobs, *self._attended}:
            running = [*self._attended.get(task, {}).values(), *(job.running for job in self._of(task).values())]
            if any(one.identity is not None and one.identity.pid in pids for one in running):
                return task
        return next((self._supervised[pid] for pid in pids if pid in self._supervised), None)

    async def aclose(self, why: str = "ended because harnessd was shut down") -> None:
        left = [job for jobs in self._jobs.values() for job in jobs.values() if job.alive]
        for job in left:
            if job.watcher is not None:
                job.watcher.cancel()
            job.why = job.why or why
        await asyncio.gather(*(self._shut_down(job) for job in left))
        await asyncio.gather(*(self.end_task(task) for task in {*self._jobs, *self._attended}))

    # --- inside ---

    def _remember(self, running: Running, task: str) -> None:
        if running.identity is not None:
            self._supervised.pop(running.identity.pid, None)
            self._supervised[running.identity.pid] = task
            if len(self._supervised) > _SUPERVISED_MAX:
                del self._supervised[next(iter(self._supervised))]

    def _of(self, task: str) -> dict[str, Job]:
        return self._jobs.get(task, {})

    async def _shut_down(self, job: Job) -> None:
        await job.running.kill()
        await self._tell(job)

    async def _watch(self, job: Job) -> None:
        try:
            async with asyncio.timeout(job.life_s):
                if job.kind == "slow":
                    ended = await asyncio.shield(job.running.ended)
                    job.code, job.why = ended.code, _broke(ended)
                    await asyncio.wait({job.running.gone}, timeout=LINGER_S)
                    await self._tell(job)
                await asyncio.shield(job.running.gone)
        except TimeoutError:
            job.why = f"ended at its life limit of {job.life_s:g} s"
            await job.running.kill()
            if job.kind == "left" or job.code is None:
                job.code = TIMED_OUT
                await self._tell(job)
            job.code = TIMED_OUT
            return
        if job.kind == "left":
            await self._tell(job)

    async def _tell(self, job: Job) -> None:
        """The words that wake the model: durable first, then said to whoever listens."""
        text = await asyncio.to_thread(self._words, state(job), job.kept())
        # What is written down once is not torn off in the middle: a watcher may be cancelled by a stop meanwhile.
        await asyncio.shield(asyncio.ensure_future(self._enter(job, text)))
        code = 0 if job.code is None else job.code
        for heard in self._heard:
            # By the loop, so that a listener's fault is the loop's to report and does not end the watch.
            asyncio.get_running_loop().call_soon(heard, JobEnded(job.task, job.id, code, text))

    async def _enter(self, job: Job, text: str) -> None:
        await self._book.ended(job.kept(), text)
        job.told = True

    def _words(self, head: str, job: KeptJob) -> str:
        shown = ""
        with contextlib.suppress(OSError):
            shown = self.excerpt(Path(job.output), WAKING_ROOM).text
        return f"{head}\nCommand: {clip(job.command, COMMAND_SHOWN)}\nOutput:\n{shown or '(none)'}"


def _broke(ended: Ended) -> str:
    if ended.flooded:
        return f"ended because it wrote more than {OUTPUT_FILE_MAX // 2**20} MiB"
    return "ended because it killed the process that watches it" if ended.lost else ""


def partial_output(context: ToolContext, since: float = 0.0) -> str:
    """What a call that was cut off (cancelled, or lost in a crash) had written; empty if it wrote nothing.

    `since`: when the call was planned, in seconds since the Unix epoch; older files are of an earlier call of its id.
    """
    folder = Path(context.artefacts)
    newest: Path | None = None
    for name in _numbered(_stem(context.call_id)):
        path = folder / f"{name}.out"
        if not path.exists():
            break
        newest = path
    with contextlib.suppress(OSError):
        if newest is not None and newest.stat().st_mtime >= since:
            return excerpt(newest, context.limits.output_max).text
    return ""


def gone(job: KeptJob) -> str:
    """What became of a job of an earlier start, in one sentence."""
    if job.why:
        return f"Job {job.id} was {job.why}."
    if job.ended_at is None:
        return f"Job {job.id} does not run any more."
    return f"Job {job.id} ended with exit code {job.code}."


def state(job: Job) -> str:
    """A job's state in one sentence."""
    age = f"{asyncio.get_running_loop().time() - job.since:.0f} s"
    if job.why:
        return f"Job {job.id} was {job.why}; exit code {TIMED_OUT if job.code is None else job.code}."
    if job.code is None:
        return f"Job {job.id} is running, {age} in the background."
    if job.alive:
        return f"Job {job.id}: its command ended with exit code {job.code}; {processes(job)} it left behind still run."
    if job.kind == "left":
        return f"Job {job.id} ended: nothing of what its command left behind runs any more."
    return f"Job {job.id} ended with exit code {job.code}."


def processes(job: Job) -> str:
    """How many processes of a job still run, in words."""
    count = len(job.running.pids)
    return f"{count} process" if count == 1 else f"{count} processes"


def _stem(call_id: str) -> str:
    """A file name for a call id, which is a provider's word and may be anything."""
    if _PLAIN.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '', call_id)[:40]}-{digest}"


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1
