"""Many seeds: `python -m tests.simulation --seeds 2000`, `--minutes 30`, or one again: `--seed 126`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice
from pathlib import Path

import structlog

from tests.simulation.run import Outcome, simulate

CHUNK = 50
MEMORY = Path("/dev/shm")  # what is proved here is order, not the disk


def quiet() -> None:
    """The daemon's own log is not what is looked at."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def some(first: int) -> list[Outcome]:
    """One worker's share."""
    quiet()
    scratch = MEMORY if MEMORY.is_dir() else None
    return [simulate(seed, scratch) for seed in range(first, first + CHUNK)]


def chunks(seeds: int, start: int, until: float) -> Iterator[Outcome]:
    """Outcomes as they come, on all cores, for so many seeds or until this time (monotonic)."""
    firsts = islice(count(start, CHUNK), (seeds + CHUNK - 1) // CHUNK)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting = [pool.submit(some, first) for first in islice(firsts, 2 * (os.cpu_count() or 1))]
        while waiting:
            yield from waiting.pop(0).result()
            if time.monotonic() < until and (first := next(firsts, None)) is not None:
                waiting.append(pool.submit(some, first))


def main() -> int:
    """Run, tell what is broken as it comes, and the sums at the end; exit status 1 if anything is."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="no new seed after this time")
    parser.add_argument("--seed", type=int, help="this one alone, with what happened in it")
    asked = parser.parse_args()
    quiet()
    if asked.seed is not None:
        one = simulate(asked.seed)
        for at, word in one.log:
            print(f"{at:14.1f} {word}")
        print("\n".join(one.broken) or "nothing is broken")
        return bool(one.broken)
    began = time.monotonic()
    sums, faults, broken = Counter[str](), Counter[str](), 0
    for outcome in chunks(asked.seeds, asked.start, began + 60 * asked.minutes):
        sums += Counter(seeds=1, lives=outcome.lives, tasks=outcome.tasks, calls=outcome.asked)
        sums += Counter(doubts=outcome.in_doubt, virtual_s=int(outcome.virtual_s))
        faults += outcome.faults
        broken += bool(outcome.broken)
        for words in outcome.broken:
            print(f"seed {outcome.seed}: {words}", flush=True)
    print(
        f"{sums['seeds']} seeds in {time.monotonic() - began:.0f} s: {sums['virtual_s'] / 3600:.0f} virtual hours, "
        f"{sums['lives']} lives of a daemon, {sums['tasks']} tasks, {sums['calls']} model calls, "
        f"{sums['doubts']} unknown outcomes put to a person; {broken} seeds broken"
    )
    print("faults: " + ", ".join(f"{name} {times}" for name, times in faults.most_common()))
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
