"""Garbage: Python's collector rests while policies are read, and never walks what came of it.

A collection stops every thread, the event loop's too, for as long as it walks what is alive: a new set is some
thousand objects, and full collections walk everything. Reading makes no cycles, so there is nothing to be found.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# What is frozen is freed like everything else when nobody refers to it any more; only a cycle that was alive in one of
# these moments stays for ever. Each moment keeps little, so that a full walk may wait for this many and for idle hours.
MOMENTS_KEPT = 1000


@dataclass(slots=True)
class Collector:
    """The collector of this process, which several threads may want to rest at once."""

    moments: int = 0
    _resting: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def rests(self) -> Iterator[None]:
        """No collection begins; at the end all that is alive is set aside (gc.freeze, which walks nothing)."""
        with self._lock:
            self._resting += 1
            gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._resting -= 1
                self.moments += 1
                gc.freeze()
                if not self._resting:
                    gc.enable()

    def walk_if_due(self) -> bool:
        """A full collection, if so many moments were set aside that it is due: call where nobody waits. Stops all."""
        if self.moments < MOMENTS_KEPT:
            return False
        self.moments = 0
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        return True


COLLECTOR = Collector()
