"""One life of a simulated daemon: everything is made anew over the same files, and ends by a kill or by a drain."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessd.domain.failure import StorageFull, StoreLost
from harnessd.engine.protocol import ModelFacts
from harnessd.policy import PolicySet
from harnessd.runtime.catalog import AgentFacts, Catalog
from harnessd.runtime.gateway import Gateway, Prices, Service
from harnessd.runtime.host.disk import NoRoom, PatientJournal
from harnessd.runtime.policies.in_force import InForce
from harnessd.runtime.runner import Surroundings
from harnessd.runtime.toolbox import Toolbox
from harnessd.runtime.traffic.passage import Traffic
from harnessd.runtime.traffic.prober import Prober
from harnessd.runtime.worker import Pool, PoolSettings
from harnessd.stores import SqlStore, open_store
from harnessd.tools import Jobs, partial_output
from tests.simulation.world import CLASSES, Dead, Model, Process, World, WorldTool
from tests.virtual_time import EPOCH, VirtualLoop

TTL_S, HEARTBEAT_S = 20.0, 5.0
WRITES = ("submit", "claim", "record", "log", "heartbeat", "apply", "answer", "send", "change", "sweep")


@dataclass
class SkewedClock:
    """The wall clock may be set; the monotonic one only runs on."""

    skew_s: float = 0.0

    def now(self) -> float:
        return EPOCH + self.skew_s + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass
class Disk:
    """Whether there is room for a write."""

    full: bool = False


class SeededLoop(VirtualLoop):
    """What is handed to a thread is done at once: a thread would bring an order of its own."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as fault:  # noqa: BLE001 - handed to the caller, as a thread would
            future.set_exception(fault)
        return future


class Reached:
    """The store as this life reaches it: one call at a time, so that a seed is one order of things.

    After the kill no call comes through, not even the answer of one that is under way: whether it was done, nobody
    knows. While the disk is full, what writes is refused.
    """

    def __init__(self, store: SqlStore, process: Process, disk: Disk) -> None:
        self._store, self._process, self._disk = store, process, disk
        self._turn = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name == "wait_queued" or not asyncio.iscoroutinefunction(found):
            return found

        async def reached(*arguments: Any, **named: Any) -> Any:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            async with self._turn:
                if self._process.dead:
                    raise StoreLost("killed")
                if self._disk.full and name in WRITES:
                    raise StorageFull("no room")
                with loop.standing_still():
                    answer = await found(*arguments, **named)
            if self._process.dead:
                raise StoreLost("killed")
            return answer

        return reached


@dataclass
class Life:
    """A daemon from its start to its end."""

    folder: Path
    world: World
    clock: SkewedClock
    disk: Disk
    policies: PolicySet
    crash_at: Callable[[str], bool] = lambda _: False
    process: Process = field(default_factory=Process)
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    store: SqlStore = field(init=False)
    pool: Pool = field(init=False)
    _inner: SqlStore = field(init=False)
    _at_work: list[asyncio.Task[None]] = field(default_factory=list)

    async def begin(self) -> None:
        """Open what the last life left, and go to work."""
        self._inner = open_store(self.folder / "harnessd.db", pragmas=("PRAGMA synchronous = OFF",))
        self.store = Reached(self._inner, self.process, self.disk)  # type: ignore[assignment]
        full, self.disk.full = self.disk.full, False
        await self.store.open(f"life-{random.getrandbits(32)}")
        await self.store.release_all(self.clock.now())
        self.disk.full = full
        in_force = InForce(self.policies, lambda _: {}, self.clock.now())
        traffic = Traffic(lambda: self.policies, self.clock, self.store)
        await traffic.load()
        model = Model(self.world, self.process)
        gateway = Gateway({"primary": Service(model, Prices())}, self._point, traffic)
        tools = {name: WorldTool(self.world, self.process, name) for name in CLASSES}
        toolbox = Toolbox(
            tools, partial_output=partial_output, environment=lambda *_: {}, artefacts=self.folder / "artefacts",
            jobs=Jobs(), crashpoint=self._point, traffic=traffic,
        )  # fmt: skip
        agents = {"coder": AgentFacts("coder", "You work.", tuple(CLASSES), "primary")}
        catalog = Catalog(agents, {"primary": ModelFacts("primary", 200_000, 1000)}, tools)
        room = NoRoom()
        around = Surroundings(
            PatientJournal(self.store, room), gateway, toolbox, self.clock,
            luck=self.world.luck.random, room=room, crashpoint=self._point,
        )  # fmt: skip
        settings = PoolSettings("life", workers=4, ttl_s=TTL_S, heartbeat_s=HEARTBEAT_S)
        self.pool = Pool(self.store, around, lambda: catalog, in_force.for_task, settings)
        prober = Prober(traffic, self.store, self.clock, self.pool.wake, 4)
        works = (self.pool.run(), prober.run(), traffic.breakers.keep(), self._sweep())
        self._at_work = [asyncio.create_task(work) for work in works]

    async def _sweep(self) -> None:
        """What the daemon does once a minute."""
        while True:
            await asyncio.sleep(60.0)
            with suppress(StorageFull):
                if await self.store.sweep(self.clock.now()):
                    self.pool.wake()

    def _point(self, name: str) -> None:
        if self.process.dead or self.crash_at(name):
            self.kill()
            raise Dead(name)

    def kill(self) -> None:
        """As by kill -9: from this moment nothing of this life reaches the store or the world."""
        self.process.dead = True
        self.killed.set()

    async def bury(self) -> None:
        """After the kill: what is left of the coroutines is swept away, the files stay as they are."""
        self.kill()
        for work in self._at_work:
            work.cancel()
        await self.pool.abandon()
        for work in self._at_work:
            with suppress(asyncio.CancelledError, StoreLost, Dead, StorageFull):
                await work
        await self._inner.close()

    async def end(self) -> None:
        """A planned end."""
        await self.pool.drain(5.0)
        for work in self._at_work:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        await self.store.close()
