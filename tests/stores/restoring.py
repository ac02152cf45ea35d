"""A process that restores a backup and is killed at one point: `python -m tests.stores.restoring FILE DB POINT`."""

from __future__ import annotations

import os
import signal
import sys

from harnessd.stores import restore

if __name__ == "__main__":
    backup, database, wanted = sys.argv[1:4]

    def crash(point: str) -> None:
        if point == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    restore(backup, database, crashpoint=crash)
