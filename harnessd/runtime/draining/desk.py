"""Desk: a drain as people ask for it: no new claims, step borders, background jobs waited for, and a way back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Clock, Refused, Store
from harnessd.runtime import telemetry
from harnessd.runtime.draining.others import Others
from harnessd.runtime.worker import DRAIN, Pool

_log = telemetry.log("drain")
_LOOK_S = 0.2
_CUT = "ended because harnessd was drained"


class Jobs(Protocol):
    """What a drain asks of the keeper of background jobs."""

    def tasks(self) -> Sequence[str]:
        """The tasks that have anything running."""

    def running(self, task: str) -> Sequence[str]:
        """Ids of a task's jobs that still run."""

    def find(self, task: str, job: str) -> Any:
        """A job: `command`, `began_at`, `life_s`."""

    async def aclose(self, why: str) -> None:
        """End all jobs of all tasks, and tell the tasks why."""


@dataclass(slots=True)
class _Course:
    """One drain, from the order to the last thing that ran."""

    by: str
    since: float
    until: float
    running: int
    cut: list[str] = field(default_factory=list)
    cut_jobs: list[dict[str, Any]] = field(default_factory=list)
    ended: float | None = None


class Draining:
    """This daemon's drain. In memory alone: a daemon that starts anew takes work."""

    def __init__(self, store: Store, pool: Pool, jobs: Jobs, clock: Clock, node: str, limit_s: float) -> None:
        """`node` is what this daemon is called, `limit_s` how long a drain lasts where nobody says."""
        self._store, self._pool, self._jobs, self._clock, self.node = store, pool, jobs, clock, node
        self._limit_s = limit_s
        self._others = Others(store)
        self._course: _Course | None = None
        self._work: asyncio.Task[None] | None = None

    def state(self) -> Mapping[str, Any]:
        """How far it is: `draining`, `empty`, `over`, `running`, `jobs`, `cut`, `cut_jobs`, and times."""
        course, running, jobs = self._course, self._running(), self._left()
        document: dict[str, Any] = {"node": self.node, "draining": self._pool.draining, "running": running}
        document |= {"jobs": jobs, "empty": not (self._pool.busy or jobs), "over": False}
        if course is not None:
            ended = course.ended
            took_s = (self._clock.now() if ended is None else ended) - course.since
            document |= {"by": course.by, "since": course.since, "until": course.until, "over": ended is not None}
            document |= {"began_with": course.running, "took_s": round(max(0.0, took_s), 1)}
            document |= {"cut": list(course.cut), "cut_jobs": list(course.cut_jobs)}
        return document

    async def begin(self, node: str, timeout_s: float | None, by: str) -> Mapping[str, Any] | Refused:
        """Let this daemon, or another of the same store, become empty; a second order moves the time of the first."""
        if node and node != self.node:
            return await self._others.carry(node, {"by": by})
        limit_s = self._limit_s if timeout_s is None else timeout_s
        await self._end_work()
        now = self._clock.now()
        if self._course is None or self._course.ended is not None:
            self._course = _Course(by, now, now + limit_s, self._pool.busy)
        self._course.until = now + limit_s
        words = {"running": self._pool.busy, "timeout_s": limit_s, "by": by, "node": self.node}
        self._pool.hold(DRAIN)
        await self._event(EventType.DRAINING, words)
        _log.info("draining", **words)
        self._work = asyncio.create_task(self._drain(self._course, limit_s), name="drain")
        return self.state()

    async def cancel(self, node: str, by: str) -> Mapping[str, Any] | Refused:
        """Take work again. What was handed back is claimed like anything else."""
        if node and node != self.node:
            return await self._others.carry(node, {"cancel": True, "by": by})
        await self._end_work()
        self._course = None
        self._pool.release(DRAIN)
        _log.info("drain_cancelled", by=by)
        return self.state()

    def warning(self) -> dict[str, Any] | None:
        """For the status: why nothing is claimed."""
        course = self._course
        if course is None:
            return None
        sentence = f"{course.by} drains this daemon: it takes no new work. Undo: harnessctl drain --cancel"
        return {"what": "draining", "since": course.since, "sentence": sentence}

    async def _drain(self, course: _Course, limit_s: float) -> None:
        ends = self._clock.monotonic() + limit_s
        course.cut += await self._pool.empty(limit_s)
        while (left := self._left()) and self._clock.monotonic() < ends:  # noqa: ASYNC110 - a tree's end makes no event
            await asyncio.sleep(_LOOK_S)
        if left:
            course.cut_jobs += left
            await self._jobs.aclose(_CUT)
        course.ended = self._clock.now()
        took_s = round(course.ended - course.since, 1)
        words = {"running": course.running, "cut": course.cut, "cut_jobs": course.cut_jobs, "took_s": took_s}
        _log.info("drained", **words)
        await self._event(EventType.DRAINED, words | {"sentence": _sentence(course, took_s)})

    def _running(self) -> list[dict[str, Any]]:
        now = self._clock.monotonic()
        at_work = [
            {"task": task, "doing": runner.life.doing, "for_s": round(now - runner.life.since, 1)}
            for task, runner in self._pool.running.items()
        ]
        fresh = self._pool.preparing.items()
        return [*at_work, *({"task": task, "doing": "", "for_s": round(since, 1)} for task, since in fresh)]

    def _left(self) -> list[dict[str, Any]]:
        """The jobs that run in the background, by task."""
        found = []
        for task in self._jobs.tasks():
            for name in self._jobs.running(task):
                job = self._jobs.find(task, name)
                began_at, life_s = job.began_at, job.life_s
                ends_at = None if life_s is None else began_at + life_s
                found.append({"task": task, "job": name, "since": began_at, "ends_at": ends_at})
        return found

    async def _end_work(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
            self._work = None

    async def _event(self, word: EventType, words: Mapping[str, Any]) -> None:
        with contextlib.suppress(HarnessError):  # a store that takes nothing is no reason not to become empty
            await self._store.log(word, words, self._clock.now())


def _sentence(course: _Course, took_s: float) -> str:
    cut = len(course.cut) + len(course.cut_jobs)
    if not course.running and not cut:
        return "Nothing was running."
    many = f"{course.running} task{'s' * (course.running != 1)}"
    return f"{many} handed back in {took_s} s, {len(course.cut)} of them cut; {len(course.cut_jobs)} jobs cut."
