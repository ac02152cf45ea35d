"""Tree: who a process is, what is below it, and how all of it is ended, as /proc shows it.

A pid alone names nobody for long: it is used again. Every look here gives a moment's view; what must be true is looked
at until it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from harnessd.tools import supervisor

COLLECT_S = 0.3  # how long orphans are waited for to be reaped


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that cannot be mistaken for a later one of the same pid: its start in clock ticks, and the boot."""

    pid: int
    started: int
    boot: str

    @property
    def alive(self) -> bool:
        """The very same process still exists (a zombie counts)."""
        return identify(self.pid) == self


def identify(pid: int) -> Identity | None:
    """The identity of a live pid, or None."""
    stat = _stat(pid)
    return Identity(pid, int(stat[19]), _boot_id()) if stat else None


def identities(pids: Iterable[int]) -> list[Identity]:
    """Identities of those that are there."""
    return [identity for pid in pids if (identity := identify(pid))]


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def oom_kills() -> int:
    """How often the kernel's out-of-memory killer struck in our own control group; 0 where it does not count."""
    for line in _read("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            counts = _read(f"/sys/fs/cgroup{path}/memory.events")
        elif controllers == "memory":
            counts = _read(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
        else:
            continue
        for word, count in (pair.split() for pair in counts.splitlines()):
            if word == "oom_kill":
                return int(count)
    return 0


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8")
    return ""


# Of all commands, since children are the process's: killed, and not yet known to be reaped.
uncollected: set[Identity] = set()
_collecting = threading.Lock()


def kill_until(find: Callable[[], list[int]], deadline: float) -> bool:
    """SIGKILL what `find` shows until it shows nothing: a tree that forks may need several looks.

    Then nothing is left that could fork. What was killed still is to be reaped, by us if it came to us.
    """
    while alive := identities(pid for pid in find() if not is_zombie(pid)):
        for identity in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(identity.pid, signal.SIGKILL)
        with _collecting:
            uncollected.update(alive)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def collect(dead: Iterable[Identity] = ()) -> None:
    """Reap those that come to us as orphans. A dead one is its parent's until that is gone, too: so for a while.

    What cannot be had yet is looked at again with the next command's end.
    """
    deadline = time.monotonic() + COLLECT_S
    with _collecting:
        uncollected.update(dead)
    while uncollected and time.monotonic() < deadline:
        with _collecting:
            for identity in [identity for identity in uncollected if identity.alive]:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(identity.pid, os.WNOHANG)
            uncollected.difference_update([identity for identity in uncollected if not identity.alive])
        time.sleep(0.002 if uncollected else 0)


def is_zombie(pid: int) -> bool:
    """Dead, if not yet reaped; or not there at all."""
    stat = _stat(pid)
    return stat is None or stat[0] in (b"Z", b"X")


def is_stopped(pid: int) -> bool:
    """Held by a signal: it answers nobody."""
    stat = _stat(pid)
    return stat is not None and stat[0] in (b"T", b"t")


def session_of(pid: int) -> int:
    """The session of a process; 0 if it is not there."""
    stat = _stat(pid)
    return int(stat[3]) if stat else 0


def _stat(pid: int) -> list[bytes] | None:
    """Fields of /proc/PID/stat from the third (state) on; the second may hold spaces and brackets of its own."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return stat[stat.rindex(b")") + 2 :].split()


def marked(setting: str, *, begins: bool = False) -> list[int]:
    """Pids whose environment holds `NAME=value`, with all that is below them. /proc hides those of other users.

    `begins`: a value that begins so is enough.
    """
    wanted = setting.encode()
    found: list[int] = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are all that is wanted
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                settings = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                if wanted in settings or (begins and any(one.startswith(wanted) for one in settings)):
                    found += [int(entry), *supervisor.descendants(int(entry))]
    return found


def cpu_s(pid: int, *, own: bool) -> float:
    """User and system time of a process (`own`) and of the children it has collected."""
    stat = _stat(pid)
    if stat is None:
        return 0.0
    ticks = [int(field) for field in stat[11:15]]  # utime stime cutime cstime
    return sum(ticks if own else ticks[2:]) / os.sysconf("SC_CLK_TCK")
