"""Starts: clean and unclean ones; after too many of the latter nothing that they interrupted goes on by itself."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, Protocol

from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError
from harnessd.domain.jobs import StartStore
from harnessd.domain.ports import Clock, Journal
from harnessd.runtime import telemetry

_log = telemetry.log("starts")


class StartsStore(StartStore, Journal, Protocol):
    """What is asked of the store."""


class Limits(Protocol):
    """`restarts` of harness.yaml: so many unclean starts in so many seconds bring the daemon up without resuming."""

    @property
    def unclean(self) -> int: ...

    @property
    def within(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Shipped:
    """R6.1a: three in five minutes."""

    unclean: int = 3
    within: float = 300.0


@dataclass(slots=True)
class Starts:
    """This start, and the tasks that are held because of those before it."""

    store: StartsStore
    clock: Clock
    limits: Limits = field(default_factory=_Shipped)
    at: float = 0.0
    held: int = 0
    unclean: int = 0

    async def begin(self, interrupted: int) -> None:
        """Note the start; `interrupted` tasks were queued again by it. Called before anything is claimed."""
        self.at = self.clock.now()
        self.unclean = await self.store.begin_start(self.at, self.limits.within)
        await self.store.log(
            EventType.DAEMON_STARTED, {"unclean_starts": self.unclean, "interrupted": interrupted}, self.at
        )
        if self.unclean < self.limits.unclean:
            self.held = await self.store.held()
            return
        minutes, seconds = divmod(self.limits.within, 60)
        span = f"{self.limits.within:g} s" if seconds else f"{minutes:g} minute{'s' if minutes > 1 else ''}"
        why = f"harnessd started {self.unclean} times within {span} after unclean ends"
        count = await self.store.hold_interrupted(self.at, f"{why}; it was not resumed by itself")
        self.held = await self.store.held()
        sentence = f"{why[0].upper()}{why[1:]}: {count} interrupted tasks are paused until a person resumes them."
        _log.error("recovery_stopped", sentence=sentence, remedy="harnessctl resume --held")
        data = {"sentence": sentence, "times": self.unclean, "held": count, "who": "harnessd"}
        steps = [["harnessctl", "resume", "--held"]]
        await self.store.log(EventType.RECOVERY_STOPPED, data | {"next_steps": steps}, self.at)

    async def end(self) -> None:
        """The planned end: the next start is a clean one."""
        now = self.clock.now()
        with contextlib.suppress(HarnessError):  # then the next start counts as an unclean one
            await self.store.log(EventType.DAEMON_STOPPED, {"up_s": round(now - self.at, 1)}, now)
            await self.store.end_start(now)

    async def watch(self) -> None:
        """Until cancelled: how many tasks are still held, for `status`."""
        async for _ in self.store.subscribe():
            if not self.held:
                return
            self.held = await self.store.held()

    def warning(self) -> dict[str, Any] | None:
        """What `status` says of it."""
        if not self.held:
            return None
        tasks = "1 task is" if self.held == 1 else f"{self.held} tasks are"
        sentence = (
            f"{tasks} paused since unclean starts; harnessctl resume --held goes on, harnessctl list --state paused"
        )
        return {"what": "recovery_stopped", "since": self.at, "sentence": sentence}
