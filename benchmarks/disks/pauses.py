"""Pauses: an owner is stopped in the middle of its writes, another takes the store over, the first wakes up (G8, F15).

    python benchmarks/disks/pauses.py --times 2000 --seed 1

The lock file keeps a second daemon out; here somebody has tidied it away, or it lies where locks mean nothing. Then
only the owner's epoch in the database is left: whoever was paused must write nothing more, and must be told so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.disks.children import in_a_child
from harnessd.domain.failure import HarnessError, StoreLost
from harnessd.domain.ports import Submitted, TaskFilter
from harnessd.stores import SqlStore, open_store
from tests.stores.scenes import NOW, draft

MEMORY = Path("/dev/shm")
RUN_S = 60


@dataclass(slots=True)
class Paused:
    """What pauses ended in.

    Attributes:
        stale: writes of the paused owner that came in after the other had taken over.
        waited: pauses within a transaction: the other was kept out until it had ended.
    """

    times: int = 0
    acked: int = 0
    stale: int = 0
    lost: int = 0
    unaware: int = 0
    waited: int = 0
    words: list[str] = field(default_factory=list)


async def _owner(path: Path) -> None:
    store = open_store(path)
    await store.open("first")

    async def worker(number: int) -> None:
        for n in range(100_000):
            answer = await store.submit(draft(key=f"w{number}-{n}"), NOW)
            if isinstance(answer, Submitted):
                _say(key=answer.task.draft.key)

    try:
        await asyncio.gather(*(worker(number) for number in range(4)))
    except StoreLost as error:
        _say(told=error.sentence)
    await store.close()


def _say(**words: Any) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def _started(path: Path) -> tuple[int, int]:
    """A child that owns the store and writes; its pid and the pipe it speaks into."""
    return in_a_child(lambda: asyncio.run(_owner(path)), RUN_S)


async def _taken(path: Path, child: int, seen: Paused, luck: random.Random) -> SqlStore:
    """Stop the child and take its store over, whatever it was doing."""
    while True:
        time.sleep(luck.uniform(0.0, 0.02))
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        path.with_name(path.name + ".lock").unlink(missing_ok=True)
        store = open_store(path, pragmas=("PRAGMA busy_timeout = 20",))
        try:
            await store.open("second")
        except HarnessError as error:
            if "locked" not in str(error):
                raise
            seen.waited += 1
            os.kill(child, signal.SIGCONT)
        else:
            return store


async def _once(folder: Path, luck: random.Random, seen: Paused) -> None:
    path = folder / "harnessd.db"
    child, pipe = _started(path)
    with os.fdopen(pipe, "rb") as lines:
        first = lines.readline()
        store = await _taken(path, child, seen, luck)
        try:
            before = {task.draft.key for task in await store.list(TaskFilter(limit=100_000))}
            os.kill(child, signal.SIGCONT)
            mine = [await store.submit(draft(key=f"second-{n}"), NOW) for n in range(5)]
            said = [json.loads(line) for line in [first, *lines.read().splitlines()]]
            os.waitpid(child, 0)
            after = {task.draft.key for task in await store.list(TaskFilter(limit=100_000))}
        finally:
            await store.close()
    acked = {line["key"] for line in said if "key" in line}
    seen.times += 1
    seen.acked += len(acked)
    seen.stale += len({key for key in after - before if not str(key).startswith("second-")})
    seen.lost += len(acked - after) + sum(not isinstance(answer, Submitted) for answer in mine)
    if not any("taken this store over" in line.get("told", "") for line in said):
        seen.unaware += 1
        seen.words.append(str(said[-1:]))


async def paused(times: int, seed: int) -> Paused:
    """So many pauses, each of a fresh store."""
    seen, luck = Paused(), random.Random(seed)
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="harnessd-pause-", dir=MEMORY) as scratch:
            await _once(Path(scratch), luck, seen)
    return seen


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--times", type=int, default=2000)
    words.add_argument("--seed", type=int, default=1)
    asked = words.parse_args()
    began = time.monotonic()
    seen = asyncio.run(paused(asked.times, asked.seed))
    print("pauses   acked  stale writes  lost  not told  within a transaction")
    figures = (seen.times, seen.acked, seen.stale, seen.lost, seen.unaware, seen.waited)
    print("{:>6}  {:>6}  {:>12}  {:>4}  {:>8}  {:>20}".format(*figures))
    print("\n".join(seen.words[:5]))
    failed = seen.stale + seen.lost + seen.unaware
    print(f"{'FAILED' if failed else 'No stale write came in.'} ({time.monotonic() - began:.0f} s)")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
