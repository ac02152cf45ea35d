"""A checkpoint or a restore in a process of its own, killed at a wanted or a random moment.

`python -m tests.workspace.cut_off take|restore ROOT STATE POINT:HIT [TARGET SAFETY TOKEN]`; a hit of 0 never comes.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from harnessd.workspace.checkpoints import Checkpoints


def main(what: str, root: str, state: str, point: str, *rest: str) -> None:
    """Do it; SIGKILL at the wanted pass of the wanted point."""
    name, _, hit = point.partition(":")
    left = int(hit)

    def crash(passed: str) -> None:
        nonlocal left
        if name in ("any", passed):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    room = Checkpoints(Path(state), crashpoint=crash)
    if what == "take":
        print(room.take(root).manifest)
    else:
        target, safety, token = rest
        print(room.restore(root, target, safety, token).state)


if __name__ == "__main__":
    main(*sys.argv[1:])
