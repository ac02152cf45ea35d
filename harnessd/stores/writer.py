"""Writer: group commit: many waiting writers, one transaction, one sync."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

from harnessd.domain.failure import HarnessError, OutcomeUnknown, StoreLost
from harnessd.stores.database import Database, Rows, Unit

# Upper bounds of how long transactions take, for metrics: from a fast disk's sync to one that is in trouble.
BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
BATCH_MAX = 1024  # members of one transaction: a bound on how long the first of them waits for its sync

Answer = Sequence[Rows]


class GroupCommit:
    """The one task that writes. Whatever waits when it is free goes into one transaction; there is no timer.

    The sync of one batch is the gathering window of the next. A caller that is cancelled leaves its unit in the
    queue: only this task touches the connection, so no cancellation can cut a transaction in two.
    """

    def __init__(self, database: Database, on_commit: Callable[[int], None]) -> None:
        """`on_commit` is called with the newest event's sequence number after each commit."""
        self._database = database
        self._on_commit = on_commit
        self._waiting: deque[tuple[Unit, asyncio.Future[Answer]]] = deque()
        self._work = asyncio.Event()
        self._lost: HarnessError | None = None
        self._closing = False
        self.took = [0] * (len(BOUNDS_S) + 1)  # transactions by how long they took; the last: longer than all bounds
        self.took_s = 0.0
        self.units = 0
        self._task = asyncio.create_task(self._run(), name="store writer")

    async def write(self, unit: Unit) -> Answer:
        """Commit one unit; give the rows of its statements.

        Raises Missed (a statement touched another number of rows), what the statement itself raised, StorageFull,
        StoreLocked, OutcomeUnknown, StoreLost. But for OutcomeUnknown nothing was written then.
        """
        if self._lost is not None:
            raise self._lost
        if self._closing:
            raise HarnessError("The store is closed.")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((unit, future))
        self._work.set()
        return await future

    async def close(self) -> None:
        """Write what waits, then end."""
        self._closing = True
        self._work.set()
        await self._task

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._waiting:
                members = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_MAX))]
                await self._commit(members)
            if self._closing:
                return

    async def _commit(self, members: Sequence[tuple[Unit, asyncio.Future[Answer]]]) -> None:
        if self._lost is not None:
            _refuse(members, self._lost)
            return
        began = time.perf_counter()
        try:
            batch = await self._database.commit([unit for unit, _ in members])
        except (StoreLost, OutcomeUnknown) as error:
            # Fail-stop: a store that cannot say what it holds acknowledges nothing more.
            self._lost = error
            _refuse(members, error)
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody may wait for ever
            _refuse(members, error)
        else:
            self._measure(time.perf_counter() - began, len(members))
            for (_, future), answer in zip(members, batch.answers, strict=True):
                if isinstance(answer, StoreLost | OutcomeUnknown):
                    self._lost = answer
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
            self._on_commit(batch.newest_event)

    def _measure(self, took_s: float, units: int) -> None:
        self.took[bisect_left(BOUNDS_S, took_s)] += 1
        self.took_s += took_s
        self.units += units


def _refuse(members: Sequence[tuple[Unit, asyncio.Future[Answer]]], error: Exception) -> None:
    for _, future in members:
        if not future.done():
            future.set_exception(error)
