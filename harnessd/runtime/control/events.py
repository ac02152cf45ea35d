"""Server-sent events: the event log as a stream, resumable by sequence number, ended when the daemon stops.

Written here and not with a library: the usual one polls twice a second for ever after its first stream, and an idle
daemon shall sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Self

from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Refused, Store
from harnessd.domain.record import StoredEvent
from harnessd.domain.task import TaskState
from harnessd.runtime.control.show import show_event, show_task

PAGE = 500
HEARTBEAT_S = 15.0
_TRACES_MAX = 10_000
_BYE = b"event: bye\ndata: {}\n\n"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a stream shows.

    `until_end`: it ends with the task (`end`), or when the task waits for a person. `heartbeat_s`: a comment after so
    many seconds without an event, by which a dead connection is noticed.
    """

    after: int
    task: str | None
    follow: bool
    until_end: bool = False
    heartbeat_s: float = HEARTBEAT_S


async def stream(store: Store, wanted: Wanted, stop: asyncio.Event) -> AsyncIterator[bytes]:
    """Event frames; `id` is the sequence number. The last frame is `bye` when the daemon stops or loses its store."""
    try:
        async for frame in _stream(store, wanted, stop):
            yield frame
    except HarnessError:
        yield _BYE


async def _stream(store: Store, wanted: Wanted, stop: asyncio.Event) -> AsyncIterator[bytes]:
    seen = wanted.after
    traces: dict[str, str] = {}  # task -> of the attempt that its newest event belongs to
    yield b": harnessd\n\n"
    async with _Bell(store, stop) as bell:
        while True:
            bell.arm()
            # Looked at first: whatever is found ended has all its events in the page that is read after.
            last = await _ended(store, wanted.task) if wanted.follow and wanted.until_end and wanted.task else None
            page = await store.events(seen, wanted.task, PAGE)
            for event in page:
                seen = event.seq
                yield _frame(await _traced(store, event, traces))
            if len(page) == PAGE:
                continue
            if not wanted.follow:
                return
            if last is not None:
                yield last
                return
            if stop.is_set():
                yield _BYE
                return
            if not await bell.wait(wanted.heartbeat_s):
                yield b": still here\n\n"


class _Bell:
    """Rings on a commit with events or on the daemon's stop. Armed before reading, so that nothing falls between."""

    def __init__(self, store: Store, stop: asyncio.Event) -> None:
        self._numbers = store.subscribe()
        self._stop = asyncio.ensure_future(stop.wait())
        self._next: asyncio.Future[int] | None = None
        self._over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        waiting = [future for future in (self._stop, self._next) if future is not None]
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        close = getattr(self._numbers, "aclose", None)
        if close is not None:
            with contextlib.suppress(RuntimeError):
                await close()

    def arm(self) -> None:
        if self._next is not None and self._next.done():
            # -1: the store is closing and rings no more; only the daemon's stop is left to wait for.
            self._over = self._over or self._next.result() == -1
            self._next = None
        if self._next is None and not self._over:
            self._next = asyncio.ensure_future(anext(self._numbers, -1))

    async def wait(self, timeout_s: float) -> bool:
        """False if nothing happened in time."""
        waiting = {future for future in (self._stop, self._next) if future is not None}
        done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)


async def _traced(store: Store, event: StoredEvent, traces: dict[str, str]) -> StoredEvent:
    """The event with the trace id of its attempt. A stream sees every beginning, and looks up but the first one."""
    if event.task is None:
        return event
    if not event.trace and event.task not in traces:
        traces[event.task] = await store.trace_at(event.task, event.seq)
    if len(traces) > _TRACES_MAX:
        traces.clear()
    trace = event.trace or traces.get(event.task, "")
    traces[event.task] = trace
    return replace(event, trace=trace)


async def _ended(store: Store, task_id: str) -> bytes | None:
    found = await store.find(task_id)
    if isinstance(found, Refused):
        return _plain("end", {"task": task_id, "state": None})
    if found.state.ended or found.state in (TaskState.WAITING, TaskState.PAUSED):
        return _plain("end", show_task(found))
    return None


def _frame(event: StoredEvent) -> bytes:
    return b"id: %d\n" % event.seq + _plain(event.type, show_event(event))


def _plain(name: str, data: Any) -> bytes:
    # JSON has no raw line break, so that one `data` line is enough, whatever an event holds.
    word = "".join(letter for letter in name if letter.isprintable())
    return f"event: {word}\ndata: {json.dumps(data, separators=(',', ':'), default=str)}\n\n".encode()
