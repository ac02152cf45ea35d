"""Lineage: does a caller descend from a tool of a task? Then it is the agent, whatever user it runs as.

All tools run under the daemon, which is their subreaper: however often they fork, and whoever dies on the way, the
daemon stays their ancestor. A process of an agent may read its own task and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_DEPTH_MAX = 4096
_LOOKS = 3  # a parent that ends between two reads hands its children on; the next look finds their new one


@dataclass(frozen=True, slots=True)
class Lineage:
    """Who is below the daemon. `task_of` names the task of a process tree, by the pids from the caller upwards."""

    daemon: int
    task_of: Callable[[Sequence[int]], str | None] = lambda _: None
    only_uid: int | None = None  # of everything below us, where nothing there can get another

    def judge(self, pid: int, uid: int | None = None) -> Descent | None:
        """None for a caller from outside; else what he descends from. Whose line cannot be read to its end is inside.

        That is who is gone already, whose parent ended while we looked, and who hides behind very many parents.
        A pid of 0 is a process outside of our PID namespace, where no child of ours can be. With ProtectProc=invisible
        other users' processes cannot be read at all: there their uid, which the kernel vouches for, says enough.
        """
        if pid in (0, self.daemon) or (None not in (uid, self.only_uid) and uid != self.only_uid):
            return None
        for _ in range(_LOOKS):
            line, whole = _line(pid)
            if self.daemon in line[1:]:
                return Descent(self.task_of(line))
            if whole:
                return None
        return Descent(None)


@dataclass(frozen=True, slots=True)
class Descent:
    """A caller that descends from a tool; of which task, if that is known."""

    task: str | None

    def may(self, method: str, path: str) -> bool:
        """Only look, only at the own task."""
        own = f"/v1/tasks/{self.task}"
        return self.task is not None and method in ("GET", "HEAD") and (path == own or path.startswith(f"{own}/"))


def ancestors(pid: int) -> list[int]:
    """The pid and its parents, nearest first; empty if there is no such process (any more)."""
    return _line(pid)[0]


def _line(pid: int) -> tuple[list[int], bool]:
    """The ancestors as far as they are there, and whether that is all of them.

    The first of all has parent 0. Nor can a child of init's be ours: a subreaper's orphans come to the subreaper. So it
    need not be read, which a hidden /proc/1 does not allow.
    """
    line: list[int] = []
    while pid > 0 and len(line) < _DEPTH_MAX:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return line, False
        line.append(pid)
        # The name in parentheses may hold anything, also blanks and parentheses (proc_pid_stat(5)).
        pid = int(stat[stat.rindex(b")") + 2 :].split()[1])
        if pid == 1:
            return [*line, pid], True
    return line, bool(line) and pid == 0
