"""Day costs: what each name has spent in this UTC day; reserved before a call, settled after, kept in the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from harnessd.domain.durable.breaker_store import BreakerStore, Transition
from harnessd.domain.ports import Clock


@dataclass(slots=True)
class Reservation:
    """What a call may cost, charged to its names of a day. `written` once the store knows it."""

    names: tuple[str, ...]
    day: str
    usd: float
    written: bool = False


class DayCosts:
    """The day's spend by name. Memory decides, the store remembers.

    What is reserved in the store before a call stays charged after a crash: nobody knows whether the work was billed.
    """

    def __init__(self, store: BreakerStore, clock: Clock) -> None:
        """Nothing is known before `load`."""
        self._store, self._clock = store, clock
        self._day = day_of(clock.now())
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._reserved: defaultdict[str, float] = defaultdict(float)
        self._ceilings: dict[str, float] = {}

    async def load(self) -> None:
        """Take up what was spent today before a restart."""
        self._day = day_of(self._clock.now())
        self._spent.update(await self._store.day_costs(self._day))

    def spent(self, name: str) -> float:
        """USD settled today."""
        self._turn_over()
        return self._spent.get(name, 0.0)

    def charged(self, name: str) -> float:
        """USD settled or reserved today."""
        self._turn_over()
        return self._spent.get(name, 0.0) + self._reserved.get(name, 0.0)

    def names(self) -> list[str]:
        """Everybody who was charged today."""
        self._turn_over()
        return sorted(self._spent.keys() | self._reserved.keys())

    def hold(self, names: Iterable[str], usd: float) -> Reservation:
        """Reserve in memory, at once."""
        self._turn_over()
        held = Reservation(tuple(names), self._day, usd)
        if usd > 0:
            for name in held.names:
                self._reserved[name] += usd
        return held

    async def write(self, held: Reservation) -> None:
        """Make a reservation durable, before the call."""
        if held.usd > 0:
            held.written = True
            await self._store.charge(dict.fromkeys(held.names, held.usd), held.day)

    async def settle(self, held: Reservation, usd: float) -> None:
        """What the call really cost takes the reservation's place."""
        self._turn_over()
        for name in held.names if held.day == self._day else ():
            if held.usd > 0:
                self._reserved[name] = max(0.0, self._reserved[name] - held.usd)
            self._spent[name] += usd
        difference = usd - (held.usd if held.written else 0.0)
        if difference:
            await self._store.charge(dict.fromkeys(held.names, difference), held.day)

    async def tell_ceiling(self, name: str, limit: float, told: Transition) -> None:
        """Leave the event of a ceiling, once a day."""
        self._turn_over()
        known, self._ceilings[name] = name in self._ceilings, limit
        if not known:
            await self._store.reach_ceiling(name, self._day, told, self._clock.now())

    def reached_at(self, name: str) -> float:
        """The limit that a name last ran into today; 0 where it did not."""
        self._turn_over()
        return self._ceilings.get(name, 0.0)

    def _turn_over(self) -> None:
        today = day_of(self._clock.now())
        if today != self._day:
            self._day = today
            self._spent.clear()
            self._reserved.clear()
            self._ceilings.clear()


def day_of(now: float) -> str:
    """The UTC day of a time."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def until_midnight_s(now: float) -> float:
    """Seconds until 00:00 UTC."""
    today = datetime.fromtimestamp(now, UTC)
    midnight = (today + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight.timestamp() - now
