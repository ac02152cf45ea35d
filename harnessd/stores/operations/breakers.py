"""Breakers: what traffic control keeps: breakers, costs by day, whom a dependency holds parked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from harnessd.domain.durable.breaker_store import StoredBreaker, Transition
from harnessd.stores.database import Statement
from harnessd.stores.kernel import Kernel, event
from harnessd.stores.rows import encode, plain


class Breakers(Kernel):
    """`BreakerStore` of the domain."""

    async def save_breakers(
        self, breakers: Sequence[StoredBreaker], now: float, transitions: Sequence[Transition] = ()
    ) -> None:
        """See the port."""
        unit = [
            Statement("save_breaker", {"name": plain(one.name), "state": encode(dict(one.state)), "since": one.since})
            for one in breakers
        ]
        unit += [event(one.type, now, None, one.data, None, one.revision) for one in transitions]
        if unit:
            await self._write(tuple(unit))

    async def breakers(self) -> Sequence[StoredBreaker]:
        """See the port."""
        rows = await self._rows("breakers", {})
        return [StoredBreaker(name, json.loads(state), since) for name, state, since in rows]

    async def charge(self, costs: Mapping[str, float], day: str) -> None:
        """See the port."""
        unit = tuple(Statement("charge", {"day": day, "name": plain(name), "usd": usd}) for name, usd in costs.items())
        if unit:
            await self._write(unit)

    async def day_costs(self, day: str) -> Mapping[str, float]:
        """See the port."""
        await self._write((Statement("forget_days", {"day": day}),))
        return dict(await self._rows("day_costs", {"day": day}))

    async def reach_ceiling(self, name: str, day: str, told: Transition, now: float) -> bool:
        """See the port."""
        unit = (
            Statement("reach_ceiling", {"day": day, "name": plain(name)}, or_stop=True),
            event(told.type, now, None, told.data, None, told.revision),
        )
        return bool((await self._write(unit))[0])

    async def wake_parked(self, dependency: str, limit: int, now: float, why: str) -> int:
        """See the port."""
        params = {"dependency": plain(dependency), "limit": limit, "now": now, "why": why}
        answer = await self._write((Statement("event_woken_on", params), Statement("wake_parked", params)))
        woken = len(answer[1])
        if woken:
            self._queued.set()
        return woken

    async def parked_on(self) -> Mapping[str, int]:
        """See the port."""
        return dict(await self._rows("parked_on", {}))
