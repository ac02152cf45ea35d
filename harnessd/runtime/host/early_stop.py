"""Early stop: SIGTERM and SIGINT before there is a loop to hear them. Imports nothing heavy: it comes first of all.

Python ends a process at SIGTERM with status -15, as a crash would. While nothing is open, the program ends at once with
0 instead; from then on the wish is remembered, and the daemon ends as soon as it can end in order.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


class EarlyStop:
    """The two signals, from the program's first line to the loop's own handlers."""

    def __init__(self) -> None:
        """Nothing is changed before `listen`."""
        self.asked = False
        self._open = False

    def listen(self) -> None:
        """Take the signals. For the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def something_is_open(self) -> bool:
        """From now on a wish is only remembered; True if there already is one."""
        self._open = True
        return self.asked

    def _hear(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.asked = True
        if not self._open:
            # Nothing to close: and an exception could be caught by whatever is being imported.
            os._exit(0)


early = EarlyStop()
