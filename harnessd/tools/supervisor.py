"""Supervisor: a small process above each command, out of whose sight nothing that the command starts can get.

Run as a script of its own (`python -I -S supervisor.py CONTROL OUTPUT OUTPUT_MAX ARGV...`), standard library only.

A command's processes may leave their group and session, fork twice and outlive their parents. The kernel hands every
orphan to its nearest living *subreaper* ancestor (prctl(2)). This process is one, so whatever the command started is
for ever below it, and `waitpid` saying "no children" is the kernel's own proof that nothing is left.

It ends everything when the daemon says `kill`, when the output grows over its bound, and when the daemon is gone (the
control socket ends, however the daemon died). It waits for exits, never for the end of a pipe: what the command writes
comes through a pipe and goes to the output file here, because a file handed to a command directly is emptied by the
first `echo ... > /dev/stderr` (that opens the file anew, with O_TRUNC).

Words to the daemon, one a line: `forked PID`, `started`, `failed ERRNO`, `exited CODE` (negative: the signal),
`flooded`, `full` (the disk took not all), `empty`. Word from the daemon: `kill`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
READ_BYTES = 1 << 20
KILL_TICK_MS = 10
KILL_TICKS = 200  # then something cannot be killed (a system call that does not end, another user's process): look less
SLOW_TICK_MS = 500
# A killed tree still deserves the memory more than the daemon does: the kernel's out-of-memory killer takes it first.
OOM_SCORE = b"500"


class Passing:
    """`contextlib.suppress`, without what importing contextlib would add to each command's start."""

    def __init__(self, *errors: type[BaseException]) -> None:
        self.errors = errors

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self.errors)


def become_subreaper() -> bool:
    """Have the kernel give orphans below this process to it; False where it will not."""
    return prctl(PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> bool:
    """Set one attribute of this process; False where the kernel refuses."""
    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)


def children(pid: int) -> list[int]:
    """Pids of the direct children of all threads of a process, as /proc shows them."""
    found: list[int] = []
    with Passing(FileNotFoundError, ProcessLookupError):
        for thread in os.scandir(f"/proc/{pid}/task"):
            found += map(int, _read(f"{thread.path}/children").split())
        return found
    return [] if os.path.exists("/proc/self/task/self/children") else _children_by_parent(pid)  # noqa: PTH110 - see `_read`


def _read(path: str) -> bytes:
    # Not pathlib: importing it would double what each command's start costs.
    with open(path, "rb") as file:  # noqa: PTH123 - see above
        return file.read()


def _children_by_parent(pid: int) -> list[int]:
    """The same for kernels that keep no list of children: every process is asked for its parent."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with Passing(OSError):
                stat = _read(f"/proc/{entry.name}/stat")
                if int(stat[stat.rindex(b")") + 2 :].split()[1]) == pid:
                    found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """All pids below a process, parents before children. A moment's view: a tree that forks needs another look."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children(waiting.pop())
        found += below
        waiting += below
    return found


