"""Jobs: background commands of all tasks, seen, readable, stoppable, and ended with their task."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ToolSpec
from harnessd.domain.ports import JobEnded, JobKeeper, SignOfLife, ToolContext, ToolOutcome
from harnessd.tools.answers import NOTES_ROOM, clip, excerpt, failed
from harnessd.tools.process import OUTPUT_FILE_MAX, TIMED_OUT, Ended, Running

WAKING_ROOM = 4096  # bytes of output in the words that wake the model
COMMAND_SHOWN = 200
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
    code: int | None = None
    why: str = ""
    watcher: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Anything of its tree still runs."""
        return not self.running.gone.done()


class Jobs(JobKeeper):
    """All that runs for tasks: jobs in the background, and the calls that are being waited for."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, Job]] = {}
        self._attended: dict[str, dict[str, Running]] = {}
        self._heard: list[Callable[[JobEnded], None]] = []

    # --- what tools ask ---

    @contextlib.contextmanager
    def attend(self, context: ToolContext, running: Running) -> Iterator[None]:
        """Know of a command while its call waits for it, so that it has a sign of life and ends with its task."""
        calls = self._attended.setdefault(context.task, {})
        calls[context.call_id] = running
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

    def hand_over(self, context: ToolContext, running: Running, command: str, kind: Literal["slow", "left"]) -> Job:
        """Take a command into the background: watched to its end, at the latest to its life limit."""
        loop = asyncio.get_running_loop()
        job = Job(running.output.stem, context.task, command, running, kind, loop.time())
        if running.ended.done():
            job.code = running.ended.result().code
        self._jobs.setdefault(context.task, {})[job.id] = job
        job.watcher = loop.create_task(self._watch(job, context.limits.life_s))
        return job

    def find(self, task: str, job: str) -> Job | None:
        """A task's job, running or ended."""
        return self._of(task).get(job)

    async def stop(self, job: Job) -> bool:
        """Kill a job's whole tree. False: something of it could not be ended."""
        if job.watcher is not None:
            job.watcher.cancel()
        if job.alive and not job.why:
            job.why = "stopped"
        return await job.running.kill()

    # --- the port ---

    async def end_task(self, task: str) -> int:
        known = list(self._jobs.pop(task, {}).values())
        jobs = [job for job in known if job.alive]
        attended = list(self._attended.get(task, {}).values())
        await asyncio.gather(*(self.stop(job) for job in jobs), *(running.kill() for running in attended))
        await asyncio.gather(*(job.watcher for job in known if job.watcher is not None), return_exceptions=True)
        return len(jobs) + len(attended)

    def running(self, task: str) -> Sequence[str]:
        return [job.id for job in self._of(task).values() if job.alive]

    def signs_of_life(self, task: str) -> Mapping[str, SignOfLife]:
        attended = {call: running.sign_of_life() for call, running in self._attended.get(task, {}).items()}
        return attended | {job.id: job.running.sign_of_life() for job in self._of(task).values() if job.alive}

    def listen(self, heard: Callable[[JobEnded], None]) -> None:
        self._heard.append(heard)

    def task_of(self, pids: Sequence[int]) -> str | None:
        """The task whose command's supervisor is among these pids: a process and its parents."""
        for task in {*self._jobs, *self._attended}:
            running = [*self._attended.get(task, {}).values(), *(job.running for job in self._of(task).values())]
            if any(one.identity is not None and one.identity.pid in pids for one in running):
                return task
        return None

    async def aclose(self) -> None:
        await asyncio.gather(*(self.end_task(task) for task in {*self._jobs, *self._attended}))

    # --- inside ---

    def _of(self, task: str) -> dict[str, Job]:
        return self._jobs.get(task, {})

    async def _watch(self, job: Job, life_s: float | None) -> None:
        try:
            async with asyncio.timeout(life_s):
                if job.kind == "slow":
                    ended = await asyncio.shield(job.running.ended)
                    job.code, job.why = ended.code, _broke(ended)
                    await asyncio.wait({job.running.gone}, timeout=LINGER_S)
                    self._tell(job)
                await asyncio.shield(job.running.gone)
        except TimeoutError:
            job.why = f"ended at its life limit of {life_s:g} s"
            await job.running.kill()
            told = job.kind == "slow" and job.code is not None
            job.code = TIMED_OUT
            if not told:
                self._tell(job)
            return
        if job.kind == "left":
            self._tell(job)

    def _tell(self, job: Job) -> None:
        code = 0 if job.code is None else job.code
        with contextlib.suppress(OSError):
            shown = excerpt(job.running.output, WAKING_ROOM)
            text = f"{state(job)}\nCommand: {clip(job.command, COMMAND_SHOWN)}\nOutput:\n{shown.text or '(none)'}"
            for heard in self._heard:
                # By the loop, so that a listener's fault is the loop's to report and does not end the watch.
                asyncio.get_running_loop().call_soon(heard, JobEnded(job.task, job.id, code, text))


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


