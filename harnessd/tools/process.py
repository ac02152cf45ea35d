"""Process: spawn a command under a supervisor, kill the whole tree (124), hand over to background.

The daemon talks to each command's supervisor (supervisor.py) over a socket pair, which is a life line as well: when the
daemon dies, however it dies, the supervisor's end closes and it ends its tree. Where the supervisor is killed or
stopped by its own command, the daemon does its work: the tree is walked from here, and orphans, which the kernel gave
to the daemon (itself a subreaper), are known by a marker in their environment.

Children are reaped by pid only: `waitpid(-1)` would steal the exits of other rooms' processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harnessd.domain.ports import SignOfLife
from harnessd.tools import supervisor
from harnessd.tools.tree import (
    COLLECT_S,
    Identity,
    collect,
    cpu_s,
    identify,
    identities,
    is_stopped,
    is_zombie,
    kill_until,
    marked,
    session_of,
    uncollected,
)

# Not HARNESSD_...: that is the prefix of settings, and a harnessd started by a command refuses ones it does not know.
MARKER = "_HARNESSD_CALL"
KILL_S = 2.0  # the whole time a kill may take before it is called incomplete
SUPERVISOR_S = 0.8  # of it: how long the supervisor has before the daemon takes over
EXEC_S = 2.0  # after this a forked command that nobody calls failed counts as started
OUTPUT_FILE_MAX = 256 * 1024 * 1024
TIMED_OUT = 124  # what timeout(1) exits with

# Threads of their own: a kill must not wait until somebody's long work in the loop's threads is done.
_THREADS = ThreadPoolExecutor(4, "kill")

# A command has no terminal and nobody who types: whatever would ask must fail or go on by itself. `true` as git's
# editor accepts the message git made (merge, rebase, amend); a commit without a message then fails with git's words.
NON_INTERACTIVE: Mapping[str, str] = {
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "GCM_INTERACTIVE": "never",
    "EDITOR": "false",
    "VISUAL": "false",
    "PAGER": "cat",
    "MANPAGER": "cat",
    "SSH_ASKPASS": "false",
    "SSH_ASKPASS_REQUIRE": "never",
    "TERM": "dumb",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command's main process ended. `code` as a shell gives it: 128 + signal where a signal ended it.

    `lost`: its supervisor was killed, so that the true code is unknown. `flooded`: it wrote more than is kept.
    `full`: the disk did not take all it wrote.
    """

    code: int
    signal: int | None = None
    lost: bool = False
    flooded: bool = False
    full: bool = False


def adopt_orphans() -> bool:
    """Make the daemon a subreaper, so that orphans of a killed supervisor come to it. Once a process is enough."""
    return supervisor.become_subreaper()


