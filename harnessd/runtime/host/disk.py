"""Disk: how much room the store's file system has, what policy makes of it, and who waits until there is some again.

Two signs say that there is none: the free part falls below what policy sets (`retention.disk_free`), looked at every
few seconds, and a write that was refused. The first comes before it is too late for the second to be recorded.

Whoever else fills the disk may fill it to the last byte. So a file of ballast lies there while there is room: it is
given up at the first refused write, and what has begun can be brought to an end in its place. Nothing new gets in then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from harnessd.domain.events import EventType
from harnessd.domain.failure import REFUSED_FOR_NOW, HarnessError, StorageFull
from harnessd.domain.ports import Clock, Journal
from harnessd.domain.record import Record
from harnessd.domain.task import Lease
from harnessd.policy.retention import Disk, RetentionPolicy, disk
from harnessd.runtime import telemetry

Body = TypeVar("Body")
Taken = TypeVar("Taken")

_log = telemetry.log("disk")
_LOOK_S = 5.0
_BALLAST_BYTES = 1 << 20
_LAST_BYTES = 64 << 10  # less than this is no room for a step's end
_AGAIN_S = 1.0  # after a refused write, whatever the file system says is free: a quota is not seen there


class Room(Protocol):
    """Whoever was refused a write waits here before the next try."""

    async def after(self, refused: HarnessError) -> None:
        """A write was refused for now, mostly for want of room: come back when it may be tried again."""


class Recorder(Protocol):
    """What a worker needs of the journal."""

    async def record(self, lease: Lease, records: Sequence[Record], now: float, revision: int = 0) -> None:
        """See `Journal`."""


class NoRoom(Room):
    """Where nobody guards the disk: tried again after a while."""

    async def after(self, refused: HarnessError) -> None:
        """See `Room`."""
        del refused
        await asyncio.sleep(_AGAIN_S)


@dataclass(slots=True)
class Seen:
    """The last look: the free part (0..1), what it means, since when."""

    free: float = 1.0
    state: Disk = "ok"
    since: float = 0.0


@dataclass(slots=True)
class DiskGuard(Room):
    """Looks, tells, stops new steps and lets them go on.

    `hold` and `release` are the pool's: no new step, and on again.
    """

    folder: Path
    store: Journal
    clock: Clock
    policy: Callable[[], RetentionPolicy]
    hold: Callable[[str], None]
    release: Callable[[str], None]
    collect: Callable[[], Awaitable[None]] | None = None  # what `warn` asks for
    look_s: float = _LOOK_S
    ballast_bytes: int = _BALLAST_BYTES
    seen: Seen = field(default_factory=Seen)
    _bell: asyncio.Event = field(default_factory=asyncio.Event)
    _refused: bool = False
    _given_up: bool = False
    _untold: list[tuple[EventType, dict[str, Any]]] = field(default_factory=list)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            wait_s = _AGAIN_S if self.seen.state == "stop" else self.look_s
            self._bell.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._bell.wait()
            except TimeoutError:
                pass

    async def look(self) -> None:
        """One look, and what follows from it."""
        refused, self._refused = self._refused, False
        try:
            # Not in a thread: a network file system, which alone answers late, is refused when the store is opened.
            free = free_part(self.folder)
        except OSError:
            return  # a folder that is gone is the store's to tell
        state, rule = disk(self.policy(), free)
        if refused:
            state = "stop"
        before, self.seen.free = self.seen.state, free
        if state != before:
            self.seen.state, self.seen.since = state, self.clock.now()
            where = {"free": round(free, 4), "rule": f"{rule.kind}/{rule.name} {rule.rule}", "folder": str(self.folder)}
            self._moved(before, state, where | {"where": f"{rule.file}:{rule.line}"})
            if state != "ok" and before == "ok" and self.collect is not None:
                await self.collect()
        if state == "ok":
            self._lay_ballast()
        elif state == "stop" and _free_bytes(self.folder) < _LAST_BYTES:
            self._drop_ballast()
        await self._tell()

    def admitting(self, take: Callable[[Body], Taken]) -> Callable[[Body], Taken]:
        """Let nothing new in while the ballast is given up: that room is for what has begun. It raises StorageFull."""

        def admit(body: Body) -> Taken:
            if self._refused or self._given_up:
                raise StorageFull(
                    f"There is no room left in {self.folder}; nothing was accepted.",
                    remedy="Free space on that disk; the daemon goes on by itself.",
                )
            return take(body)

        return admit

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def _lay_ballast(self) -> None:
        """Blocks of its own, not a hole; where they do not fit many times over there is none."""
        free = _free_bytes(self.folder)
        if free >= 2 * self.ballast_bytes:
            self._given_up = False
        if self._ballast.exists() or free < 8 * self.ballast_bytes:
            return
        try:
            file = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return
        try:
            os.posix_fallocate(file, 0, self.ballast_bytes)
        except OSError:
            self._ballast.unlink(missing_ok=True)
        finally:
            os.close(file)

    def _drop_ballast(self) -> None:
        self._given_up = True
        with contextlib.suppress(OSError):
            self._ballast.unlink()

    async def after(self, refused: HarnessError) -> None:
        """See `Room`. Tries once a second: a quota or a limit on file sizes shows in no free part."""
        if isinstance(refused, StorageFull):
            self._refused = True
            self._drop_ballast()
            self._bell.set()
        await asyncio.sleep(_AGAIN_S)

    def warning(self) -> dict[str, Any] | None:
        """What `status` says of it."""
        if self.seen.state == "ok":
            return None
        what = "storage_full" if self.seen.state == "stop" else "disk_low"
        return {"what": what, "since": self.seen.since, "sentence": _sentence(self.seen.state, self.seen.free)}

    def facts(self) -> dict[str, Any]:
        """For the status: the free part of the store's disk (0..1), and the bytes of the store's own files."""
        sizes = []
        for path in self.folder.glob("*.db*"):
            with contextlib.suppress(OSError):  # the write-ahead log comes and goes
                sizes.append(path.stat().st_size)
        return {"free": round(self.seen.free, 4), "store_bytes": sum(sizes)}

    def _moved(self, before: Disk, state: Disk, data: dict[str, Any]) -> None:
        _log.warning("disk", state=state, before=before, free=data["free"])
        if state == "stop":
            self.hold(EventType.STORAGE_FULL.value)
        elif before == "stop":
            self.release(EventType.STORAGE_FULL.value)
        if state != "ok" and (state == "stop" or before == "ok"):
            word = EventType.STORAGE_FULL if state == "stop" else EventType.DISK_LOW
            self._untold.append((word, data | {"sentence": _sentence(state, data["free"])}))

    async def _tell(self) -> None:
        while self._untold:
            word, data = self._untold[0]
            try:
                await self.store.log(word, data, self.clock.now())
            except StorageFull:
                return  # told as soon as there is room for it
            self._untold.pop(0)


def free_part(folder: Path) -> float:
    """The part of the file system that this user may still write to, 0..1. Raises OSError."""
    status = os.statvfs(folder)
    return status.f_bavail / status.f_blocks if status.f_blocks else 1.0


def _free_bytes(folder: Path) -> int:
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


def _sentence(state: Disk, free: float) -> str:
    if state == "stop":
        return (
            f"The store's disk has {free:.1%} free: no new step is begun; tasks go on by themselves when there is room."
        )
    return f"The store's disk has only {free:.1%} free; free some before it is full."


@dataclass(frozen=True, slots=True)
class PatientJournal(Recorder):
    """A journal whose units wait for room, or for a lock: nothing was written, so the same one is tried again."""

    journal: Recorder
    room: Room

    async def record(self, lease: Lease, records: Sequence[Record], now: float, revision: int = 0) -> None:
        """See `Journal`."""
        while True:
            try:
                await self.journal.record(lease, records, now, revision)
            except REFUSED_FOR_NOW as refused:
                await self.room.after(refused)
            else:
                return
