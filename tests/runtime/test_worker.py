"""The pool at its awkward moments: a drain while tasks are being taken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harnessd.domain.ports import Refused, Submitted
from harnessd.domain.task import Task, TaskDraft, TaskState
from harnessd.engine.protocol import ModelFacts
from harnessd.runtime.catalog import AgentFacts, Catalog
from harnessd.runtime.daemon import WallClock
from harnessd.runtime.gateway import Gateway
from harnessd.runtime.runner import Surroundings
from harnessd.runtime.toolbox import Toolbox
from harnessd.runtime.worker import Pool, PoolSettings
from harnessd.stores import SqlStore, open_store
from harnessd.tools import Jobs, partial_output
from tests.engine.scenery import policies

CATALOG = Catalog(
    {"coder": AgentFacts("coder", "You work.", (), "primary")}, {"primary": ModelFacts("primary", 1000, 100)}, {}
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    found = open_store(f"sqlite:{tmp_path}/harnessd.db")
    await found.open("a1")
    yield found
    await found.close()


class Gate:
    """Holds every task between its claim and its first step."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, _: Task) -> Refused | None:
        self.reached.set()
        await self.open.wait()
        return None


def pool_of(store: SqlStore, tmp_path: Path, gate: Gate, heartbeat_s: float = 5.0) -> Pool:
    jobs = Jobs()
    toolbox = Toolbox(
        {}, partial_output=partial_output, environment=lambda *_: {}, artefacts=tmp_path / "artefacts", jobs=jobs
    )
    # No service is known: a model call would be a fault of ours, and the task would show it.
    around = Surroundings(store, Gateway({}), toolbox, WallClock())
    settings = PoolSettings("a1", heartbeat_s=heartbeat_s)
    return Pool(store, around, lambda: CATALOG, lambda _: policies(), settings, gate)


async def test_a_task_that_was_just_taken_is_handed_back_by_a_drain(store: SqlStore, tmp_path: Path) -> None:
    # R6.1a
    gate = Gate()
    pool = pool_of(store, tmp_path, gate)
    await store.submit(TaskDraft("Work.", "coder", str(tmp_path)), time.time())
    at_work = asyncio.create_task(pool.run())
    async with asyncio.timeout(10):
        await gate.reached.wait()
        draining = asyncio.create_task(pool.drain(5.0))
        while not pool.draining:
            await asyncio.sleep(0)
        gate.open.set()
        assert await draining == []
        await at_work
    (task,) = await store.claim("a1", 1, time.time(), 20.0)
    assert task.state is TaskState.RUNNING
    assert task.recoveries == 0
    assert not pool.lost.done()


async def test_what_a_claim_brings_during_a_drain_is_handed_back_too(store: SqlStore, tmp_path: Path) -> None:
    gate = Gate()
    gate.open.set()
    pool = pool_of(store, tmp_path, gate)
    await store.submit(TaskDraft("Work.", "coder", str(tmp_path)), time.time())
    at_work = asyncio.create_task(pool.run())
    await asyncio.sleep(0)  # the claim is on its way to the store
    async with asyncio.timeout(10):
        assert await pool.drain(5.0) == []
        await at_work
    assert pool.busy == 0
    assert (await store.counts())["queued"] == 1


async def test_a_lease_is_renewed_as_long_as_its_task_is_at_work(store: SqlStore, tmp_path: Path) -> None:
    # R6.2, F16
    gate = Gate()
    pool = pool_of(store, tmp_path, gate, heartbeat_s=0.02)
    submitted = await store.submit(TaskDraft("Work.", "coder", str(tmp_path)), time.time())
    assert isinstance(submitted, Submitted)
    at_work = asyncio.create_task(pool.run())
    ends: set[float] = set()
    async with asyncio.timeout(20):
        await gate.reached.wait()
        while len(ends) < 3:
            row = await store.find(submitted.task.id)
            assert isinstance(row, Task)
            assert row.lease is not None
            ends.add(row.lease.expires_at)
            await asyncio.sleep(0.01)
        gate.open.set()
        await pool.drain(5.0)
        await at_work
    assert not pool.lost.done()
