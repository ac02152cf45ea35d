"""An outage of ten minutes under the shipped policies, on virtual time: pool, traffic, prober and store are real.

The model service is the world's edge: it answers after a second, and while it is dead it fails in every way there is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from harnessd.domain.failure import Failure
from harnessd.domain.messages import FinishReason, Message, ModelReply, ModelRequest, TextBlock, Usage
from harnessd.domain.ports import CallClocks, Progress, TaskFilter
from harnessd.domain.task import Task, TaskDraft, TaskState
from harnessd.engine.protocol import ModelFacts
from harnessd.policy import PolicySet
from harnessd.policy.assign import TaskFacts
from harnessd.policy.notify import NotifyPolicy
from harnessd.runtime.catalog import AgentFacts, Catalog
from harnessd.runtime.gateway import Gateway, Prices, Service
from harnessd.runtime.runner import Surroundings
from harnessd.runtime.telling.ledger import Ledger
from harnessd.runtime.toolbox import Toolbox
from harnessd.runtime.traffic.passage import Traffic
from harnessd.runtime.traffic.prober import Prober
from harnessd.runtime.worker import Pool, PoolSettings
from harnessd.stores import SqlStore, open_store
from harnessd.tools import Jobs, partial_output
from tests.policy.written import policies
from tests.virtual_time import Patient, VirtualClock, run_virtually

TASKS, TURNS, WORKERS = 50, 4, 32
DEAD_AT_S, DEAD_FOR_S = 3.0, 600.0
ANSWER_S = 1.0
WAYS: Sequence[dict[str, object]] = (
    {"status": 529, "type": "overloaded_error", "ended": "none"},
    {"status": 500, "ended": "none"},
    {"status": 503, "ended": "none", "retry_after_s": 2.0},
    {"transport": "reset", "ended": "none"},
    {"transport": "connect", "ended": "none"},
    {"status": 200, "ended": "cut"},
    {"transport": "read_timeout", "ended": "none"},
)


@dataclass
class MortalService:
    """Dead from `dead_at_s` on, for `dead_for_s`. Each answer but the last is cut at its length: a task takes TURNS."""

    dead_at_s: float = DEAD_AT_S
    dead_for_s: float = DEAD_FOR_S
    ways: Sequence[dict[str, object]] = WAYS
    asked: list[float] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)
    under_way: int = 0
    most_after: list[tuple[float, int]] = field(default_factory=list)

    @property
    def back_at_s(self) -> float:
        return self.dead_at_s + self.dead_for_s

    async def call(self, request: ModelRequest, clocks: CallClocks, progress: Progress) -> ModelReply | Failure:
        now = asyncio.get_running_loop().time()
        self.asked.append(now)
        self.under_way += 1
        self.most_after.append((now, self.under_way))
        try:
            await asyncio.sleep(ANSWER_S)
        finally:
            self.under_way -= 1
        if self.dead_at_s <= now < self.back_at_s:
            way = self.ways[len(self.failed) % len(self.ways)]
            self.failed.append(now)
            return Failure("model", "model/primary", "no", **way)  # type: ignore[arg-type]
        progress("text")
        said = sum(message.role == "assistant" for message in request.messages)
        finish = FinishReason.STOP if said + 1 >= TURNS else FinishReason.LENGTH
        return ModelReply(Message("assistant", (TextBlock(f"Part {said}."),)), finish, Usage(10, 10), "primary")

    async def aclose(self) -> None:
        pass


@dataclass
class Daemon:
    """What of a daemon takes part in an outage."""

    store: SqlStore
    pool: Pool
    policies: PolicySet
    clock: VirtualClock

    async def submit(self, folder: Path, count: int) -> None:
        for number in range(count):
            await self.store.submit(TaskDraft(f"Job {number}.", "coder", str(folder / str(number))), self.clock.now())
        self.pool.wake()

    async def tasks(self) -> Sequence[Task]:
        return await self.store.list(TaskFilter(limit=1000))

    async def until_ended(self, within_s: float) -> Sequence[Task]:
        async with asyncio.timeout(within_s):
            while any(task.state not in (TaskState.COMPLETED, TaskState.STOPPED) for task in await self.tasks()):
                await asyncio.sleep(10.0)
        return await self.tasks()

    async def alerts(self) -> Counter[tuple[str, str]]:
        """What people are told, by event and state, under the policies in force."""
        ledger = Ledger(lambda: cast("NotifyPolicy", self.policies.policies["notify", "default"]))
        tasks = {task.id: task for task in await self.tasks()}
        told = Counter[tuple[str, str]]()
        for event in await self.store.events(limit=100_000):
            ledger.look(event.at)
            ledger.take(event, tasks.get(event.task or ""), event.at)
        written = ledger.written(1)
        for alert in written.alerts if written is not None else ():
            told[alert.alert["event"], alert.alert["state"]] += 1
        return told


@asynccontextmanager
async def daemon(folder: Path, services: dict[str, MortalService], text: str = "") -> AsyncIterator[Daemon]:
    store: SqlStore = Patient(open_store(folder / "harnessd.db"))  # type: ignore[assignment]
    clock = VirtualClock()
    await store.open("a1")
    in_force = policies(text) if text else policies()
    traffic = Traffic(lambda: in_force, clock, store)
    gateway = Gateway({name: Service(service, Prices()) for name, service in services.items()}, traffic=traffic)
    toolbox = Toolbox(
        {}, partial_output=partial_output, environment=lambda *_: {}, artefacts=folder / "artefacts", jobs=Jobs()
    )
    models = {name: ModelFacts(name, 200_000, 1000) for name in services}
    catalog = Catalog({"coder": AgentFacts("coder", "You work.", (), next(iter(services)))}, models, {})

    def rules_of(task: Task) -> object:
        return in_force.for_task(TaskFacts(task.id, "coder"), {}, {}, {})

    around = Surroundings(store, gateway, toolbox, clock, luck=lambda: 0.5)
    settings = PoolSettings("a1", workers=WORKERS, ttl_s=600.0, heartbeat_s=120.0)
    pool = Pool(store, around, lambda: catalog, rules_of, settings)  # type: ignore[arg-type]
    prober = Prober(traffic, store, clock, pool.wake, WORKERS)
    at_work = [asyncio.create_task(work) for work in (pool.run(), prober.run(), traffic.breakers.keep())]
    try:
        yield Daemon(store, pool, in_force, clock)
    finally:
        await pool.drain(5.0)
        for work in at_work:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        await store.close()


async def _ten_minutes(folder: Path) -> None:
    service = MortalService()
    async with daemon(folder, {"primary": service}) as found:
        await found.submit(folder, TASKS)
        tasks = await found.until_ended(3 * DEAD_FOR_S)
        # No task is lost, and no turn and no try is spent on waiting.
        assert {task.state for task in tasks} == {TaskState.COMPLETED}
        assert {task.counters.turns for task in tasks} == {TURNS}
        assert len(service.asked) - len(service.failed) == TASKS * TURNS
        # The dead service is asked by what runs until the breaker opens, then by one probe a minute, up to five.
        late = [at for at in service.failed if at > DEAD_AT_S + 60]
        assert len(service.failed) - len(late) <= 2 * WORKERS
        assert 2 <= len(late) <= DEAD_FOR_S / 60 + 1
        assert all(later - earlier >= 59 for earlier, later in pairwise(late))
        told = await found.alerts()
        assert {key: told[key] for key in told if key[0].startswith("outage")} == {
            ("outage_started", "new"): 1,
            ("outage_ended", "ended"): 1,
        }, told
        assert told["breaker_opened", "new"] == told["breaker_closed", "ended"] == 1
        assert set(told) <= {("outage_started", "new"), ("outage_ended", "ended"), ("breaker_opened", "new")} | {
            ("breaker_closed", "ended")
        }, told


def test_a_primary_that_is_dead_for_ten_minutes_costs_no_task_and_no_turn(tmp_path: Path) -> None:
    # R3.2a, R3.5: one alert at the start and one at the end
    run_virtually(_ten_minutes(tmp_path))


async def _gradually(folder: Path) -> None:
    service = MortalService(dead_at_s=0.0)
    async with daemon(folder, {"primary": service}) as found:
        await found.submit(folder, TASKS)
        await found.until_ended(3 * DEAD_FOR_S)
    well = [at for at in service.asked if at not in service.failed]
    first = min(well)
    # The shipped ramp is a minute: a tenth of it brings a tenth of the load.
    early = [most for at, most in service.most_after if first <= at <= first + 6]
    assert max(early) <= 2, early
    middle = [most for at, most in service.most_after if first <= at <= first + 30]
    assert max(middle) <= 5
    assert len([at for at in well if at <= first + 6]) <= 12
    assert max(well) > first + 30


def test_what_was_parked_comes_back_bit_by_bit(tmp_path: Path) -> None:  # R3.2a
    run_virtually(_gradually(tmp_path))


async def _a_second_link(folder: Path) -> None:
    service, second = MortalService(dead_at_s=2.0), MortalService(dead_at_s=1e9)
    chain = "kind: fallback\nchains: {model/primary: [model/second]}\n"
    async with daemon(folder, {"primary": service, "second": second}, chain) as found:
        await found.submit(folder, TASKS)
        tasks = await found.until_ended(DEAD_FOR_S)  # nobody waits for the first one
        assert {task.state for task in tasks} == {TaskState.COMPLETED}
        assert {task.counters.turns for task in tasks} == {TURNS}
        assert max(second.asked) < 2.0 + 180
        assert not any(task.counters.episode_parked_s for task in tasks)


def test_a_stand_in_takes_over_at_once_and_is_not_held_back_as_a_retry(tmp_path: Path) -> None:
    # R3.4, R3.16: what a link that takes over is asked first is no retry of it
    run_virtually(_a_second_link(tmp_path))


@pytest.mark.parametrize("way", [WAYS[0], WAYS[4], WAYS[5]], ids=str)
def test_every_way_of_being_dead_is_the_same_outage(tmp_path: Path, way: dict[str, object]) -> None:  # R3.2a
    async def hours() -> None:
        service = MortalService(dead_for_s=1200.0, ways=(way,))
        async with daemon(tmp_path, {"primary": service}) as found:
            await found.submit(tmp_path, 3)
            tasks = await found.until_ended(3000.0)
            assert {(task.state, task.counters.turns) for task in tasks} == {(TaskState.COMPLETED, TURNS)}
            told = await found.alerts()
            assert told["outage_started", "new"] == told["outage_ended", "ended"] == 1, told

    run_virtually(hours())
