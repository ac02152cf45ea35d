"""A daemon with nothing to do: how often it wakes, and what it holds beside its imports alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.gate import Gate
from benchmarks.measuring import resident_mib, switches
from benchmarks.running import idle_daemon

SETTLE_S, SAMPLE_S = 6.0, 20.0
# Everything the composition root wires, imported and then asleep: what no daemon of these parts can be below.
IMPORTS = (
    "import time, harnessd.app, aiosqlite, uvicorn, starlette.applications, httpx, watchdog.observers; "
    "print('ready', flush=True); time.sleep(600)"
)


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start a program of Python that prints one line when it is ready."""
    child = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    if not child.stdout.readline():
        raise RuntimeError(f"{arguments} ended with {child.wait()}")
    return child


def gates() -> Iterator[Gate]:
    """The gates on doing nothing; all programs are watched at the same time."""
    imports, huey = started("-c", IMPORTS), started("-m", "benchmarks.huey_peer", "idle")
    try:
        with idle_daemon() as daemon:
            time.sleep(SETTLE_S)
            before = switches(daemon.pid), switches(huey.pid)
            time.sleep(SAMPLE_S)
            ours, peer = (
                (after - first) / SAMPLE_S
                for after, first in zip((switches(daemon.pid), switches(huey.pid)), before, strict=True)
            )
            yield Gate("idle daemon: wake-ups", ours, None, 1.0, "at most", "/s")
            yield Gate("idle daemon: wake-ups", ours, peer, 0.1, "at most", "/s", "/s huey consumer")
            memory = resident_mib(daemon.pid), resident_mib(imports.pid)
            yield Gate("idle daemon: resident memory", *memory, 1.3, "at most", "MiB", "MiB its imports alone")
    finally:
        for child in (imports, huey):
            child.kill()
            child.wait()