class Running:
    """One command under its supervisor. Made by `spawn`, on the event loop's thread."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, output: Path, token: str) -> None:
        self.output = output
        self.identity = identify(process.pid)
        self.main: Identity | None = None
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[int] = loop.create_future()  # 0, or the error number of the exec
        self.ended: asyncio.Future[Ended] = loop.create_future()
        self.gone: asyncio.Future[bool] = loop.create_future()  # True: nothing of the tree is left
        self._process = process
        self._control = control
        self._token = token
        self._heard = b""
        self._words: set[str] = set()
        self._seen: list[Identity] = []
        self._closing: asyncio.Task[None] | None = None
        control.setblocking(False)
        loop.add_reader(control.fileno(), self._listen)

    @property
    def pids(self) -> list[int]:
        """Live pids below the supervisor, as seen now."""
        below = [] if self.gone.done() else supervisor.descendants(self._process.pid)
        return [pid for pid in below if not is_zombie(pid)]

    def sign_of_life(self) -> SignOfLife:
        """Bytes written and CPU time used until now. The supervisor's own CPU time does not count."""
        with contextlib.suppress(OSError):
            size = self.output.stat().st_size
            below = sum(cpu_s(pid, own=True) for pid in self.pids)
            return SignOfLife(size, below + cpu_s(self._process.pid, own=False))
        return SignOfLife(0, 0.0)

    async def kill(self) -> bool:
        """SIGKILL the whole tree and see that nothing is left, within `KILL_S`. False: something is left.

        Safe to call more than once, and to the end even when the caller is cancelled meanwhile.
        """
        killing = asyncio.ensure_future(self._kill())
        cancelled: asyncio.CancelledError | None = None
        while not killing.done():
            try:
                await asyncio.shield(killing)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return killing.result()

    async def _kill(self) -> bool:
        if self.gone.done():
            return self.gone.result()
        loop = asyncio.get_running_loop()
        # Should the supervisor be struck down in the middle, its dead come to us without a name.
        self._seen = identities(self.pids)
        with contextlib.suppress(OSError):
            self._control.send(b"kill\n")
        if not is_stopped(self._process.pid):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SUPERVISOR_S):
                    return await asyncio.shield(self.gone)
        # The supervisor is stopped or starved. Its descendants are killed first, while they are still below it.
        clean = await loop.run_in_executor(_THREADS, self._kill_by_hand)
        self._set_ended(-signal.SIGKILL, lost=True)
        await asyncio.wait({self.gone}, timeout=COLLECT_S)
        return clean

    def _kill_by_hand(self) -> bool:
        deadline = time.monotonic() + KILL_S - SUPERVISOR_S - 2 * COLLECT_S
        below = functools.partial(supervisor.descendants, self._process.pid)
        clean = kill_until(below, deadline)
        dead = identities(below())
        self._process.kill()
        collect(dead)
        return clean

    def _listen(self) -> None:
        try:
            piece = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._heard += piece
        *words, self._heard = self._heard.split(b"\n")
        for word in words:
            self._take(*word.decode().split())
        if not piece:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._closing = asyncio.ensure_future(self._close())

    def _take(self, word: str, number: str = "0") -> None:
        match word:
            case "forked":
                self.main = identify(int(number))
                # A command may stop its supervisor before that has said more.
                asyncio.get_running_loop().call_later(EXEC_S, self._set_started, 0)
            case "started" | "failed":
                self._set_started(int(number))
            case "exited":
                self._set_ended(int(number))
            case _:  # `flooded`, `full`; and `empty`, said by a supervisor that ends now: `_close` makes sure of it
                self._words.add(word)

    def _set_started(self, error: int) -> None:
        if not self.started.done():
            self.started.set_result(error)

    def _set_ended(self, code: int, *, lost: bool = False) -> None:
        flooded, full = "flooded" in self._words, "full" in self._words
        ended = Ended(code if code >= 0 else 128 - code, -code if code < 0 else None, lost, flooded, full)
        if not self.ended.done():
            self.ended.set_result(ended)

    async def _close(self) -> None:
        """The supervisor ended. After a proper end nothing is left; if it was killed, its orphans are looked for."""
        loop = asyncio.get_running_loop()
        status = self._process.poll()
        while status is None:  # the socket closes a moment before the exit can be collected
            await asyncio.sleep(0.002)
            status = self._process.poll()
        clean = status == 0 or await loop.run_in_executor(_THREADS, self._kill_orphans)
        if uncollected:
            await loop.run_in_executor(_THREADS, collect)
        self._set_started(0)
        self._set_ended(-signal.SIGKILL, lost=True)
        if not self.gone.done():
            self.gone.set_result(clean)

    def _kill_orphans(self) -> bool:
        setting = f"{MARKER}={self._token}"
        clean = kill_until(
            lambda: [*marked(setting), *(identity.pid for identity in self._seen if identity.alive)],
            time.monotonic() + SUPERVISOR_S,
        )
        # What died with the supervisor, the command first of all, was handed to us dead: the marker cannot be read.
        main = self.main.pid if self.main else 0
        ours = [pid for pid in supervisor.children(os.getpid()) if main in (pid, session_of(pid))]
        collect([*self._seen, *identities(ours)])
        return clean


def end_leftovers(mark: str, supervisors: Sequence[Identity]) -> bool:
    """End what a daemon that is known to be dead left running; False where something could not be ended.

    Its supervisors end their trees by themselves when it is gone, and know best what belongs to them: they are given
    the time. Who is left then has lost its supervisor, or never had the mark taken from its environment.
    """
    wanted = f"{MARKER}={mark}."

    def below() -> list[int]:
        trees = [pid for one in supervisors if one.alive for pid in (*supervisor.descendants(one.pid), one.pid)]
        return [*marked(wanted, begins=True), *trees] if mark else trees

    deadline = time.monotonic() + SUPERVISOR_S
    while any(not is_zombie(pid) and not is_stopped(pid) for pid in below()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return kill_until(below, time.monotonic() + KILL_S)


def spawn(argv: Sequence[str], cwd: str, environment: Mapping[str, str], output: Path, mark: str = "") -> Running:
    """Start a command under a supervisor; its output goes to `output`, which is emptied first.

    `mark` is what all processes of this installation are known by, in their environment.

    Runs on the loop's thread and gives back at once (no await, so no cancellation can lose the child). Whether the
    command could be executed is told by `Running.started`. Raises OSError (no such cwd, no descriptors, argument list
    too long) and ValueError (NUL in an argument).
    """
    token = f"{mark}.{secrets.token_hex(8)}"
    complete = {**environment, **NON_INTERACTIVE, MARKER: token}
    output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    ours, theirs = socket.socketpair()
    try:
        sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", supervisor.__file__),
                    *(str(theirs.fileno()), str(sink), str(OUTPUT_FILE_MAX)),
                    *argv,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=cwd,
                env=complete,
                pass_fds=(theirs.fileno(), sink),
                start_new_session=True,
            )
        finally:
            os.close(sink)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Running(process, ours, output, token)
