"""Status: what the daemon says of itself, for `harnessctl status` and for metrics."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from harnessd import __version__
from harnessd.runtime.policies.keeper import Keeper


class Warns(Protocol):
    """Whoever has something to warn of."""

    def warnings(self) -> Sequence[Mapping[str, Any]]:
        """`what`, `sentence`, and `since` where it is known."""


class Disk(Warns, Protocol):
    """Who looks after the disk."""

    def disk(self) -> Mapping[str, Any]:
        """`free` (0..1), `store_bytes`, `checkpoint_bytes`."""


class BreakersSeen(Warns, Protocol):
    """Who knows the breakers."""

    def open_breakers(self) -> Sequence[Mapping[str, Any]]:
        """Those that are not closed."""


def status_facts(
    workers: int, started_at: float, parts: tuple[Disk, BreakersSeen, Warns], keeper: Keeper
) -> dict[str, Any]:
    """What does not come from the store."""
    disk, breakers, _ = parts
    told = [warning for part in parts for warning in part.warnings()]
    return {
        "version": __version__,
        "pid": os.getpid(),
        "node": socket.gethostname(),
        "started_at": started_at,
        "ready": True,
        "workers": workers,
        "warnings": [*told, *map(str, keeper.warnings)],
        "disk": disk.disk(),
        "breakers": breakers.open_breakers(),
        "policies": keeper.facts(),
    }
