"""kill -9 at random times and at each crash point: what was acknowledged is there, and what is there is whole."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.effect import EffectState
from harnessd.domain.ports import Submitted, TaskFilter
from harnessd.domain.session import path_to
from harnessd.domain.task import TaskState
from harnessd.stores import SqlStore
from tests.stores.scenes import NOW, draft, opened

REPO = Path(__file__).resolve().parents[2]
POINTS = (
    *("J1", "J2", "J3", "J14-before", "J14-after", "J16-before", "J16-after", "J20-before", "J20-after"),
    *("J21-before", "J21-after", "J22-before", "J22-commit", "J22-after", "J25-before", "J25-rename", "J25-after"),
    *("J26-before", "J26-after", "J27-begin", "J27-before", "J27-after"),
)
ONCE = ("J22-before", "J22-commit", "J22-after", "J26-before", "J26-after")


def child(path: Path, seed: int, point: str = "", hit: int = 0) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.stores.acks", str(path), str(seed), point, str(hit)]
    return subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def lines(text: bytes) -> list[dict[str, Any]]:
    """Whole lines only: the last one may be cut by the kill."""
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


async def killed_at_random(path: Path, seed: int) -> list[dict[str, Any]]:
    process = await asyncio.to_thread(child, path, seed)
    assert process.stdout is not None
    assert process.stderr is not None
    first = await asyncio.to_thread(process.stdout.readline)
    assert first, process.stderr.read().decode()
    await asyncio.sleep(random.Random(seed).uniform(0.0, 0.4))
    process.kill()
    rest, errors = await asyncio.to_thread(process.communicate)
    assert errors == b""
    return lines(first + rest)


async def check(store: SqlStore, acked: list[dict[str, Any]]) -> None:
    """Compare what was acknowledged with what is there. I1 ack, I2 prefix, I3 effect."""
    tasks = {task.id: task for task in await store.list(TaskFilter(limit=100_000))}
    numbers = [event.seq for event in await store.events(limit=1_000_000)]
    assert numbers == list(range(1, 1 + len(numbers)))
    for task in tasks.values():
        assert await store.verify(task.id) is None
        nodes = await store.nodes(task.id)
        assert len(path_to({node.id: node for node in nodes}, task.pointer)) >= bool(nodes)
        for effect in await store.effects(task.id):
            done = effect.state is EffectState.DONE
            assert done or effect.state is EffectState.INTENT
    for line in acked:
        if "task" not in line:
            continue
        task = tasks[line["task"]]
        if "key" in line:
            again = await store.submit(draft(f"Task {line['key'][1:]}", key=line["key"]), NOW)
            assert isinstance(again, Submitted)
            assert (again.task.id, again.fresh) == (task.id, False)
        if "node" in line:
            assert line["node"] in {node.id for node in await store.nodes(task.id)}
        if "effect" in line or "settled" in line:
            states = {effect.id: effect.state for effect in await store.effects(task.id)}
            assert line.get("effect", line.get("settled")) in states
            assert "settled" not in line or states[line["settled"]] is EffectState.DONE
        if "turns" in line:
            assert task.counters.turns >= line["turns"]
        if "state" in line:
            assert task.state == line["state"]


def sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("PRAGMA integrity_check")] == ["ok"]


@pytest.mark.slow
async def test_kill_9_at_random_times_loses_nothing(tmp_path: Path) -> None:  # F1, J1-J27
    seen = 0

    async def one(seed: int) -> None:
        nonlocal seen
        path = tmp_path / f"{seed}" / "harnessd.db"
        acked = await killed_at_random(path, seed)
        acked += await killed_at_random(path, seed + 1000)  # and once more on what the first left behind
        assert await asyncio.to_thread(sound, path)
        async with opened(path) as store:
            await store.release_all(NOW)
            await check(store, acked)
            assert (await store.counts())[TaskState.RUNNING] == 0
        seen += len(acked)

    for seeds in (range(5), range(5, 10)):
        await asyncio.gather(*(one(seed) for seed in seeds))
    assert seen > 400


@pytest.mark.slow
@pytest.mark.parametrize("points", [POINTS[:8], POINTS[8:15], POINTS[15:]], ids=lambda points: points[0])
async def test_kill_9_at_each_crash_point_loses_nothing(tmp_path: Path, points: tuple[str, ...]) -> None:  # G2
    async def one(point: str, hit: int) -> None:
        path = tmp_path / f"{point}-{hit}" / "harnessd.db"
        process = await asyncio.to_thread(child, path, 7, point, hit)
        text, errors = await asyncio.to_thread(process.communicate)
        assert (process.returncode, errors) == (-9, b""), point
        if not path.exists():
            return
        async with opened(path) as store:
            await store.release_all(NOW)
            await check(store, lines(text))
        backup = path.with_name("backup.db")
        assert not backup.exists() or await asyncio.to_thread(sound, backup)  # J25: complete or absent

    # The first, second or third time it is passed: each point one of them.
    hits = [(point, 1 if point in ONCE else 1 + POINTS.index(point) % 3) for point in points]
    for pair in (hits[place : place + 2] for place in range(0, len(hits), 2)):
        await asyncio.gather(*(one(point, hit) for point, hit in pair))
