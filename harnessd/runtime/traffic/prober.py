"""Prober: brings parked tasks back: one as the probe when a breaker's time has come, the others bit by bit after it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping

from harnessd.domain.durable.breaker_store import BreakerStore
from harnessd.domain.ports import Clock
from harnessd.runtime.traffic.breakers import Breaker, Breakers
from harnessd.runtime.traffic.desk import CALLED, Desk
from harnessd.runtime.traffic.passage import Traffic

_STEPS = 20  # of a ramp: so many times others are woken while it lasts
_SHORTEST_S = 0.05
_LONGEST_S = 3600.0


class Prober:
    """Woken by breakers that move and by time; an idle daemon sleeps."""

    def __init__(
        self, traffic: Traffic, store: BreakerStore, clock: Clock, woken: Callable[[], None], at_once: int
    ) -> None:
        """`woken` is called when tasks were queued again; `at_once` is how many tasks run when all is well."""
        self._breakers: Breakers = traffic.breakers
        self._desk: Desk = traffic.desk
        self._traffic, self._store, self._clock = traffic, store, clock
        self._woken, self._at_once = woken, at_once
        self._bell = asyncio.Event()
        self._asked: dict[str, float] = {}  # breaker -> when a probe was woken for it
        self._next: dict[str, float] = {}  # closed again -> when the next few may come
        self._owed: dict[str, int] = {}  # closed again -> tasks that were parked on it then
        self._closed: set[str] = set()
        self._ceilings_moved = False
        traffic.on_move(self._moved)

    async def run(self) -> None:
        """Until cancelled."""
        for breaker in self._breakers.all():
            if breaker.state.closed_at is not None and self._breakers.ramp(breaker.name, self._at_once)[1] is not None:
                self._closed.add(breaker.name)
        while True:
            self._bell.clear()
            wait_s = await self._round()
            try:
                async with asyncio.timeout(wait_s):
                    await self._bell.wait()
            except TimeoutError:
                pass

    def limits_changed(self) -> None:
        """Other limits are in force: whom a day's ceiling holds parked may perhaps go on."""
        self._ceilings_moved = True
        self._bell.set()

    def _moved(self, name: str) -> None:
        breaker = self._breakers.find(name)
        if breaker is not None and breaker.state.phase == "closed":
            self._closed.add(name)
        else:
            self._forget(name)
        self._bell.set()

    async def _round(self) -> float | None:
        """Wake who may come now; gives the seconds until somebody else may, or None."""
        waits = []
        busy = [one for one in self._breakers.all() if one.state.phase != "closed" or one.name in self._closed]
        parked = await self._store.parked_on() if busy or self._ceilings_moved else {}
        await self._ceilings(parked)
        for breaker in busy:
            count = parked.get(breaker.name, 0)
            if breaker.state.phase == "closed":
                wait_s = await self._bring_back(breaker, count)
            else:
                wait_s = await self._probe(breaker, count)
            if wait_s is not None:
                waits.append(min(_LONGEST_S, max(_SHORTEST_S, wait_s)))
        return min(waits, default=None)

    async def _probe(self, breaker: Breaker, parked: int) -> float | None:
        """One parked task becomes the probe as soon as the breaker would let it through."""
        name, now = breaker.name, self._clock.now()
        shut = self._breakers.shut(name)
        if shut is not None:
            return shut.wait_s
        if not parked:
            return None
        limits = self._breakers.settings(name)
        # Woken and not heard of since (its workspace is held, the workers are busy): another one after the open time.
        again_s = min(self._asked.get(name, 0.0), now) + limits.open_s - now  # the clock may have been set back
        if again_s > 0:
            return again_s
        self._asked[name] = now
        await self._wake(name, limits.probes, f"probes {name}")
        return limits.open_s

    async def _bring_back(self, breaker: Breaker, parked: int) -> float | None:
        """The others follow over the ramp: as many at a time as concurrency admits."""
        name = breaker.name
        self._asked.pop(name, None)
        owed = min(parked, self._owed.setdefault(name, parked))
        if owed <= 0:
            self._forget(name)
            return None
        limits, now = self._breakers.settings(name), self._clock.now()
        admitted, _ = self._breakers.ramp(name, self._at_once)
        step_s = limits.ramp_s / _STEPS
        wait_s = min(self._next.get(name, 0.0) - now, step_s)
        if admitted < self._at_once and wait_s > 0:
            return wait_s
        count = min(owed, max(1, math.ceil(admitted / _STEPS) if admitted < self._at_once else owed))
        await self._wake(name, count, f"{name} is well again")
        self._owed[name] = owed - count
        self._next[name] = now + step_s
        return step_s

    def _forget(self, name: str) -> None:
        self._closed.discard(name)
        self._owed.pop(name, None)
        self._next.pop(name, None)

    async def _ceilings(self, parked: Mapping[str, int]) -> None:
        if not self._ceilings_moved:
            return
        self._ceilings_moved = False
        for name in parked:
            if name.startswith(CALLED):
                continue
            limit, reached = self._desk.settings(name).cost_usd_per_day, self._traffic.days.reached_at(name)
            if limit is None or limit > max(reached, self._traffic.days.charged(name)):
                await self._wake(name, self._at_once, f"the day's limit of {name} was raised")

    async def _wake(self, name: str, count: int, why: str) -> None:
        if await self._store.wake_parked(name, count, self._clock.now(), why):
            self._woken()
