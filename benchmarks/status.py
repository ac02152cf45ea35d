"""`harnessctl status` against a running daemon: its CPU beside `python -c pass`, and what it loads."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.gate import Gate
from benchmarks.measuring import child_cpu_s
from benchmarks.running import PROGRAMS, Running, idle_daemon

TURNS = 20
HEAVY = ("httpx", "pydantic", "yaml", "asyncio", "aiosqlite", "watchdog", "rich")


def cpu(daemon: Running) -> tuple[float, float]:
    """Medians in milliseconds: the command's, and the bare interpreter's; they take turns."""
    status, nothing = [str(PROGRAMS / "harnessctl"), "status"], [sys.executable, "-c", "pass"]
    pairs = [(child_cpu_s(status, daemon.environment), child_cpu_s(nothing)) for _ in range(TURNS)]
    ours, control = zip(*pairs, strict=True)
    return statistics.median(ours) * 1e3, statistics.median(control) * 1e3


def heavy_modules(daemon: Running) -> int:
    """How many heavy packages a `status` has imported, by the interpreter's own list."""
    done = subprocess.run(
        [PROGRAMS / "harnessctl", "status"],
        env=daemon.environment | {"PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    return len(loaded & set(HEAVY))


def gates() -> Iterator[Gate]:
    """The gates on a fast client."""
    with idle_daemon() as daemon:
        ours, control = cpu(daemon)
        yield Gate("harnessctl status: CPU", ours, control, 7.0, "at most", "ms", "ms python -c pass")
        yield Gate("harnessctl status: heavy packages loaded", heavy_modules(daemon), None, 0, "at most")
