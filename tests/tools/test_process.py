"""Process: identities, and what happens to commands when the daemon itself dies."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harnessd.tools import supervisor
from harnessd.tools.process import NON_INTERACTIVE, Running, spawn
from harnessd.tools.tree import identify, oom_kills

Alive = Callable[[str], list[int]]

# A process of its own that plays the daemon: it runs one command and waits for ever.
DAEMON = """
import asyncio, sys
from harnessd.domain.ports import ToolContext, ToolLimits
from harnessd.tools import Jobs, builtin_tools
from harnessd.workspace.confine import confine

async def main():
    workspace, artefacts, command = sys.argv[1:]
    limits = ToolLimits(timeout_s=0.5, on_timeout=ON_TIMEOUT)
    context = ToolContext("t1", "call_1", workspace, artefacts, limits, {"PATH": "/usr/bin:/bin"})
    jobs = Jobs()
    print(await builtin_tools(confine, jobs)["bash"].run({"command": command}, context), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""

SHAPES = {
    "plain": "sleep {n}",
    "setsid": "setsid sleep {n} & wait",
    "double fork": "( ( setsid sleep {n} & ) & ); sleep {n}",
    "ignores every signal": "trap '' TERM HUP INT QUIT; sleep {n}; sleep {n}",
}


@pytest.mark.parametrize("where", ["30.0", "0.2"], ids=["waited for", "in the background"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_kill_9_of_the_daemon_leaves_no_process(
    tmp_path: Path, needle: str, alive: Alive, until: Any, shape: str, where: str
) -> None:
    # G12, I9: supervisors see their life line end
    program = DAEMON.replace("timeout_s=0.5", f"timeout_s={where}").replace("ON_TIMEOUT", "'background'")
    daemon = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), str(tmp_path / "artefacts"), SHAPES[shape].format(n=needle)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        # Seen are the daemon's own command line, the supervisor's, the shell's, and the sleep.
        await until(lambda: any(_name(pid) == "sleep" for pid in alive(needle)))
        if where == "0.2":
            assert daemon.stdout
            assert b"job='call_1'" in await asyncio.to_thread(daemon.stdout.readline)
    finally:
        daemon.kill()
        daemon.communicate()
    await until(lambda: not alive(needle), 10)


async def test_a_life_line_that_breaks_with_words_unread_ends_the_tree_as_well(
    tmp_path: Path, needle: str, alive: Alive, until: Any
) -> None:
    # A Unix socket whose other end closes with unread bytes is reset: read() fails where else it would be at its end.
    ours, theirs = socket.socketpair()
    with (tmp_path / "out").open("wb") as sink:
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", supervisor.__file__, str(theirs.fileno()), str(sink.fileno()), "1000"),
                *("/bin/sh", "-c", f"setsid sleep {needle} & wait"),
            ],
            pass_fds=(theirs.fileno(), sink.fileno()),
        )
    theirs.close()
    await until(lambda: any(_name(pid) == "sleep" for pid in alive(needle)))
    ours.close()
    assert await asyncio.to_thread(process.wait, 5) == 0
    assert alive(needle) == []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_an_identity_is_not_fooled_by_a_reused_pid() -> None:
    mine = identify(os.getpid())
    assert mine is not None
    assert mine.alive
    assert not replace(mine, started=mine.started - 1).alive
    assert not replace(mine, boot="another boot").alive


def test_an_identity_ends_with_its_process() -> None:
    child = subprocess.Popen(["/bin/sleep", "60"])
    identity = identify(child.pid)
    assert identity is not None
    assert identify(child.pid) == identity
    child.kill()
    child.wait()
    assert not identity.alive
    assert identify(child.pid) is None


async def _run(tmp_path: Path, *argv: str) -> Running:
    return spawn(argv, str(tmp_path), {"PATH": "/usr/bin:/bin"}, tmp_path / "out" / "x.out")


async def test_a_program_that_is_not_there_is_told_by_its_error_number(tmp_path: Path) -> None:
    running = await _run(tmp_path, "/no/such/program")
    assert await running.started == 2
    assert await running.gone


async def test_exit_codes_are_as_a_shell_gives_them(tmp_path: Path) -> None:
    running = await _run(tmp_path, "/bin/sh", "-c", "kill -SEGV $$")
    ended = await running.ended
    assert (ended.code, ended.signal) == (128 + signal.SIGSEGV, signal.SIGSEGV)
    assert await running.gone


async def test_a_kill_after_the_end_is_harmless(tmp_path: Path) -> None:
    running = await _run(tmp_path, "/bin/true")
    await running.ended
    assert await running.kill()
    assert await running.kill()


async def test_a_sign_of_life_shows_output_and_work_and_stands_still_for_a_sleeper(tmp_path: Path, until: Any) -> None:
    # R3.11
    busy = await _run(tmp_path, "/bin/sh", "-c", "echo word; while :; do :; done")
    try:
        await until(lambda: busy.sign_of_life().cpu_s > 0.05)
        assert busy.sign_of_life().output_bytes == len("word\n")
    finally:
        await busy.kill()
    still = await _run(tmp_path, "/bin/sleep", "60")
    try:
        await still.started
        await asyncio.sleep(0.1)
        before = still.sign_of_life()
        await asyncio.sleep(0.3)
        assert still.sign_of_life() == before
    finally:
        await still.kill()


async def test_output_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    running = await _run(tmp_path, "/bin/true")
    await running.gone
    assert running.output.stat().st_mode & 0o077 == 0
    assert running.output.parent.stat().st_mode & 0o077 == 0


async def test_a_spawn_that_fails_gives_its_descriptors_back(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            spawn(["/bin/true"], str(tmp_path / "gone"), {}, tmp_path / "x.out")
    for _ in range(5):
        await (await _run(tmp_path, "/bin/true")).gone
    await asyncio.sleep(0.05)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_command_that_ends_leaves_no_zombie(tmp_path: Path) -> None:
    running = await _run(tmp_path, "/bin/sh", "-c", "sleep 0.05 & setsid sleep 0.05 & wait")
    assert running.identity is not None
    await running.gone
    deadline = time.monotonic() + 2
    while identify(running.identity.pid) == running.identity:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_no_setting_leaves_room_for_a_question() -> None:
    # d07
    for name in ("GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "EDITOR", "VISUAL", "PAGER"):
        assert NON_INTERACTIVE[name] in ("true", "false", "cat")


def test_the_oom_counter_can_be_read() -> None:
    assert oom_kills() >= 0


async def test_running_out_of_descriptors_is_an_error_of_the_start_and_nothing_is_left(tmp_path: Path) -> None:
    # F18
    before = len(list(Path("/proc/self/fd").iterdir()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in (1, 2, 3, 5):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest_free_descriptor() + spare, hard))
        try:
            with pytest.raises(OSError) as caught:
                spawn(["/bin/true"], str(tmp_path), {}, tmp_path / "x.out")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert caught.value.errno == errno.EMFILE
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def _lowest_free_descriptor() -> int:
    descriptor = os.open("/", os.O_RDONLY)
    os.close(descriptor)
    return descriptor
