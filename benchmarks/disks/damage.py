"""Damage: the files of a crashed store with a bit turned, an end cut off, a page lost: what was dropped is told (G17).

    python benchmarks/disks/damage.py --mutations 20000 --seed 1

SQLite opens a log with a bad frame as a shorter one and calls it sound. So the start compares the store with its mark
of what was acknowledged. A page of the database itself is looked at when it is read: then an error, or a broken chain.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harnessd.domain.failure import HarnessError, StoreLost
from harnessd.domain.ports import TaskFilter
from harnessd.domain.record import AppendNode
from harnessd.stores import open_store
from tests.stores.scenes import NOW, opened, running, user

MEMORY = Path("/dev/shm")
NAMES = ("harnessd.db", "harnessd.db-wal", "harnessd.db.acked")
PAGE = 4096
OF_ONE = 500  # mutations of one store, before another is made


@dataclass(slots=True)
class Seen:
    """What became of mutations.

    Attributes:
        dropped: something acknowledged was not there any more.
        alarmed: the start was refused for it; told: a read failed or a chain did not fit.
        silent: neither.
    """

    mutations: int = 0
    dropped: int = 0
    alarmed: int = 0
    told: int = 0
    silent: list[str] = field(default_factory=list)


Rows = dict[str, list[tuple[object, ...]]]


def _rows(path: Path) -> Rows:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        return {
            "tasks": store.execute("SELECT id FROM tasks ORDER BY id").fetchall(),
            "nodes": store.execute("SELECT task, id FROM nodes ORDER BY task, id").fetchall(),
        }


async def crashed(folder: Path, seed: int) -> Rows:
    """Leave a store in `folder` as a crash does, part of it in the log. Give what it acknowledged."""
    luck, live = random.Random(seed), folder.with_name("live")
    async with opened(live / "harnessd.db", pragmas=("PRAGMA wal_autocheckpoint = 100",)) as store:
        for _ in range(luck.randint(8, 20)):
            _, lease = await running(store, "x" * luck.randint(1, 3000))
            parent = None
            for n in range(luck.randint(1, 4)):
                await store.record(lease, [AppendNode(user(f"n{n}", parent, "y" * luck.randint(1, 3000)))], NOW)
                parent = f"n{n}"
        folder.mkdir()
        # In a child: a copy made by this process would drop the store's locks (closing any descriptor does).
        subprocess.run(["cp", *(str(live / name) for name in NAMES), str(folder)], check=True)
        kept = _rows(live / "harnessd.db")
    shutil.rmtree(live)
    return kept


def mutate(folder: Path, luck: random.Random) -> str:
    """One change to one of the files; give its words."""
    if luck.random() < 0.75:
        log = folder / "harnessd.db-wal"
        data = bytearray(log.read_bytes())
        at = luck.randrange(len(data))
        match luck.choice(("flip", "cut", "zero")):
            case "flip":
                data[at] ^= 1 << luck.randrange(8)
                words = f"log: bit turned at {at}"
            case "cut":
                del data[at:]
                words = f"log: cut at {at}"
            case _:
                data[at : at + 512] = bytes(len(data[at : at + 512]))
                words = f"log: zeros at {at}"
        log.write_bytes(data)
        return words
    file = folder / "harnessd.db"
    data = bytearray(file.read_bytes())
    page = luck.randrange(len(data) // PAGE)
    if luck.random() < 0.5:
        data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
        words = f"page {page} zeroed"
    else:
        at = page * PAGE + luck.randrange(PAGE)
        data[at] ^= 1 << luck.randrange(8)
        words = f"page {page}: bit turned at {at}"
    file.write_bytes(data)
    return words


async def _judge(path: Path, kept: Rows, words: str, seen: Seen) -> None:
    seen.mutations += 1
    store = open_store(path)
    try:
        await store.open("after the damage")
    except StoreLost:
        seen.dropped += 1
        seen.alarmed += 1
        return
    except HarnessError:
        seen.told += 1
        return
    try:
        there = _rows(path)
        missing = any(set(kept[name]) - set(there[name]) for name in kept)
        seen.dropped += missing
        for task in await store.list(TaskFilter(limit=1000)):
            await store.history(task.id)
            if await store.verify(task.id) is not None:
                seen.told += 1
                return
        if missing:
            seen.silent.append(words)
    except (HarnessError, sqlite3.Error):
        seen.told += 1
    finally:
        await store.close()


async def damaged(mutations: int, seed: int) -> Seen:
    """So many mutations, a new store for each 500."""
    seen, luck = Seen(), random.Random(seed)
    while seen.mutations < mutations:
        with tempfile.TemporaryDirectory(prefix="harnessd-damage-", dir=MEMORY) as scratch:
            whole, hurt = Path(scratch) / "whole", Path(scratch) / "hurt"
            kept = await crashed(whole, luck.randrange(1 << 30))
            for _ in range(min(OF_ONE, mutations - seen.mutations)):
                shutil.copytree(whole, hurt)
                words = mutate(hurt, luck)
                await _judge(hurt / "harnessd.db", kept, words, seen)
                shutil.rmtree(hurt)
    return seen


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--mutations", type=int, default=20_000)
    words.add_argument("--seed", type=int, default=1)
    asked = words.parse_args()
    began = time.monotonic()
    seen = asyncio.run(damaged(asked.mutations, asked.seed))
    print("mutations  dropped something  refused at start  told when read  silent")
    print(f"{seen.mutations:>9}  {seen.dropped:>17}  {seen.alarmed:>16}  {seen.told:>14}  {len(seen.silent):>6}")
    print("\n".join(seen.silent[:5]))
    print(f"{'FAILED' if seen.silent else 'Nothing was dropped in silence.'} ({time.monotonic() - began:.0f} s)")
    return int(bool(seen.silent))


if __name__ == "__main__":
    sys.exit(main())