class Supervisor:
    """One command from start to the end of its last descendant."""

    def __init__(self, control: int, output: int, output_max: int) -> None:
        self.control = control
        self.output = output
        self.room = output_max
        self.main = 0
        self.source = -1
        self.killing = False
        self.kills = 0
        self.full = False

    def run(self, argv: list[str]) -> int:
        """Start, watch, end; the exit status of the supervisor itself."""
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.source, sink = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.source, False)
        error = self._start(argv, sink)
        os.close(sink)
        if error:
            self._say(f"failed {error}")
            return 0
        self._say("started")
        try:
            self._watch(wake)
        except BaseException:
            # A fault of our own must not set the tree free.
            while not self._reap() and self.kills < KILL_TICKS:
                self._kill()
                select.poll().poll(KILL_TICK_MS)
            raise
        self._drain(reads=4)
        self._say("empty")
        return 0

    def _watch(self, wake: int) -> None:
        """Until nothing of the tree is left."""
        poll = select.poll()
        for descriptor in (self.control, wake, self.source):
            poll.register(descriptor, select.POLLIN)
        while True:
            tick = (KILL_TICK_MS if self.kills < KILL_TICKS else SLOW_TICK_MS) if self.killing else None
            ready = {descriptor for descriptor, _ in poll.poll(tick)}
            if wake in ready:
                with Passing(BlockingIOError):
                    os.read(wake, 4096)
            if self.source in ready and not self._drain():
                poll.unregister(self.source)
            if self.control in ready:
                self.killing = True
                if not self._listens():
                    poll.unregister(self.control)
            if self.killing:
                self._kill()
            if self._reap():
                return

    def _listens(self) -> bool:
        """Take the daemon's word; False when it is gone. It is reset, not ended, if our own words were left unread."""
        try:
            return bool(os.read(self.control, 4096))
        except OSError:
            return False

    def _start(self, argv: list[str], sink: int) -> int:
        """Fork and execute; 0, or the error number of the exec."""
        answer, told = os.pipe2(os.O_CLOEXEC)
        gate, opened = os.pipe2(os.O_CLOEXEC)
        try:
            self.main = os.fork()
        except OSError as refusal:
            return refusal.errno or errno.EAGAIN
        if self.main == 0:
            try:
                os.close(opened)
                os.read(gate, 1)
                _become(argv, sink)
            except OSError as refusal:
                os.write(told, str(refusal.errno).encode())
            finally:
                os._exit(127)
        # The daemon knows the command's pid before its first instruction, which may be to kill us.
        self._say(f"forked {self.main}")
        os.close(opened)
        os.close(told)
        with os.fdopen(answer, "rb") as reader:
            error = int(reader.read() or 0)
        if error:
            os.waitpid(self.main, 0)
        return error

    def _drain(self, reads: int = 1) -> bool:
        """Move what the pipe holds to the file; False at its end. Over the bound: everything is ended.

        One read takes all that a pipe of the usual size holds; the caller's loop comes back for more, so that a flood
        keeps nobody from hearing `kill`.
        """
        for _ in range(reads):
            try:
                piece = os.read(self.source, READ_BYTES)
            except BlockingIOError:
                return True
            if not piece:
                return False
            self._keep(piece[: max(self.room, 0)])
            if self.room >= 0 > self.room - len(piece):
                self._say("flooded")
                self.killing = True
            self.room -= len(piece)
        return True

    def _keep(self, piece: bytes) -> None:
        # A full disk loses output; it must not lose the command's end as well.
        try:
            while piece:
                piece = piece[os.write(self.output, piece) :]
        except OSError:
            if not self.full:
                self._say("full")
            self.full = True

    def _kill(self) -> None:
        self.kills += 1
        for pid in descendants(os.getpid()):
            with Passing(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> bool:
        """Collect the dead; True when no child, and so no descendant, is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.main:
                self._drain(reads=4)  # what the command wrote before its end belongs to its result
                self._say(f"exited {os.waitstatus_to_exitcode(status)}")

    def _say(self, word: str) -> None:
        try:
            os.write(self.control, f"{word}\n".encode())
        except OSError:
            self.killing = True  # nobody listens any more: the daemon is gone


def _become(argv: list[str], sink: int) -> None:
    """In the forked child: a session of its own, the outside world's signals and streams, then the command."""
    os.setsid()
    # The last rope, for the case that the supervisor is killed and the daemon with it.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # Ignored signals stay ignored over exec: a command must get the defaults.
        with Passing(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    with Passing(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as score:  # noqa: PTH123 - see above
        score.write(OOM_SCORE)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    # Not os.environ: at its own start Python may have added LC_CTYPE (PEP 538), which nobody gave this command.
    given = (entry.partition(b"=") for entry in _read("/proc/self/environ").split(b"\0") if entry)
    os.execve(argv[0], argv, {name: value for name, _, value in given})  # noqa: S606 - what this file is for


def main(arguments: list[str]) -> int:
    """Take the descriptors over, shut the ears to the command's signals, supervise."""
    control, output, output_max = map(int, arguments[:3])
    os.set_inheritable(control, False)
    os.set_inheritable(output, False)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with Passing(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    return Supervisor(control, output, output_max).run(arguments[3:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
