"""Teller: follows the store's events from a durable cursor and writes down who is to be told; idle, it sleeps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from harnessd.domain.durable.outbox import Told
from harnessd.domain.failure import StorageFull, StoreLocked
from harnessd.domain.ports import Clock, Store
from harnessd.domain.record import StoredEvent
from harnessd.domain.task import Task
from harnessd.runtime import telemetry
from harnessd.runtime.telling.course import FOLLOWED
from harnessd.runtime.telling.ledger import Ledger

_log = telemetry.log("notify")
_BATCH = 500
_GATHER_S = 0.05  # events come in bursts: one look at the store for many commits
_KEEP_CURSOR = 10_000  # events without news; then the cursor alone is written, so that a start reads little
_STORE_AGAIN_S = 30.0
_LONGEST_S = 3600.0  # the machine's clock may be set meanwhile


class Teller:
    """`posted` is called when alerts wait."""

    def __init__(self, store: Store, ledger: Ledger, clock: Clock, posted: Callable[[], None]) -> None:
        self._store, self._ledger, self._clock, self._posted = store, ledger, clock, posted
        self._bell = asyncio.Event()
        self._anew = False
        self._seen = self._durable = self._newest = 0

    def rules_changed(self) -> None:
        """Other policies are in force: what lasts may have to be told to others."""
        self._anew = True
        self._bell.set()

    async def run(self) -> None:
        """Until cancelled."""
        listening = asyncio.create_task(self._listen(), name="notify events")
        try:
            await self._load()
            while True:
                self._bell.clear()
                try:
                    wait_s = await self._round()
                except (StorageFull, StoreLocked) as fault:
                    _log.warning("notify_waits", why=fault.sentence)
                    await asyncio.sleep(_STORE_AGAIN_S)
                    await self._load()
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._bell.wait()
                        await asyncio.sleep(_GATHER_S)
        finally:
            listening.cancel()

    async def _listen(self) -> None:
        async for newest in self._store.subscribe():
            self._newest = newest
            self._bell.set()

    async def _load(self) -> None:
        self._seen = self._durable = await self._store.tell_cursor()
        self._ledger.load(await self._store.incidents())

    async def _round(self) -> float | None:
        """Everything that is new or due; gives the seconds until something is due by time alone."""
        while True:
            newest = self._newest
            events = await self._store.events_to_tell(self._seen, FOLLOWED, _BATCH)
            now = self._clock.now()
            tasks: dict[str, Task | None] = {}
            for event in events:
                self._ledger.take(event, await self._task(event, tasks), now)
            # Whatever was committed before the question is in the answer, so it need not be read again.
            self._seen = max(self._seen, events[-1].seq if events else 0, newest if len(events) < _BATCH else 0)
            await self._write(now)
            if len(events) < _BATCH:
                break
        now = self._clock.now()
        self._ledger.look(now, anew=self._anew)
        self._anew = False
        await self._write(now)
        due = self._ledger.next_at
        return None if due is None else min(_LONGEST_S, max(0.0, due - now))

    async def _task(self, event: StoredEvent, known: dict[str, Task | None]) -> Task | None:
        """The task of an event that is told of, or that ends something."""
        if not event.task or not self._ledger.cares(event):
            return None
        if event.task not in known:
            found = await self._store.find(event.task)
            known[event.task] = found if isinstance(found, Task) else None
        return known[event.task]

    async def _write(self, now: float) -> None:
        told = self._ledger.written(self._seen)
        if told is None and self._seen - self._durable >= _KEEP_CURSOR:
            told = Told(self._seen)
        if told is None:
            return
        await self._store.tell(told, now)
        self._durable = self._seen
        if told.alerts:
            self._posted()
