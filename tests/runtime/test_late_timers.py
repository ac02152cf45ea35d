"""Late timers and clocks that jump: a worker that was held up never shares its task with another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harnessd.domain.ports import Refused, Submitted
from harnessd.domain.task import Task, TaskDraft, TaskState
from harnessd.runtime.gateway import Gateway
from harnessd.runtime.runner import Surroundings
from harnessd.runtime.toolbox import Toolbox
from harnessd.runtime.worker import Pool, PoolSettings
from harnessd.stores import SqlStore, open_store
from harnessd.tools import Jobs, partial_output
from tests.engine.scenery import policies
from tests.runtime.test_worker import CATALOG

TTL_S, BEAT_S = 0.6, 0.1


@dataclass
class SetClock:
    """The machine's clocks; somebody sets the wall clock."""

    skew_s: float = 0.0

    def now(self) -> float:
        return time.time() + self.skew_s

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass
class AtWork:
    """Who is at work on tasks, between claim and first step: each stays until it is cut or let go."""

    inside: int = 0
    most: int = 0
    entered: int = 0

    def __post_init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, _: Task) -> Refused | None:
        self.inside += 1
        self.entered += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        finally:
            self.inside -= 1
        return Refused("refused", "It was let go.", "")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    found = open_store(f"sqlite:{tmp_path}/harnessd.db")
    await found.open("a1")
    yield found
    await found.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass
class Scene:
    """One task at work in a pool with short leases."""

    store: SqlStore
    pool: Pool
    clock: SetClock
    work: AtWork
    task: str

    async def row(self) -> Task:
        found = await self.store.find(self.task)
        assert isinstance(found, Task)
        return found


@pytest.fixture
async def scene(store: SqlStore, tmp_path: Path) -> AsyncIterator[Scene]:
    clock, work = SetClock(), AtWork()
    toolbox = Toolbox(
        {}, partial_output=partial_output, environment=lambda *_: {}, artefacts=tmp_path / "artefacts", jobs=Jobs()
    )
    around = Surroundings(store, Gateway({}), toolbox, clock)
    settings = PoolSettings("a1", heartbeat_s=BEAT_S, ttl_s=TTL_S)
    pool = Pool(store, around, lambda: CATALOG, lambda _: policies(), settings, work)
    submitted = await store.submit(TaskDraft("Work.", "coder", str(tmp_path)), clock.now())
    assert isinstance(submitted, Submitted)
    at_work = asyncio.create_task(pool.run())
    await until(lambda: work.inside)
    yield Scene(store, pool, clock, work, submitted.task.id)
    work.open.set()
    await pool.drain(5.0)
    await at_work


async def beats(scene: Scene, count: int) -> None:
    """So many heartbeats pass, and the daemon sweeps before and between them."""
    for _ in range(count):
        await scene.pool.sweep()
        scene.pool.wake()
        await asyncio.sleep(BEAT_S)


async def still_the_only_one(scene: Scene) -> None:
    row = await scene.row()
    assert (row.state, row.recoveries) == (TaskState.RUNNING, 0), "nobody took it, and no recovery was charged"
    assert (scene.work.most, scene.work.entered) == (1, 1)


async def test_a_loop_that_was_held_up_for_longer_than_a_lease_keeps_its_task(scene: Scene) -> None:
    # g10: all timers are late at once, the heartbeat's with them
    for _ in range(3):
        time.sleep(TTL_S * 2)
        await beats(scene, 2)
    await still_the_only_one(scene)


@pytest.mark.parametrize("jump_s", [600.0, -600.0])
async def test_a_wall_clock_that_is_set_takes_no_task_away(scene: Scene, jump_s: float) -> None:
    # g11, as far as one machine shows it: ten minutes on, or back, and on again
    for skew_s in (jump_s, 0.0, jump_s):
        scene.clock.skew_s = skew_s
        await beats(scene, 3)
    await still_the_only_one(scene)


async def test_a_worker_that_lost_its_lease_is_cut_before_it_does_more(scene: Scene) -> None:
    # g10: whoever else sweeps the store took it: the next beat ends the run, and the fence holds what is written
    scene.pool.hold("a test")  # the pool itself is not to take it up again
    assert await scene.store.sweep(scene.clock.now() + TTL_S * 5) == 1
    await until(lambda: scene.work.inside == 0)
    row = await scene.row()
    assert (row.state, row.recoveries) == (TaskState.QUEUED, 1)
