"""Children: work in a process of its own that ends at the latest after a limit, and speaks into a pipe."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def in_a_child(work: Callable[[], None], limit_s: int) -> tuple[int, int]:
    """Fork, and do `work` there with its standard output in a pipe; gives the pid and the pipe's end to read from."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.dup2(write, 1)
        code = 1
        try:
            signal.alarm(limit_s)
            work()
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    return child, read
