"""Keeping: one connection beside the others that keeps a daemon's name, its heartbeat, and hears of others' commits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from harnessd.domain.failure import HarnessError, StoreLocked
from harnessd.stores.database import Statement
from harnessd.stores.postgresql.line import Address, Line, LineLost, TryAgain

LOOK_S = 1.0  # what a lost notice costs at most
BEAT_S = 5.0
NAME_TRIES_S = 8.0  # a daemon that was killed: the server sees its connection end within moments
CHANNEL = "harnessd"


class Keeper:
    """Runs from open to close. A notice is a hint alone: whoever hears none looks once a second."""

    def __init__(
        self, address: Address, heard: Callable[[int], None], expired: Callable[[], Awaitable[object]]
    ) -> None:
        """`heard` is called with the newest event's number whenever it has grown.

        `expired` is awaited when the lease of a task has run out, whoever's it was.
        """
        self._expired = expired
        self._address = address
        self._epoch = 0
        self._heard = heard
        self._line: Line | None = None
        self._bell = asyncio.Event()
        self._say = 0
        self._seen = 0
        self._task: asyncio.Task[None] | None = None

    async def begin(self, node: str) -> None:
        """Take the node's name. Raises StoreLocked where a living daemon has it."""
        self._line = await self._connected()
        ends = time.monotonic() + NAME_TRIES_S
        while not await self._named(self._line):
            if time.monotonic() > ends:
                raise StoreLocked(
                    f"Another daemon has the node name {node!r} in the store {self._address.shown}.",
                    remedy="Stop it first, or give this one its own name: store.node.",
                )
            await asyncio.sleep(0.2)
        await self._listen(self._line)

    def watch(self, epoch: int, seen: int) -> None:
        """Begin: the daemon's row is there."""
        self._epoch, self._seen = epoch, seen
        self._task = asyncio.create_task(self._run(), name="store keeper")

    def tell(self, newest: int) -> None:
        """Let the other daemons know, outside any transaction."""
        if newest > self._say:
            self._say = newest
            self._bell.set()

    async def end(self) -> None:
        """Let the name go."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._line is not None:
            await self._line.close()
            self._line = None

    async def _connected(self) -> Line:
        return await Line.connect(self._address)

    async def _named(self, line: Line) -> bool:
        rows, _ = await line.run(Statement("keep_name", {}))
        return bool(rows[0][0])

    async def _listen(self, line: Line) -> None:
        await line.connection.add_listener(CHANNEL, lambda *_: self._bell.set())

    async def _run(self) -> None:
        beat_at = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._bell.wait()
            self._bell.clear()
            try:
                # A name that another daemon took while ours was cut off stays with that one: leases and epochs decide.
                if self._line is None or not self._line.usable:
                    self._line = await self._connected()
                    await self._named(self._line)
                    await self._listen(self._line)
                    beat_at = 0.0
                beat_at = await self._look(self._line, beat_at)
            except (LineLost, TryAgain, HarnessError):
                if self._line is not None:
                    self._line.drop()
                await asyncio.sleep(0.2)

    async def _look(self, line: Line, beat_at: float) -> float:
        if self._say:
            self._say = 0
            await line.say(f"NOTIFY {CHANNEL}")
        if time.monotonic() >= beat_at:
            await line.run(Statement("beat", {"epoch": self._epoch}))
            beat_at = time.monotonic() + BEAT_S
        if (await line.run(Statement("lease_over", {"now": time.time()})))[0]:
            await self._expired()
        rows, _ = await line.run(Statement("newest_event", {}))
        newest: int = rows[0][0]
        if newest > self._seen:
            self._seen = newest
            self._heard(newest)
        return beat_at
