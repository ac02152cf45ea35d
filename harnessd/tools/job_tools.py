"""Job tools: `job_output` and `job_stop`: what a model does with background jobs, of this start and of earlier ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ToolSpec
from harnessd.domain.ports import ToolContext, ToolOutcome
from harnessd.tools.answers import NOTES_ROOM, failed
from harnessd.tools.jobs import Jobs, processes, state

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
            room = context.limits.output_max - NOTES_ROOM
            shown = await asyncio.to_thread(_read_on, self._jobs, path, room, offset)
        except OSError:
            return _unknown(self.spec.name, name, self._jobs.running(context.task))
        head = state(job) if job else await self._jobs.recall(context.task, name)
        return ToolOutcome(f"{head} {shown}", facts={"running": bool(job and job.alive)})


def _read_on(jobs: Jobs, path: Path, room: int, offset: int) -> str:
    shown = jobs.excerpt(path, room)
    if offset == 0:
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
                return ToolOutcome(f"{await self._jobs.recall(context.task, name)} There is nothing to stop.")
            return _unknown(self.spec.name, name, self._jobs.running(context.task))
        if not job.alive:
            return ToolOutcome(f"{state(job)} There was nothing to stop.")
        if await self._jobs.stop(job):
            return ToolOutcome(f"Job {job.id} was stopped; nothing of it is left.")
        return failed(
            self.spec.name,
            ErrorClass.EXECUTION_FAILED,
            f"{processes(job)} of job {job.id} could not be ended",
            "They may be stuck in the kernel or belong to another user; go on without them and say so.",
        )


def _unknown(tool: str, job: str, running: Sequence[str]) -> Failure:
    known = f"Running jobs: {', '.join(running)}." if running else "No job of this task is running."
    return failed(tool, ErrorClass.EXECUTION_FAILED, f"there is no job {job} in this task", known)
