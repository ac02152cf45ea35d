"""Killing: a piece of work in a forked process that is killed with SIGKILL before a wanted change, or at any moment.

A fork of a warm process costs milliseconds where a new Python costs half a second, so that hundreds of random trees
can each be cut off several times. What counts as a change is each call into the kernel or into SQLite that can alter
what is on the disk: the death falls between two of them, and every place between two of them can be wished for.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

NOBODY = 65534
HANGS_S = 120
_WRITING = ("open", "write", "pwrite", "writev", "writelines", "flush", "truncate", "ftruncate", "fsync", "fdatasync")
_NAMING = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "symlink", "link", "close", "utime")
_DRESSING = ("chmod", "fchmod", "chown", "fchown", "lchown")
_SQL = ("execute", "executemany", "executescript", "commit")
_CHANGES = frozenset((*_WRITING, *_NAMING, *_DRESSING, *_SQL))
_OWNERS = frozenset({"posix", "_io", "io", "sqlite3", "fcntl"})


@dataclass(frozen=True, slots=True)
class Lived:
    """How a process ended: `killed`, or what its work gave, and how long it took.

    `changes` it passed, `marked` of them before `mark` was called.
    """

    killed: bool
    gave: Any = None
    changes: int = 0
    marked: int = 0
    lasted_s: float = 0.0


def fork(
    work: Callable[[], Any],
    *,
    before: int = 0,
    after_s: float | None = None,
    counted: bool = False,
    as_nobody: bool = False,
) -> Lived:
    """Do the work in a process of its own; SIGKILL before its change number `before`, or after a time.

    What it gives is pickled. Raises AssertionError with its traceback where it fails by itself.
    """
    began = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _live(work, write, _Passed(before) if before or counted else None, as_nobody=as_nobody)
    os.close(write)
    try:
        if after_s is not None:
            time.sleep(after_s)
            os.kill(child, signal.SIGKILL)
        with os.fdopen(read, "rb") as pipe:
            told = pipe.read()
    finally:
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"died of signal {os.WTERMSIG(status)}"
        return Lived(killed=True)
    fine, gave, changes, marked = pickle.loads(told)
    assert fine, gave
    return Lived(False, gave, changes, marked, time.monotonic() - began)


def here(work: Callable[[], Any]) -> Lived:
    """The same in this process: what it loads is there for every fork, also for one that may not read it any more."""
    return Lived(killed=False, gave=work())


def mark() -> None:
    """What is of interest begins here: changes before it and after it can be told apart."""
    if isinstance(passed := sys.getprofile(), _Passed):
        passed.marked = passed.count


def _live(work: Callable[[], Any], write: int, passed: _Passed | None, *, as_nobody: bool) -> None:
    """The child's whole life. It never returns into the test that forked it."""
    signal.alarm(HANGS_S)  # dies by another signal than the one that is wished for
    gc.disable()  # a collection touches every page, and each would be copied
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a daemon logs
    try:
        if as_nobody:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        threading.setprofile(passed)
        sys.setprofile(passed)
        try:
            told = (True, work(), *(passed.counts if passed else (0, 0)))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    except BaseException:  # noqa: BLE001 - the parent is to read it
        told = (False, traceback.format_exc(), 0, 0)
    with os.fdopen(write, "wb") as pipe:
        pipe.write(pickle.dumps(told))
    os._exit(0)


class _Passed:
    """Counts the changes of all threads, and ends the process before one of them."""

    def __init__(self, before: int) -> None:
        self.before, self.count, self.marked = before, 0, 0

    @property
    def counts(self) -> tuple[int, int]:
        return self.count, self.marked

    def __call__(self, _frame: object, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in _CHANGES and _owner(called) in _OWNERS:
            self.count += 1
            if self.count == self.before:
                os.kill(os.getpid(), signal.SIGKILL)


def _owner(called: Any) -> str:
    owner = called.__self__
    return owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
