"""Desk: limits before the call: who may go now, who waits in line, who is turned away; woken by events, never polling.

The line is fair by name: whoever came first at the limit that holds them goes first, and nobody waits behind a limit
that is not theirs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.ports import Clock
from harnessd.policy import PolicySet
from harnessd.policy import limits as rules
from harnessd.policy.limits import Held, LimitSettings, Load
from harnessd.runtime.traffic.day_costs import DayCosts, Reservation
from harnessd.runtime.traffic.pace import Paces

MINUTE_S = 60.0
# Only calls are counted at once here: for agents, labels and the daemon `concurrency` counts tasks, at the claim.
CALLED = ("model/", "tool/", "mcp/")
_SOON_S = 0.002  # timers may fire a little early
_TALLIES_KEPT = 4096  # names of labels come and go

Ramp = Callable[[str, int], tuple[int, float | None]]
Refusal = Callable[[], Failure | None]


@dataclass(frozen=True, slots=True)
class Ask:
    """A call that wants to be made. `names[0]` is its dependency; tokens and cost are what it is expected to use.

    `refusal` is asked at each look: a failure ends the wait (the breaker opened meanwhile).
    """

    names: tuple[str, ...]
    tokens: int = 0
    cost_usd: float = 0.0
    retry: bool = False
    refusal: Refusal = lambda: None


@dataclass(slots=True)
class Entry:
    """A call in the last minute of a name."""

    at: float
    tokens: int
    retry: bool


@dataclass(frozen=True, slots=True)
class Place:
    """A call under way; given back with `leave`."""

    ask: Ask
    entries: tuple[Entry, ...]
    held: Reservation


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The day's money of a name is used up."""

    name: str
    held: Held


@dataclass(slots=True)
class _Tally:
    """What runs and ran under one name."""

    running: int = 0
    minute: deque[Entry] = field(default_factory=deque)

    def forget(self, before: float) -> None:
        while self.minute and self.minute[0].at <= before:
            self.minute.popleft()

    def load(self, settings: LimitSettings, cost_usd: float, *, retry: bool) -> Load:
        """What the limits that are set need to know; sums that nobody asks for are not made."""
        tokens = settings.tokens_per_minute is not None
        retry = retry and settings.retry_share is not None
        return Load(
            running=self.running,
            requests_in_minute=len(self.minute),
            tokens_in_minute=sum(entry.tokens for entry in self.minute) if tokens else 0,
            retries_in_minute=sum(entry.retry for entry in self.minute) if retry else 0,
            cost_usd_today=cost_usd,
        )


@dataclass(slots=True)
class _Waiter:
    ask: Ask
    answer: asyncio.Future[Place | Failure | Ceiling]


