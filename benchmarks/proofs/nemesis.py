"""Nemesis: what befalls two daemons and their PostgreSQL server, at seeded moments: stops at once, kill -9, pauses.

One thread does it all, and is the service manager of the daemons as well: whichever ended is started again.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.running import Running
from tests.stores.postgres_server import Server

# Seconds between two blows of a kind; the server's are those of the promise.
SERVER_S, KILL_S, PAUSE_S = (5.0, 40.0), (20.0, 80.0), (30.0, 120.0)
FIRST_S = (15.0, 45.0)  # the first one of each kind: short runs see all three
DOWN_S = (0.0, 2.0)  # how long the server stays away
PAUSE_TTLS = (1.05, 1.6)  # how long a pause is, in times of the lease's
RESTART_S = 0.5  # a service manager's RestartSec
TICK_S = 0.02
MISCONFIGURED = (2, 78)  # a mistake of ours: no service manager starts it again


@dataclass(slots=True)
class Nemesis:
    """All blows and their counts. `begin`, then `calm`."""

    server: Server
    nodes: Mapping[str, Running]
    luck: random.Random
    pace: float
    ttl_s: float
    counts: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)  # of daemons that ended by themselves
    faults: list[str] = field(default_factory=list)
    paused: dict[str, float] = field(default_factory=dict)  # node -> when it goes on
    _killed: set[int] = field(default_factory=set)
    _again: dict[str, float] = field(default_factory=dict)
    _server_up_at: float | None = None
    _due: dict[str, float] = field(default_factory=dict)
    _calm: threading.Event = field(default_factory=threading.Event)
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the daemons, and from then on hurt them."""
        for one in self.nodes.values():
            one.spawn()
        now = time.monotonic()
        for kind in ("server", "kill", "pause"):
            self._due[kind] = now + self.luck.uniform(*FIRST_S) * self.pace
        self._thread = threading.Thread(target=self._run, name="nemesis", daemon=True)
        self._thread.start()

    def calm(self) -> None:
        """No more blows; what is down is started again as before."""
        self._calm.set()

    def end(self) -> None:
        """Nobody is started again."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(120)

    def line(self) -> str:
        """In one line."""
        own = ", ".join(f"{times} with status {status}" for status, times in sorted(self.statuses.items())) or "none"
        return (
            f"{self.counts['server']} immediate stops of the server, {self.counts['kill']} kills and "
            f"{self.counts['pause']} pauses of a daemon; ended by themselves: {own}"
        )

    def _run(self) -> None:
        try:
            while not self._end.wait(TICK_S):
                self._tick(time.monotonic())
        except BaseException as fault:  # noqa: BLE001 - told as a broken promise; nobody else hears of this thread
            self.faults.append(f"the nemesis itself failed: {fault!r}")
        finally:
            for name in list(self.paused):
                self._go_on(name)

    def _tick(self, now: float) -> None:
        calm = self._calm.is_set()
        if self._server_up_at is not None and (calm or now >= self._server_up_at):
            self.server.start()
            self._server_up_at = None
            self._due["server"] = time.monotonic() + self.luck.uniform(*SERVER_S) * self.pace
        for name, until in list(self.paused.items()):
            if calm or now >= until:
                self._go_on(name)
        self._serve(now)
        blows: Mapping[str, Callable[[], float]] = {"server": self._stop, "kill": self._kill, "pause": self._pause}
        for kind, blow in blows.items():
            if not calm and now >= self._due[kind]:
                self._due[kind] = now + blow()

    def _serve(self, now: float) -> None:
        """What a service manager does."""
        for name, one in self.nodes.items():
            assert one.process is not None
            status = one.process.poll()
            if status is None:
                continue
            if name not in self._again:
                self._again[name] = now + RESTART_S
                self.paused.pop(name, None)
                if one.process.pid not in self._killed:
                    self.statuses[status] += 1
                    assert status not in MISCONFIGURED, f"daemon {name} ended with {status}: {one.log[-1500:]}"
            elif now >= self._again[name]:
                del self._again[name]
                one.spawn()

    def _stop(self) -> float:
        self.server.stop(signal.SIGQUIT)
        self.counts["server"] += 1
        self._server_up_at = time.monotonic() + self.luck.uniform(*DOWN_S) * self.pace
        return float("inf")  # until it is up again

    def _kill(self) -> float:
        one = self.nodes[self.luck.choice(sorted(self.nodes))]
        assert one.process is not None
        if one.process.poll() is None:
            self._killed.add(one.process.pid)
            one.process.send_signal(signal.SIGKILL)
            self.counts["kill"] += 1
        return self.luck.uniform(*KILL_S) * self.pace

    def _pause(self) -> float:
        name = self.luck.choice(sorted(self.nodes))
        process = self.nodes[name].process
        assert process is not None
        if self.paused or process.poll() is not None:
            return 1.0
        process.send_signal(signal.SIGSTOP)
        self.counts["pause"] += 1
        self.paused[name] = time.monotonic() + self.luck.uniform(*PAUSE_TTLS) * self.ttl_s
        return self.luck.uniform(*PAUSE_S) * self.pace + PAUSE_TTLS[1] * self.ttl_s

    def _go_on(self, name: str) -> None:
        self.paused.pop(name, None)
        process = self.nodes[name].process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
