"""Hardening of the daemon process itself: what its children, running as the same user, must not read from it."""

from __future__ import annotations

import ctypes
import os

_PR_SET_DUMPABLE = 4


def undumpable() -> None:
    """Refuse core dumps and reads of /proc/<pid>/environ and mem by other processes of this user.

    Scrubbing a child's environment hides nothing while the parent's own can be read (prctl(2), PR_SET_DUMPABLE).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
