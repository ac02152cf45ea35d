"""Care: what looks after the machine and after everything that runs beside the workers, as one part of the daemon."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from harnessd.domain.jobs import KeptJob
from harnessd.domain.ports import Clock, JobKeeper, Store
from harnessd.domain.workspace import Workspace
from harnessd.policy.retention import RetentionPolicy
from harnessd.runtime.background.book import Book
from harnessd.runtime.background.ended import EndedTasks
from harnessd.runtime.crashpoints import Crashpoint
from harnessd.runtime.draining.desk import Draining
from harnessd.runtime.host.disk import DiskGuard, PatientJournal
from harnessd.runtime.host.starts import Starts
from harnessd.runtime.rollbacks.carrying import Hands
from harnessd.runtime.rollbacks.desk import Rollbacks
from harnessd.runtime.rollbacks.undoing import Perform
from harnessd.runtime.upkeep.backups import Backups
from harnessd.runtime.upkeep.desk import Upkeep
from harnessd.runtime.upkeep.examining import Examining
from harnessd.runtime.upkeep.keeping import Keeping
from harnessd.runtime.watchdog import Watchdog
from harnessd.runtime.worker import Pool
from harnessd.runtime.workspaces.collecting import Collector
from harnessd.runtime.workspaces.looking import Looker


class Jobs(JobKeeper, Protocol):
    """The keeper of jobs, with what only the daemon's own parts ask of it."""

    def tasks(self) -> Sequence[str]:
        """The tasks that have anything running."""

    def find(self, task: str, job: str) -> Any:
        """A task's job, running or ended."""

    async def aclose(self, why: str = "") -> None:
        """End all jobs of all tasks, and tell the tasks why."""

    async def bury(self, left: Sequence[KeptJob]) -> None:
        """At start: end what the last daemon left running, and tell of its jobs."""


class Care:
    """Made before the pool, which it knows from `attach` on; `begin` is called before anything is claimed."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        redact: Callable[[str], str],
        folder: Path,
        policy: Callable[[], RetentionPolicy],
        workspace: Workspace,
    ) -> None:
        """`folder` is where the store lies, `policy` what is in force for it now, `workspace` keeps checkpoints."""
        self._store, self._clock = store, clock
        self.workspace = workspace
        self.collector = Collector(store, workspace, policy, clock)
        self.keeping = Keeping(store, self.collector, folder / "artefacts", policy, clock, self._quiet)
        self.backups = Backups(store, folder, clock, self.keeping.lock)
        self.guard = DiskGuard(folder, store, clock, policy, self._hold, self._release, self.keeping.make_room)
        self.journal = PatientJournal(store, self.guard)
        self.starts = Starts(store, clock)
        self.book = Book(store, clock, redact, self.guard, self._hear)
        self.rollbacks: Rollbacks | None = None
        self.draining: Draining | None = None
        self.drain_s = 60.0
        self._pool: Pool | None = None
        self._jobs: Jobs | None = None
        self._ended: EndedTasks | None = None

    def attach(
        self, pool: Pool, jobs: Jobs, model_silence_s: Callable[[str], float], perform: Perform, crash: Crashpoint
    ) -> Watchdog:
        """Know whom to look after; gives the watchdog over the pool's workers. `perform` calls a tool."""
        hands = Hands(perform, pool.wake, crash)
        self.rollbacks = Rollbacks(self._store, self.workspace, jobs, self._clock, hands)
        pool.roll_back = self.rollbacks.carry_on
        self._pool, self._jobs = pool, jobs
        name = getattr(self._store, "node_name", None) or socket.gethostname()
        self.draining = Draining(self._store, pool, jobs, self._clock, name, self.drain_s)
        self._ended = EndedTasks(self._store, jobs, lambda: pool.running)
        return Watchdog(
            lambda: pool.running,
            jobs,
            self._clock,
            preparing=lambda: pool.preparing,
            model_silence_s=model_silence_s,
            told=lambda task, data: pool.note(task, "rung", data),
            restart=pool.restart,
            excused=lambda: self.guard.seen.state == "stop",
        )

    async def begin(self) -> None:
        """Settle what the last daemon left: leases, unclean starts, processes."""
        interrupted = await self._store.release_all(self._clock.now())
        await self.starts.begin(interrupted)
        if self._jobs is not None:
            await self._jobs.bury(await self._store.open_jobs())
        await self.guard.look()
        if self.rollbacks is not None:
            await self.rollbacks.begin()

    async def end(self) -> None:
        """The planned end."""
        self.workspace.close()
        await self.starts.end()

    @property
    def work(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """What runs until cancelled."""
        ended = () if self._ended is None else (self._ended.run,)
        return (self.guard.run, self.starts.watch, self.keeping.run, *ended)

    def served(self) -> dict[str, Any]:
        """What of it people ask for over the control API."""
        return {
            "recovery": self.rollbacks,
            "draining": self.draining,
            "upkeep": Upkeep(self.backups, self.keeping, Examining(self._store)),
        }

    def looker(self, jobs: JobKeeper) -> Looker:
        """What takes checkpoints for the runners."""
        return Looker(self.workspace, jobs, self.guard, self._clock)

    def disk(self) -> dict[str, Any]:
        """For the status: the disk, and what checkpoints take of what they may."""
        most = self.collector.policy().shape.max_size.checkpoints
        kept = 0
        with contextlib.suppress(OSError):  # a segment may be given back while it is counted
            kept = self.workspace.size()
        return self.guard.facts() | {"checkpoint_bytes": kept, "checkpoint_bytes_max": most}

    def warnings(self) -> list[dict[str, Any]]:
        """What `status` says of it."""
        drain = None if self.draining is None else self.draining.warning()
        return [found for found in (self.guard.warning(), self.starts.warning(), drain) if found is not None]

    async def _hear(self, task: str) -> None:
        if self._pool is not None:
            await self._pool.hear(task)
            self._pool.wake()

    def _quiet(self) -> bool:
        return self._pool is None or self._pool.busy == 0

    def _hold(self, why: str) -> None:
        if self._pool is not None:
            self._pool.hold(why)

    def _release(self, why: str) -> None:
        if self._pool is not None:
            self._pool.release(why)
