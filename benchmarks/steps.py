"""Durable steps: one node of about 1 KiB a step, beside raw SQLite group commit and LangGraph's saver.

Also: the same with 5 ms added to each sync, syncs counted by the kernel's tracer, and the cost of a long history.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from benchmarks.gate import Gate
from benchmarks.measuring import Rate, cpu_and_clock, interleaved, percentile

PAYLOAD = b"x" * 1000
SESSIONS = (1, 32, 256)
SECONDS = 1.5
TRACED_EVENTS = {1: 300, 256: 5120}
# LangGraph's saver syncs once a step whatever the load, so that 5 ms a sync cap it near 200 steps a second.
SLOW_SYNC_US = 5000


class Candidate(Protocol):
    """A durable store, as this bench uses it."""

    async def open(self, sessions: int) -> None:
        """Open it and make this many sessions."""

    async def step(self, session: int, number: int, payload: bytes) -> None:
        """Append one event; returns once it is durable."""

    async def close(self) -> None:
        """Finish what waits."""


def make(name: str, folder: Path) -> Candidate:
    """Load a candidate only when it is wanted: the control must not pay for a peer's imports."""
    if name == "ours":
        from benchmarks.our_store import OurStore

        return OurStore(folder)
    if name == "raw":
        from benchmarks.raw_sqlite import RawGroupCommit

        return RawGroupCommit(folder)
    from benchmarks.langgraph_saver import LangGraphSaver

    return LangGraphSaver(folder)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the disk this is run on, not in a memory file system."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        yield Path(folder)


async def rate(name: str, sessions: int, seconds: float = SECONDS, events: int | None = None) -> Rate:
    """Let every session step as fast as it can, for a time or for a number of events in all."""
    with scratch() as folder:
        candidate = make(name, folder)
        await candidate.open(sessions)
        latencies: list[float] = []
        share = None if events is None else events // sessions

        async def run(session: int, ends: float) -> None:
            number = 0
            while (time.perf_counter() < ends) if share is None else (number < share):
                number += 1
                began = time.perf_counter()
                await candidate.step(session, number, PAYLOAD)
                latencies.append(time.perf_counter() - began)

        cpu, clock = cpu_and_clock()
        await asyncio.gather(*(run(session, clock + seconds) for session in range(sessions)))
        cpu_after, clock_after = cpu_and_clock()
        await candidate.close()
    return Rate(
        per_s=len(latencies) / (clock_after - clock),
        cpu_us=(cpu_after - cpu) / len(latencies) * 1e6,
        p50_ms=percentile(latencies, 0.50) * 1e3,
        p99_ms=percentile(latencies, 0.99) * 1e3,
    )


def compare(sessions: int, names: tuple[str, ...] = ("ours", "raw", "langgraph")) -> dict[str, Rate]:
    """All candidates at one number of sessions, taking turns."""
    return asyncio.run(interleaved({name: lambda name=name: rate(name, sessions) for name in names}))  # type: ignore[misc]


def speed() -> Iterator[Gate]:
    """Steps a second, and at 256 sessions also CPU and the tail."""
    for sessions, target in zip(SESSIONS, (1.0, 8.0, 10.0), strict=True):
        got = compare(sessions)
        ours, raw, peer = got["ours"], got["raw"], got["langgraph"]
        label = f"durable steps, {sessions} session{'s' if sessions > 1 else ''}"
        yield Gate(label, ours.per_s, peer.per_s, target, "at least", "/s", "/s LangGraph aput")
        if sessions == SESSIONS[-1]:
            yield Gate(label, ours.per_s, raw.per_s, 0.4, "at least", "/s", "/s raw SQLite group commit")
            yield Gate(f"{label}: CPU a step", ours.cpu_us, peer.cpu_us, 0.2, "at most", "us", "us LangGraph")
            yield Gate(f"{label}: p99", ours.p99_ms, peer.p99_ms, 0.25, "at most", "ms", "ms LangGraph")


# --- the kernel as witness --------------------------------------------------------------------------------------------


