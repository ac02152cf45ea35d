"""Latency: what keeps the event loop quick while other threads work: Python's lock and its collector."""

from __future__ import annotations

import gc
import sys

# A thread that parses policies holds the interpreter's lock for this long before the loop may ask for it back.
# Python's default is 5 ms; benchmarks/saves.py prints the loop's lag in a reload of the full set.
SWITCH_S = 0.001


def keep_the_loop_quick() -> None:
    """Call once everything is loaded.

    A full collection stops every thread until it has walked all objects, tens of milliseconds here; what was made by
    the start lives as long as the process and need not be walked again (gc.freeze).
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)