def state(job: Job) -> str:
    """A job's state in one sentence."""
    age = f"{asyncio.get_running_loop().time() - job.since:.0f} s"
    if job.why:
        return f"Job {job.id} was {job.why}; exit code {TIMED_OUT if job.code is None else job.code}."
    if job.code is None:
        return f"Job {job.id} is running, {age} in the background."
    if job.alive:
        return f"Job {job.id}: its command ended with exit code {job.code}; {_count(job)} it left behind still run."
    if job.kind == "left":
        return f"Job {job.id} ended: nothing of what its command left behind runs any more."
    return f"Job {job.id} ended with exit code {job.code}."


def _count(job: Job) -> str:
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


_JOB = {
    "type": "string",
    "pattern": "^[A-Za-z0-9_-]{1,120}$",
    "description": "The job's id, as it was given when the command went to the background.",
}


class JobOutput:
    """Tool `job_output`: read what a job, or a finished call whose output was cut, has written."""

    effect = EffectClass.READ_ONLY
    spec = ToolSpec(
        "job_output",
        "Read the output of a background job, running or ended, and its state. Also reads the whole output of a bash "
        "call whose result was cut, by the id named there. You are told when a job ends: do not poll it.",
        {
            "type": "object",
            "properties": {
                "job": _JOB,
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "Byte to read on from; 0, the default, shows head and tail of the whole.",
                },
            },
            "required": ["job"],
            "additionalProperties": False,
        },
    )

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        name: str = arguments["job"]
        offset = int(arguments.get("offset", 0))
        job = self._jobs.find(context.task, name)
        path = Path(context.artefacts, f"{name}.out")
        try:
            shown = await asyncio.to_thread(_read_on, path, context.limits.output_max - NOTES_ROOM, offset)
        except OSError:
            return _unknown(self.spec.name, name, self._jobs.running(context.task))
        head = state(job) if job else f"{name} does not run; this is its output."
        return ToolOutcome(f"{head} {shown}", facts={"running": bool(job and job.alive)})


def _read_on(path: Path, room: int, offset: int) -> str:
    if offset == 0:
        shown = excerpt(path, room)
        return f"{shown.size:,} bytes of output; read on from offset {shown.size}.\n{shown.text or '(no output yet)'}"
    with path.open("rb") as file:
        file.seek(offset)
        piece = file.read(max(room // 3, 64))  # a byte that is not UTF-8 may grow to three
    text = piece.decode("utf-8", "replace").replace("\0", "\ufffd")
    return f"Output from byte {offset}; read on from offset {offset + len(piece)}.\n{text or '(nothing new)'}"


class JobStop:
    """Tool `job_stop`: end a job and all it started."""

    effect = EffectClass.IDEMPOTENT
    spec = ToolSpec(
        "job_stop",
        "End a background job with everything it started. Stopping a job that has ended does nothing.",
        {"type": "object", "properties": {"job": _JOB}, "required": ["job"], "additionalProperties": False},
    )

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        name: str = arguments["job"]
        job = self._jobs.find(context.task, name)
        if job is None:
            if await asyncio.to_thread(Path(context.artefacts, f"{name}.out").exists):
                return ToolOutcome(f"{name} does not run: there is nothing to stop.")
            return _unknown(self.spec.name, name, self._jobs.running(context.task))
        if not job.alive:
            return ToolOutcome(f"{state(job)} There was nothing to stop.")
        if await self._jobs.stop(job):
            return ToolOutcome(f"Job {job.id} was stopped; nothing of it is left.")
        return failed(
            self.spec.name,
            ErrorClass.EXECUTION_FAILED,
            f"{_count(job)} of job {job.id} could not be ended",
            "They may be stuck in the kernel or belong to another user; go on without them and say so.",
        )


def _unknown(tool: str, job: str, running: Sequence[str]) -> Failure:
    known = f"Running jobs: {', '.join(running)}." if running else "No job of this task is running."
    return failed(tool, ErrorClass.EXECUTION_FAILED, f"there is no job {job} in this task", known)