def traced(name: str, sessions: int, extra: list[str], *, events: int | None = None) -> tuple[Rate, str]:
    """One measurement in a process of its own under strace; what strace wrote comes with it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "trace"
        command = ["strace", "-f", "--seccomp-bpf", "-y", "-qq", "-e", "trace=fdatasync,fsync", *extra, "-o", str(log)]
        command += [sys.executable, "-m", "benchmarks.steps", "--one", name, "--sessions", str(sessions)]
        if events is not None:
            command += ["--events", str(events)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return Rate(**json.loads(done.stdout)), log.read_text(encoding="utf-8", errors="replace")


def slow_disk() -> Iterator[Gate]:
    """The same with a delay that the tracer adds to each sync, for everybody alike."""
    delay = ["-e", f"inject=fdatasync,fsync:delay_exit={SLOW_SYNC_US}"]
    for sessions, target in ((32, 12.0), (256, 40.0)):
        ours, _ = traced("ours", sessions, delay)
        peer, _ = traced("langgraph", sessions, delay)
        label = f"durable steps, {sessions} sessions, sync +{SLOW_SYNC_US // 1000} ms"
        yield Gate(label, ours.per_s, peer.per_s, target, "at least", "/s", "/s LangGraph aput")


def syncs() -> Iterator[Gate]:
    """Syncs of the database's files for each event. Opening and closing cost a handful of them."""
    for sessions, target in ((1, 1.0), (256, 0.05)):
        counts = []
        for events in (TRACED_EVENTS[sessions], 2 * TRACED_EVENTS[sessions]):
            _, log = traced("ours", sessions, [], events=events)
            counts.append(len(re.findall(r"sync\(\d+<[^>]*\.db(?:-wal)?>", log)))
        per_event = (counts[1] - counts[0]) / TRACED_EVENTS[sessions]
        yield Gate(
            f"syncs an event, {sessions} session{'s' if sessions > 1 else ''}", per_event, None, target, "at most"
        )


# --- history ----------------------------------------------------------------------------------------------------------

FIRST, LAST, WINDOW = 10, 1000, 50


async def history_costs() -> tuple[float, float, float]:
    """CPU a step near step 10 and near step 1000, in microseconds; and stored bytes for each byte of the events."""
    with scratch() as folder:
        candidate = make("ours", folder)
        await candidate.open(1)
        marks: dict[int, float] = {}
        for number in range(1, LAST + WINDOW + 1):
            await candidate.step(0, number, PAYLOAD)
            marks[number] = time.process_time()
        await candidate.close()
        stored = sum(path.stat().st_size for path in folder.rglob("*.db*"))
    early = (marks[FIRST + WINDOW] - marks[FIRST]) / WINDOW
    late = (marks[LAST + WINDOW] - marks[LAST]) / WINDOW
    return early * 1e6, late * 1e6, stored / (len(PAYLOAD) * (LAST + WINDOW))


def history() -> Iterator[Gate]:
    """A step must not get dearer as the history grows, and the history must not be stored twice."""
    runs = [asyncio.run(history_costs()) for _ in range(5)]
    early, late, bytes_ratio = (statistics.median(values) for values in zip(*runs, strict=True))
    yield Gate("CPU of step 1000 / step 10", late, early, 1.3, "at most", "us", "us at step 10")
    yield Gate("stored bytes / bytes of the events", bytes_ratio, None, 2.5, "at most")


def gates() -> Iterator[Gate]:
    """All gates on durable steps."""
    yield from speed()
    if shutil.which("strace"):
        yield from slow_disk()
        yield from syncs()
    else:
        print("strace is not installed: slow disk and syncs an event were not measured")
    yield from history()


def main() -> None:
    """One measurement for the tracer, its figures as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--events", type=int)
    asked = parser.parse_args()
    got = asyncio.run(rate(asked.one, asked.sessions, events=asked.events))
    print(json.dumps({name: getattr(got, name) for name in Rate.__slots__}))


if __name__ == "__main__":
    main()
