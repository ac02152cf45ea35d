"""Watchdog: silence, not age, is the sign of a hang: a tool call without output and CPU time is ended as a timeout.

It knows only calls of tools: a model call has clocks of its own (net/clocks.py), a task that waits for a person or a
timer has no worker, and what shows life (output, CPU time anywhere in its process tree) may run as long as its other
limits let it (R3.11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harnessd.domain.ports import Clock, JobKeeper, SignOfLife
from harnessd.runtime.runner import Runner

# A hang is told within seconds of its limit: looked for ten times in a limit, at least once in 15 s. The least limit
# that a policy may set is 5 s.
_LOOKS_A_LIMIT, _LEAST_S, _MOST_S = 10, 0.5, 15.0


@dataclass(slots=True)
class Watchdog:
    """Looks at all running tool calls that have a limit of silence; sleeps while there are none."""

    running: Callable[[], Mapping[str, Runner]]
    jobs: JobKeeper
    clock: Clock
    _seen: dict[tuple[str, str], tuple[SignOfLife | None, float]] = field(default_factory=dict)
    _begun: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """A tool call with a limit of silence has begun."""
        self._begun.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            while limits := [limit for runner in self.running().values() for limit in runner.watched.values()]:
                await asyncio.sleep(min(max(min(limits) / _LOOKS_A_LIMIT, _LEAST_S), _MOST_S))
                self._look()
            self._seen.clear()

    def _look(self) -> None:
        now = self.clock.monotonic()
        alive: dict[tuple[str, str], tuple[SignOfLife | None, float]] = {}
        for task, runner in self.running().items():
            watched = dict(runner.watched)
            signs = self.jobs.signs_of_life(task) if watched else {}
            for call, limit_s in watched.items():
                sign = signs.get(call)
                before, since = self._seen.get((task, call), (None, now))
                # A tool without processes (a file is read) shows no sign and is not ended for it.
                moved = now if sign is None or sign != before else since
                alive[task, call] = (sign, moved)
                if now - moved >= limit_s:
                    runner.end_silent(call, now - moved)
        self._seen = alive
