"""Whether the kernel tells us here who writes a file: it tells root in the first PID namespace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harnessd.config.watch import targets
from harnessd.runtime.host.forks import Forks
from harnessd.runtime.host.writers import Writers


def untold() -> str:
    """Why not; empty if it does."""
    forks, writers = Forks(os.getpid()), Writers(lambda _: None)
    try:
        forks.open()
    except OSError as error:
        return f"forks are not told: {error.strerror}"
    try:
        writers.watch(targets(Path("/etc/policies"), Path("/etc/harness.yaml")))
        return writers.blind
    finally:
        forks.close()
        writers.close()


UNTOLD = untold()
needs_the_kernel = pytest.mark.skipif(bool(UNTOLD), reason=UNTOLD or "told")
