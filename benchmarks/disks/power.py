"""Power: 100,000 disks as power cuts may leave them, each opened again: nothing acknowledged is lost (G3, F3, F8).

    python benchmarks/disks/power.py --images 100000 --seed 1

The real store works under `strace`; from what it wrote and synced the disk is built as it may stand after a cut at any
moment. The same is done with `synchronous = NORMAL` and `OFF`: these must fail, or the proof would see nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.disks.expecting import Expected, Tally, judge
from benchmarks.disks.images import WAYS, Cutter
from benchmarks.disks.tracing import Recording, record

ROOT = Path(__file__).resolve().parents[2]
MEMORY = Path("/dev/shm")
SHORT_LOG = "PRAGMA wal_autocheckpoint = 60"  # pages: the log is folded in several times in each recording
OLD = 4000  # images of one recording, before the next is made


@dataclass(frozen=True, slots=True)
class Plan:
    """Images of one recording: `count` at seeded moments."""

    recording: Recording
    count: int
    seed: int
    jobs: int


def recorded(seed: int, rounds: int, pragmas: Sequence[str] = ()) -> Recording:
    """The store at work from an empty folder to an orderly end, twice."""
    with tempfile.TemporaryDirectory(prefix="harnessd-trace-", dir=MEMORY) as scratch:
        folder = Path(scratch) / "state"
        folder.mkdir()
        command = [sys.executable, "-m", "benchmarks.disks.work", str(folder), str(seed), str(rounds)]
        return record([*command, *pragmas], folder, Path(scratch) / "log", ROOT)


def judged(plan: Plan) -> Tally:
    """All images of a plan, by forked workers, each a stretch of the recording."""
    luck = random.Random(plan.seed)
    cuts = sorted(luck.randint(1, plan.recording.lines) for _ in range(plan.count))
    share = -(-len(cuts) // plan.jobs)
    parts = [(plan.recording, cuts[at : at + share], plan.seed + at) for at in range(0, len(cuts), share)]
    if plan.jobs == 1:
        return Tally().add(_stretch(*part) for part in parts)
    with multiprocessing.get_context("fork").Pool(plan.jobs) as workers:
        return Tally().add(workers.starmap(_stretch, parts))


def _stretch(recording: Recording, cuts: Sequence[int], seed: int) -> Tally:
    return asyncio.run(_judge_all(recording, cuts, seed))


async def _judge_all(recording: Recording, cuts: Sequence[int], seed: int) -> Tally:
    tally, luck, cutter, expected = Tally(), random.Random(seed), Cutter(recording), Expected()
    heard = 0
    with tempfile.TemporaryDirectory(prefix="harnessd-image-", dir=MEMORY) as scratch:
        for number, line in enumerate(cuts):
            while heard < len(recording.acks) and recording.acks[heard][0] <= line:
                expected.hear(recording.acks[heard][1])
                heard += 1
            way = WAYS[number % len(WAYS)]
            place = Path(scratch) / "disk"
            cutter.at(line, way, luck).write(place, recording.folders)
            await judge(place / "state" / "harnessd.db", expected, tally, f"line {line}, {way}", luck)
            shutil.rmtree(place)
    return tally


CONTROLS = (("NORMAL", 400), ("OFF", 200))


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--images", type=int, default=100_000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--jobs", type=int, default=2)
    asked = words.parse_args()
    began, total, seed = time.monotonic(), Tally(), asked.seed
    while total.images < asked.images:
        log = () if seed % 3 == 0 else (SHORT_LOG,)
        plan = Plan(recorded(seed, 12, log), min(OLD, asked.images - total.images), seed, asked.jobs)
        total.add([judged(plan)])
        seed += 1
    print(f"{total.images} images, seeds {asked.seed} to {seed - 1}, {time.monotonic() - began:.0f} s")
    print("synchronous  images    lost  alarmed  unreadable")
    _row("FULL", total)
    failed = total.bad > 0
    for level, count in CONTROLS:
        recording = recorded(asked.seed, 12, (SHORT_LOG, f"PRAGMA synchronous = {level}"))
        control = judged(Plan(recording, count, asked.seed, asked.jobs))
        _row(level, control)
        failed |= control.bad == 0
    print("\n".join(total.words))
    print("FAILED" if failed else "FULL lost nothing, and both controls failed, as they must.")
    return int(failed)


def _row(level: str, tally: Tally) -> None:
    print(f"{level:<11} {tally.images:>7} {tally.lost:>7} {tally.alarmed:>8} {tally.unreadable:>11}")


if __name__ == "__main__":
    sys.exit(main())
