"""Hardening of the daemon process itself: what its children, running as the same user, must not read from it."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_PR_SET_DUMPABLE = 4


def undumpable() -> None:
    """Refuse core dumps and reads of /proc/<pid>/environ and mem by other processes of this user.

    Scrubbing a child's environment hides nothing while the parent's own can be read (prctl(2), PR_SET_DUMPABLE).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def only_uid() -> int | None:
    """Our uid, if no process below us can get another: no_new_privs, no capability, not root. Else None.

    prctl(2), PR_SET_NO_NEW_PRIVS: no execve gives rights, and neither the flag nor the lack of capabilities can be
    undone by a child. In a user namespace of its own it can only map the uid it has.
    """
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
        sealed = "NoNewPrivs:\t1" in lines and f"CapPrm:\t{0:016x}" in lines
        return os.geteuid() if sealed and os.geteuid() != 0 else None
    return None
