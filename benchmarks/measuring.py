"""Measuring: candidates take turns in one run, so that they meet the same machine; CPU is counted beside the clock."""

from __future__ import annotations

import math
import resource
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast something went: operations a second, CPU microseconds an operation, latencies in milliseconds."""

    per_s: float
    cpu_us: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(rates: Sequence[Rate]) -> Rate:
    """Each figure's median by itself."""
    return Rate(*(statistics.median(getattr(rate, name) for rate in rates) for name in Rate.__slots__))


async def interleaved(candidates: Mapping[str, Callable[[], Awaitable[Rate]]], rounds: int = ROUNDS) -> dict[str, Rate]:
    """A B C A B C A B C; the median of each."""
    results: dict[str, list[Rate]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, measure in candidates.items():
            results[name].append(await measure())
    return {name: median(rates) for name, rates in results.items()}


def child_cpu_s(command: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """CPU seconds, user and system, of one run of a program; it must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def switches(pid: int) -> int:
    """Context switches of all threads of a process until now: each wake-up is one."""
    statuses = (path.read_text(errors="replace") for path in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(line.split()[1]) for text in statuses for line in text.splitlines() if "ctxt_switches" in line)


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def cpu_and_clock() -> tuple[float, float]:
    """CPU seconds of this process with all its threads, and a clock that never jumps."""
    return time.process_time(), time.perf_counter()
