"""Shell: the `bash` tool: one command line, its output, its exit code; killed or handed over at its timeout."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ToolSpec
from harnessd.domain.ports import ToolContext, ToolOutcome
from harnessd.tools.answers import NOTES_ROOM, Excerpt, failed
from harnessd.tools.jobs import LINGER_S, Jobs
from harnessd.tools.process import KILL_S, OUTPUT_FILE_MAX, TIMED_OUT, Ended, Running, spawn
from harnessd.tools.tree import oom_kills

START_S = 30.0  # for supervisor and shell to be there; the command's own time begins after that
# Absolute, found once: a program named `bash` in a workspace is never run by a PATH with an empty entry.
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/run/current-system/sw/bin/bash", "/bin/sh")


@dataclass(frozen=True, slots=True)
class Call:
    """One command of one tool call, on its way."""

    tool: str
    shown: str  # the command in words
    context: ToolContext
    running: Running
    timeout_s: float
    oom_kills: int


class Bash:
    """Tool `bash`."""

    effect = EffectClass.REVERSIBLE
    spec = ToolSpec(
        "bash",
        "Run a command line with bash in the workspace's root and get its output (stdout and stderr together) and exit "
        "code. Each call is a new shell: `cd` and variables do not last. There is no terminal and no input: a command "
        "that asks will fail. A command that takes longer than its timeout is either ended (exit code 124) or goes on "
        "in the background as a job, and you are told when it ends. What a command leaves running with `&` becomes "
        "such a job too, and ends with the task.",
        {
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1, "description": "The command line."},
                "timeout_s": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "description": "Seconds it may take, where the usual time is too short or too long.",
                },
            },
            "required": ["command"],
            "additionalProperties": False,
        },
    )

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), "/bin/sh")

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        command: str = arguments["command"]
        wanted = float(arguments.get("timeout_s") or context.limits.timeout_s)
        timeout_s = min(wanted, max(context.limits.timeout_max_s, context.limits.timeout_s))
        return await carry_out(self.spec.name, [self._shell, "-c", command], command, context, self._jobs, timeout_s)


async def carry_out(
    tool: str, argv: Sequence[str], shown: str, context: ToolContext, jobs: Jobs, timeout_s: float
) -> ToolOutcome | Failure:
    """Run a command for a tool call to its end, its timeout, or the caller's cancellation.

    Cancelled, the whole tree is dead before the cancellation goes on; what it had written is `partial_output`.
    """
    kills = oom_kills()
    try:
        running = spawn(argv, context.workspace, context.environment, jobs.output_file(context), jobs.mark)
    except (OSError, ValueError) as error:
        return await asyncio.to_thread(_not_started, tool, error, context.workspace)
    call = Call(tool, shown, context, running, timeout_s, kills)
    with jobs.attend(context, running):
        try:
            return await _see_through(call, jobs)
        except BaseException:
            await running.kill()
            raise


async def _see_through(call: Call, jobs: Jobs) -> ToolOutcome | Failure:
    running = call.running
    try:
        # Not asyncio.wait_for: until Python 3.12 it swallows a cancellation that comes together with the result.
        async with asyncio.timeout(START_S):
            error = await asyncio.shield(running.started)
    except TimeoutError:
        await running.kill()
        error = errno.ETIMEDOUT
    if error:
        return _not_started(call.tool, OSError(error, os.strerror(error)), call.context.workspace)
    try:
        async with asyncio.timeout(call.timeout_s):
            ended = await asyncio.shield(running.ended)
    except TimeoutError:
        if call.context.limits.on_timeout == "kill":
            return await _timed_out(call, jobs)
        return await _handed_over(call, jobs)
    if ended.lost or ended.flooded:
        await running.kill()
        return await _broke(call, ended, jobs)
    await asyncio.wait({running.gone}, timeout=LINGER_S)
    if not running.pids:  # all are dead, and only the supervisor has not yet come to say so
        await asyncio.wait({running.gone}, timeout=KILL_S)
    return await _ended(call, ended, jobs)


async def _ended(call: Call, ended: Ended, jobs: Jobs) -> ToolOutcome:
    shown = await _output(call, jobs)
    notes = []
    job = None
    if not call.running.gone.done():
        job = (await jobs.hand_over(call.context, call.running, call.shown, "left")).id
        left = _processes(len(call.running.pids))
        notes.append(f"left running: {left}, now background job {job}; job_stop ends it, and so does the task's end")
    if shown.left_out:
        notes.append(_whole(call, shown))
    elif job is None:
        await asyncio.to_thread(call.running.output.unlink, missing_ok=True)
    if ended.full:
        notes.insert(0, "some of the output was lost: the disk is full")
    if ended.code:
        notes.insert(0, f"exit code {ended.code}{_cause(call, ended)}")
    text = "\n".join([shown.text.rstrip("\n") or "(no output)", *(f"[{note}]" for note in notes)])
    return ToolOutcome(
        text,
        is_error=ended.code != 0,
        exit_code=ended.code,
        artefact=str(call.running.output) if shown.left_out else None,
        job=job,
    )


async def _timed_out(call: Call, jobs: Jobs) -> Failure:
    clean = await call.running.kill()
    shown = await _output(call, jobs)
    remains = "" if clean else f"; {_processes(len(call.running.pids))} of it could not be ended"
    most = call.context.limits.timeout_max_s
    advice = f"Ask for more time with timeout_s (at most {most:g}), or do it in smaller steps."
    return failed(
        call.tool,
        ErrorClass.TIMEOUT,
        f"command timed out after {call.timeout_s * 1000:.0f} ms{remains}",
        f"{advice} {_whole(call, shown)}" if shown.left_out else advice,
        exit_code=TIMED_OUT,
        output=shown.text,
        effect_begun=True,
    )


async def _handed_over(call: Call, jobs: Jobs) -> ToolOutcome:
    shown = await _output(call, jobs)
    job = await jobs.hand_over(call.context, call.running, call.shown, "slow")
    life = call.context.limits.life_s
    until = f"It is ended after {life:g} s more. " if life is not None else ""
    note = (
        f"The command still runs after {call.timeout_s:g} s and goes on in the background as job {job.id}. {until}"
        f"You are told when it ends; until then job_output reads its output (file {call.running.output.name}) "
        "and job_stop ends it."
    )
    text = "\n".join([shown.text.rstrip("\n") or "(no output yet)", f"[{note}]"])
    return ToolOutcome(text, artefact=str(call.running.output), job=job.id)


async def _broke(call: Call, ended: Ended, jobs: Jobs) -> Failure:
    shown = await _output(call, jobs)
    if ended.flooded:
        message = f"the command wrote more than {OUTPUT_FILE_MAX // 2**20} MiB of output and was ended"
        advice = "Write less: filter it, or send it to a file in the workspace."
    else:
        message = "the command ended the process that watches it; everything it had started was ended"
        advice = "Do not signal processes that this command did not start."
    return failed(
        call.tool,
        ErrorClass.EXECUTION_FAILED,
        message,
        advice,
        exit_code=ended.code,
        output=shown.text,
        effect_begun=True,
    )


async def _output(call: Call, jobs: Jobs) -> Excerpt:
    room = call.context.limits.output_max - NOTES_ROOM
    with contextlib.suppress(OSError):
        return await asyncio.to_thread(jobs.excerpt, call.running.output, room)
    return Excerpt("", 0, 0)


def _whole(call: Call, shown: Excerpt) -> str:
    return f"The whole output, {shown.size:,} bytes, is kept: job_output reads it by the id {call.running.output.stem}."


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _cause(call: Call, ended: Ended) -> str:
    """What an exit by SIGKILL means, which no command says itself: nobody but the kernel or a person sends it."""
    if ended.code != 128 + 9:
        return f", ended by signal {ended.signal}" if ended.signal else ""
    if oom_kills() > call.oom_kills:
        return ": killed by the memory limit"
    return ": killed by SIGKILL, which usually is the memory limit"


def _not_started(tool: str, error: OSError | ValueError, workspace: str) -> Failure:
    if not Path(workspace).is_dir():
        advice = "Nothing can be run here until a person puts it back: stop and say so."
        return failed(tool, ErrorClass.EXECUTION_FAILED, "the workspace's folder is not there any more", advice)
    if isinstance(error, ValueError):
        return failed(
            tool, ErrorClass.INVALID_ARGUMENTS, "command: holds a NUL character", "Leave it out; use printf '\\0'."
        )
    if error.errno == errno.E2BIG:
        return failed(
            tool,
            ErrorClass.INVALID_ARGUMENTS,
            "command: is longer than the system takes (128 KiB)",
            "Write the long part to a file with write_file, in pieces, and run that.",
        )
    reason = os.strerror(error.errno) if error.errno else "the system refused"
    return failed(
        tool,
        ErrorClass.UNAVAILABLE,
        f"the command could not be started: {reason}",
        "This is the machine's trouble, not the command's: try once more later, or tell the operator.",
    )
