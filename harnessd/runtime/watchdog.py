"""Watchdog: silence, not age, is the sign of a hang; rungs: cancel the call, end the turn, restart the worker (R3.11).

A tool call shows life by output and by CPU time anywhere in its process tree, and may then run as long as its other
limits let it. A model call has clocks of its own (net/clocks.py); the watchdog stands behind them. A task that waits
for a person, a timer or its jobs has no worker. Each look is at numbers in memory: no task's hang slows another's.
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


@dataclass(frozen=True, slots=True)
class Rungs:
    """How long each rung waits for what the one before it should have done, in seconds."""

    model_grace_s: float = 15.0  # behind the model call's own clocks
    end_turn_s: float = 5.0  # a cancelled call ends everything it started within 2 s
    restart_s: float = 60.0  # one step of a run, or its preparation: a few writes and a look at the workspace


@dataclass(slots=True)
class Watchdog:
    """Looks at all tasks that hold a worker; sleeps while there are none.

    `preparing` are the tasks whose run is not there yet, with the seconds since they were claimed; `told` hears of
    each rung that was taken; `restart` is the last one. `excused`: a step may take longer, as the disk is full.
    """

    running: Callable[[], Mapping[str, Runner]]
    jobs: JobKeeper
    clock: Clock
    preparing: Callable[[], Mapping[str, float]] = dict
    model_silence_s: Callable[[str], float] = lambda _: 3600.0
    told: Callable[[str, Mapping[str, object]], None] = lambda *_: None
    restart: Callable[[str], None] = lambda _: None
    excused: Callable[[], bool] = lambda: False
    rungs: Rungs = field(default_factory=Rungs)
    _seen: dict[tuple[str, str], tuple[SignOfLife | None, float]] = field(default_factory=dict)
    _begun: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """A task was claimed, or a call has begun."""
        self._begun.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            while self.running() or self.preparing():
                self._begun.clear()
                try:
                    async with asyncio.timeout(self._next_look_s()):
                        await self._begun.wait()  # a call with a shorter limit may have begun
                    continue
                except TimeoutError:
                    self.look()
            self._seen.clear()

    def look(self) -> None:
        """One look at everything, and the rungs that follow from it."""
        self._calls()
        for task, runner in list(self.running().items()):
            self._model(task, runner)
            for call in runner.unanswered(self.rungs.end_turn_s):
                self._say(task, "end the turn", f"{call} did not end when it was told to; the turn goes on without it")
                runner.end_turn(call)
            if runner.stuck_s >= self.rungs.restart_s and not self.excused():
                self._restart(task, f"one step took {runner.stuck_s:.0f} s")
        for task, since_s in list(self.preparing().items()):
            if since_s >= self.rungs.restart_s and not self.excused():
                self._restart(task, f"it could not be taken up for {since_s:.0f} s")

    def _next_look_s(self) -> float:
        limits = [limit for runner in self.running().values() for limit in runner.watched.values()]
        limits += [_LOOKS_A_LIMIT * s for s in (self.rungs.end_turn_s, self.rungs.model_grace_s, self.rungs.restart_s)]
        return min(max(min(limits) / _LOOKS_A_LIMIT, _LEAST_S), _MOST_S)

    def _calls(self) -> None:
        now = self.clock.monotonic()
        alive: dict[tuple[str, str], tuple[SignOfLife | None, float]] = {}
        for task, runner in self.running().items():
            watched = dict(runner.watched)
            signs = self.jobs.signs_of_life(task) if watched else {}
            for call, limit_s in watched.items():
                sign = signs.get(call)
                before, since = self._seen.get((task, call), (None, now))
                # A tool without processes (a file is read, from a server that is gone) shows no sign: only silence.
                moved = now if sign != before or (task, call) not in self._seen else since
                alive[task, call] = (sign, moved)
                if now - moved >= limit_s:
                    runner.end_silent(call, now - moved)
                    self._say(task, "cancel the call", f"{call} was silent for {now - moved:.0f} s")
        self._seen = alive

    def _model(self, task: str, runner: Runner) -> None:
        found = runner.model_silence
        if found is None:
            return
        model, silent_s = found
        if silent_s >= self.model_silence_s(model) + self.rungs.model_grace_s:
            runner.end_silent_model(silent_s)
            self._say(task, "cancel the call", f"model/{model} was silent for {silent_s:.0f} s beyond its clocks")

    def _restart(self, task: str, why: str) -> None:
        self._say(task, "restart the worker", f"{why}; the worker is given up, and another one takes the task")
        self.restart(task)

    def _say(self, task: str, rung: str, why: str) -> None:
        self.told(task, {"rung": rung, "why": why})