class Desk:
    """The one waiting line of a daemon."""

    def __init__(
        self,
        policies: Callable[[], PolicySet],
        clock: Clock,
        days: DayCosts,
        ramp: Ramp = lambda _, limit: (limit, None),
        minute_s: float = MINUTE_S,
    ) -> None:
        """Limits are read from the set in force at each look. `ramp` narrows concurrency after an outage."""
        self._policies, self._clock, self._days, self._ramp = policies, clock, days, ramp
        self._minute_s = minute_s
        self._paces = Paces()
        self._line: list[_Waiter] = []
        self._tallies: dict[str, _Tally] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._settings: dict[str, LimitSettings] = {}
        self._settings_of: PolicySet | None = None

    async def enter(self, ask: Ask) -> Place | Failure | Ceiling:
        """Wait until the call may be made, or is refused."""
        waiter = _Waiter(ask, asyncio.get_running_loop().create_future())
        self._line.append(waiter)
        self.look()
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            # A place that was given in the same moment goes back, or nobody would ever have it again.
            if waiter in self._line:
                self._line.remove(waiter)
            elif waiter.answer.done() and not waiter.answer.cancelled() and isinstance(waiter.answer.result(), Place):
                await self.leave(waiter.answer.result(), 0, 0.0)
            raise

    async def leave(self, place: Place | Failure | Ceiling, tokens: int, cost_usd: float) -> None:
        """The call is over: what it really used counts, and the next in line is let in."""
        if not isinstance(place, Place):
            return
        for name in place.ask.names:
            if name.startswith(CALLED):
                self._tally(name).running -= 1
        for entry in place.entries:
            entry.tokens = tokens
        try:
            await self._days.settle(place.held, cost_usd)
        finally:
            self.look()

    def learn(self, place: Place, error_class: ErrorClass | None, hint_s: float | None) -> None:
        """What a call that ends says of how much its dependency bears (R3.16); before `leave`."""
        name = place.ask.names[0]
        most = self.settings(name).concurrency
        self._paces.learn(name, error_class, self.running(name), most, hint_s, self._clock.monotonic())

    def look(self) -> None:
        """Let in whom the limits of this moment allow. Called when a call ends, a limit changes, a timer fires."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        barred: set[str] = set()
        waits: list[float] = []
        for waiter in list(self._line):
            answer = waiter.ask.refusal() or self._judge(waiter.ask, barred, waits)
            if answer is not None:
                self._line.remove(waiter)
                if not waiter.answer.done():
                    waiter.answer.set_result(answer)
                elif isinstance(answer, Place):
                    self._undo(answer)
        if waits:
            delay = max(0.0, min(waits)) + _SOON_S
            self._timer = asyncio.get_running_loop().call_later(delay, self.look)

    def waiting(self, name: str) -> int:
        """Calls in line that touch a name."""
        return sum(name in waiter.ask.names for waiter in self._line)

    def running(self, name: str) -> int:
        """Calls of a dependency under way."""
        found = self._tallies.get(name)
        return found.running if found is not None else 0

    def may_retry(self, names: tuple[str, ...]) -> bool:
        """Whether the retry budget of all names leaves room for one more retry now."""
        now = self._clock.monotonic()
        return all(
            held is None or held.limit != "retry_share"
            for held in (self._held(name, Ask(names, retry=True), now) for name in names)
        )

    def settings(self, name: str) -> LimitSettings:
        """The limits of a name under the policies in force."""
        policies = self._policies()
        if policies is not self._settings_of:
            self._settings, self._settings_of = {}, policies
        found = self._settings.get(name)
        if found is None:
            found = rules.settings(policies.limits, name)
            if not name.startswith(CALLED):
                found = replace(found, concurrency=None)
            self._settings[name] = found
        return found

    # --- judging -----------------------------------------------------------------------------------------------------

    def _judge(self, ask: Ask, barred: set[str], waits: list[float]) -> Place | Ceiling | None:
        now = self._clock.monotonic()
        if not barred.isdisjoint(ask.names):
            return None
        name = ask.names[0]
        paced_s = self._paces.held_s(name, self.running(name), now)
        if paced_s is not None:
            barred.add(name)
            waits += [paced_s] if paced_s else []
            return None
        holding = [(name, held) for name in ask.names if (held := self._held(name, ask, now)) is not None]
        for name, held in holding:
            if held.limit == "cost_usd_per_day" and self._used_up(name, ask.cost_usd):
                return Ceiling(name, held)
        if not holding:
            return self._let_in(ask, now)
        for name, held in holding:
            barred.add(name)
            waits += self._until(name, held, now)
        return None

    def _held(self, name: str, ask: Ask, now: float) -> Held | None:
        settings = self.settings(name)
        if not settings.refs:
            return None
        tally = self._tally(name)
        tally.forget(now - self._minute_s)
        if settings.concurrency is not None:
            admitted = self._ramp(name, settings.concurrency)[0]
            settings = settings if admitted == settings.concurrency else replace(settings, concurrency=admitted)
        load = tally.load(settings, self._days.charged(name), retry=ask.retry)
        return rules.admit(settings, load, tokens=ask.tokens, cost_usd=ask.cost_usd, retry=ask.retry)

    def _used_up(self, name: str, cost_usd: float) -> bool:
        """Really spent, not only reserved: reservations of calls under way may come back."""
        limit = self.settings(name).cost_usd_per_day
        return limit is not None and self._days.spent(name) + cost_usd > limit

    def _until(self, name: str, held: Held, now: float) -> list[float]:
        """Seconds after which this limit may let somebody in by time alone."""
        if held.limit == "concurrency":
            limit = self.settings(name).concurrency
            step = self._ramp(name, limit)[1] if limit is not None else None
            return [step] if step is not None else []
        minute = self._tally(name).minute
        return [minute[0].at + self._minute_s - now] if minute and held.limit != "cost_usd_per_day" else []

    def _let_in(self, ask: Ask, now: float) -> Place:
        entries = []
        for name in ask.names:
            tally = self._tally(name)
            entry = Entry(now, ask.tokens, ask.retry)
            tally.minute.append(entry)
            tally.forget(now - self._minute_s)
            entries.append(entry)
            tally.running += name.startswith(CALLED)
        return Place(ask, tuple(entries), self._days.hold(ask.names, ask.cost_usd))

    def _undo(self, place: Place) -> None:
        """Nobody is there any more to take the place."""
        for name in place.ask.names:
            self._tally(name).running -= name.startswith(CALLED)

    def _tally(self, name: str) -> _Tally:
        found = self._tallies.get(name)
        if found is None:
            if len(self._tallies) >= _TALLIES_KEPT:
                self._forget()
            found = self._tallies[name] = _Tally()
        return found

    def _forget(self) -> None:
        oldest = self._clock.monotonic() - self._minute_s
        for name, tally in list(self._tallies.items()):
            tally.forget(oldest)
            if not tally.running and not tally.minute:
                del self._tallies[name]


@dataclass(frozen=True, slots=True)
class Seats:
    """What a claim may take: at most `free` tasks (None: as many as there are workers), none of the names in `full`.

    With `one_by_one` each task that is taken may fill a name, so that it has to be asked again.
    """

    free: int | None = None
    full: frozenset[str] = frozenset()
    one_by_one: bool = False


def seats(policies: PolicySet, names_of_running: Sequence[tuple[str, ...]]) -> Seats:
    """The tasks that `concurrency` of agents, labels and the daemon still lets run (R3.15)."""
    if not any(
        rule.concurrency is not None and not all(name.text.startswith(CALLED) for name in rule.for_)
        for rule in policies.limits.shape.rules
    ):
        return Seats()
    counts: dict[str, int] = {}
    for names in names_of_running:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    limits = {name: rules.settings(policies.limits, name).concurrency for name in counts}
    full = {name for name, limit in limits.items() if limit is not None and counts[name] >= limit}
    whole = rules.settings(policies.limits, "daemon").concurrency
    free = None if whole is None else max(0, whole - len(names_of_running))
    return Seats(free, frozenset(full), one_by_one=True)
