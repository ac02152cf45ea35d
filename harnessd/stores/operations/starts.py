"""Starts: when the daemon came up, which of its ends were planned, which tasks are held after too many crashes."""

from __future__ import annotations

from harnessd.stores.database import Statement
from harnessd.stores.kernel import Kernel


class Starts(Kernel):
    """`StartStore` of the domain."""

    async def begin_start(self, now: float, within_s: float) -> int:
        """See the port."""
        since = {"epoch": self.epoch, "now": now, "since": now - within_s}
        await self._write((Statement("begin_start", since), Statement("forget_starts", since)))
        row = await self._row("unclean_starts", since)
        return int(row[0]) if row is not None else 0

    async def end_start(self, now: float) -> None:
        """See the port."""
        await self._write((Statement("end_start", {"epoch": self.epoch, "now": now}),))

    async def hold_interrupted(self, now: float, why: str) -> int:
        """See the port."""
        params = {"now": now, "why": why}
        answer = await self._write((Statement("event_held", params), Statement("hold_interrupted", params)))
        return len(answer[1])

    async def held(self) -> int:
        """See the port."""
        row = await self._row("held", {})
        return int(row[0]) if row is not None else 0
