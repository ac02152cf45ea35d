"""Kernel: what queue, sessions and journal stand on: one database, its writer, the two bells."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from harnessd.domain.durable.backup import Backup
from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError, IllegalEvent
from harnessd.stores.database import Database, Row, Rows, Statement, Unit
from harnessd.stores.rows import encode
from harnessd.stores.writer import Answer, GroupCommit

WORDS = frozenset(EventType)
EVENT_MAX_BYTES = 2_000_000  # as Temporal bounds one event
EVENT_TEXT = 2_000  # characters of each text in one that was larger


class Kernel:
    """Opens, closes, writes, reads. `epoch` is the owner's, raised at each start."""

    epoch: int = 0

    def __init__(self, database: Database, crashpoint: Callable[[str], None]) -> None:
        """Nothing is touched before `open`."""
        self._database = database
        self._crashpoint = crashpoint
        self._writer: GroupCommit | None = None
        self._newest_event = 0
        self._followers: weakref.WeakSet[Follower] = weakref.WeakSet()  # a follower that is let go is forgotten
        self._queued = asyncio.Event()

    async def open(self, owner: str) -> None:
        """See the port."""
        opened = await self._database.open(owner)
        self.epoch = opened.epoch
        self._newest_event = opened.newest_event
        self._writer = GroupCommit(self._database, self._ring)
        self._queued.set()

    async def close(self) -> None:
        """Finish what waits, end the followers, give the lock back."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()
        await self._database.close()
        for follower in tuple(self._followers):
            follower.end()
        self._followers.clear()

    async def backup(self, path: str, wanted: Backup = Backup()) -> int:  # noqa: B008 - a frozen value
        """See the port."""
        return await self._database.backup(path, wanted)

    async def examine(self) -> Mapping[str, str]:
        """See the port."""
        return await self._database.examine()

    async def wait_queued(self) -> None:
        """See the port."""
        await self._queued.wait()
        self._queued.clear()

    def subscribe(self) -> AsyncIterator[int]:
        """See the port."""
        follower = Follower(self._newest_event)
        self._followers.add(follower)
        return follower

    async def _write(self, unit: Unit) -> Answer:
        return await self._open_writer().write(unit)

    async def _rows(self, name: str, params: Mapping[str, Any]) -> Rows:
        return (await self._database.fetch((Statement(name, dict(params)),)))[0]

    async def _row(self, name: str, params: Mapping[str, Any]) -> Row | None:
        rows = await self._rows(name, params)
        return rows[0] if rows else None

    def _ring(self, newest_event: int) -> None:
        if newest_event > self._newest_event:
            self._newest_event = newest_event
            for follower in tuple(self._followers):
                follower.ring(newest_event)

    def _open_writer(self) -> GroupCommit:
        if self._writer is None:
            raise HarnessError("The store is not open.")
        return self._writer


class Follower(AsyncIterator[int]):
    """One subscriber's bell: it knows the newest number and forgets the ones between."""

    def __init__(self, seen: int) -> None:
        """Begin behind `seen`."""
        self._seen = self._newest = seen
        self._bell = asyncio.Event()
        self._ended = False

    def ring(self, newest: int) -> None:
        """A commit added events."""
        self._newest = newest
        self._bell.set()

    def end(self) -> None:
        """The store is closed."""
        self._ended = True
        self._bell.set()

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> int:
        while self._newest <= self._seen:
            if self._ended:
                raise StopAsyncIteration
            self._bell.clear()
            await self._bell.wait()
        self._seen = self._newest
        return self._seen


def within(text: str, data: Mapping[str, Any]) -> str:
    """The text of an event's data, or of a shorter one: events are read by the thousand; what is large lies elsewhere.

    Whole texts are in nodes, effects and artefacts; `cut_bytes` says how much there was.
    """
    if len(text) * 4 <= EVENT_MAX_BYTES or len(text.encode()) <= EVENT_MAX_BYTES:
        return text
    kept = {name: _shortened(value) for name, value in data.items()}
    return encode({**kept, "cut_bytes": len(text.encode())})


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value[:EVENT_TEXT]
    if isinstance(value, (int, float, bool)) or value is None:
        return value
    return encode(value)[:EVENT_TEXT]


def event(
    type_: str,
    now: float,
    task: str | None,
    data: Mapping[str, Any],
    node: str | None = None,
    revision: int = 0,
) -> Statement:
    """The statement that leaves an event row. Raises IllegalEvent for a word outside the closed list."""
    if type_ not in WORDS:
        raise IllegalEvent(f"{type_!r} is no event: harnessd/domain/events.py holds the closed list.")
    params = {
        "now": now,
        "task": task,
        "node": node,
        "type": str(type_),
        "data": within(encode(data), data),
        "revision": revision,
    }
    return Statement("insert_event", params)
