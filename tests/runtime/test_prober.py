"""Parked tasks come back: one as the probe, the others bit by bit once it succeeded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from harnessd.domain.failure import Failure
from harnessd.domain.messages import ModelReply, Usage
from harnessd.domain.record import ChangeTask
from harnessd.domain.task import Verb
from harnessd.runtime.gateway import Prices
from harnessd.runtime.traffic.prober import Prober
from tests.runtime.traffic_scene import Clock, Scene, scene
from tests.stores.scenes import submitted

OPEN = "kind: breaker\nrules: [{for: model/primary, consecutive: 1, failure_rate: none, open: 60s, ramp: 20s}]"
SOON_S = 0.2  # for what must not happen


async def park(one: Scene, dependency: str, count: int) -> list[str]:
    """Tasks that are parked on a dependency for a day."""
    for _ in range(count):
        await submitted(one.store)
    ids = []
    for task in await one.store.claim("a1", count, one.clock.now(), 20):
        assert task.lease is not None
        until = one.clock.now() + 86400
        await one.store.record(
            task.lease, (ChangeTask(Verb.PARK, until=until, dependency=dependency),), one.clock.now()
        )
        ids.append(task.id)
    return ids


@asynccontextmanager
async def probing(one: Scene, at_once: int = 8) -> AsyncIterator[list[int]]:
    """A prober at work; gives a list that grows with each wake-up."""
    woken: list[int] = []
    prober = Prober(one.traffic, one.store, one.clock, lambda: woken.append(1), at_once)
    one.changed = prober.limits_changed
    at_work = asyncio.create_task(prober.run())
    await asyncio.sleep(0)
    try:
        yield woken
    finally:
        at_work.cancel()
        await asyncio.gather(at_work, return_exceptions=True)


async def parked(one: Scene, dependency: str = "model/primary") -> int:
    return (await one.store.parked_on()).get(dependency, 0)


async def until_parked(one: Scene, count: int) -> None:
    async with asyncio.timeout(5):
        while await parked(one) != count:
            await asyncio.sleep(0.005)


async def test_one_parked_task_becomes_the_probe_when_its_time_comes(tmp_path: Path) -> None:  # R3.2a, R3.5
    async with scene(tmp_path, OPEN.replace("open: 60s", "open: 1s"), clock=Clock()) as one:
        await park(one, "model/primary", 3)
        one.traffic.breakers.trip("model/primary", 0.3, "test", "")
        async with probing(one) as woken:
            await asyncio.sleep(SOON_S / 2)
            assert await parked(one) == 3  # not before its time
            one.clock.at += 0.31
            await until_parked(one, 2)
            await asyncio.sleep(SOON_S)
            assert (await parked(one), len(woken)) == (2, 1)  # the others wait for what the probe finds


async def test_the_others_follow_bit_by_bit_once_it_is_well(tmp_path: Path) -> None:  # R3.2a
    async with scene(tmp_path, OPEN) as one:
        await park(one, "model/primary", 6)
        await park(one, "model/second", 1)
        one.traffic.breakers.trip("model/primary", 600, "test", "")
        async with probing(one):
            one.traffic.breakers.reset("model/primary", "test")
            await until_parked(one, 5)
            await asyncio.sleep(SOON_S)
            assert await parked(one) == 5  # the ramp has just begun
            one.clock.at += 21  # over: nobody is kept any longer
            await until_parked(one, 0)
            assert await parked(one, "model/second") == 1


async def test_a_breaker_that_never_opened_wakes_nobody(tmp_path: Path) -> None:  # R3.2a
    async with scene(tmp_path, OPEN) as one:
        await park(one, "model/primary", 1)
        async with probing(one) as woken:
            assert isinstance(await one.call(), ModelReply)
            await asyncio.sleep(SOON_S)
            assert (await parked(one), woken) == (1, [])


async def test_a_raised_ceiling_wakes_those_it_held(tmp_path: Path) -> None:  # A3, R7.2
    cap = "kind: limits\nrules: [{for: agent/crawler, cost_usd_per_day: 1}]"
    async with scene(tmp_path, cap, prices=Prices(1000.0, 1000.0)) as one:
        one.service.script = [Usage(900, 90)]
        await one.call(agent="crawler")
        assert isinstance(await one.call(agent="crawler"), Failure)
        await park(one, "agent/crawler", 2)
        async with probing(one):
            one.set(cap + "  # the same")
            await asyncio.sleep(SOON_S)
            assert await parked(one, "agent/crawler") == 2
            one.set(cap.replace("day: 1", "day: 2"))
            async with asyncio.timeout(5):
                while await parked(one, "agent/crawler"):
                    await asyncio.sleep(0.005)
