"""Breaker store: what traffic control keeps over restarts: breakers, costs by day, what parked tasks wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class StoredBreaker:
    """One breaker as it stood. `state` is JSON; `since` seconds since the Unix epoch."""

    name: str
    state: Mapping[str, Any]
    since: float


@dataclass(frozen=True, slots=True)
class Transition:
    """An event that is written in the same unit as what it tells of."""

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    revision: int = 0


class BreakerStore(Protocol):
    """Where traffic control keeps what a restart must not forget."""

    async def save_breakers(
        self, breakers: Sequence[StoredBreaker], now: float, transitions: Sequence[Transition] = ()
    ) -> None:
        """Keep these breakers, and leave the events of their transitions, in one unit."""

    async def breakers(self) -> Sequence[StoredBreaker]:
        """All breakers that were kept, by name."""

    async def charge(self, costs: Mapping[str, float], day: str) -> None:
        """Add to what names have used on a UTC day (`2026-11-30`), in USD; less than nothing gives back."""

    async def day_costs(self, day: str) -> Mapping[str, float]:
        """What each name has used on this day, reservations that nobody settled included; older days are forgotten."""

    async def reach_ceiling(self, name: str, day: str, told: Transition, now: float) -> bool:
        """Leave the event of a ceiling once a day; False where it was told before."""

    async def wake_parked(self, dependency: str, limit: int, now: float, why: str) -> int:
        """Queue up to `limit` tasks that are parked on a dependency, oldest first; gives how many."""

    async def parked_on(self) -> Mapping[str, int]:
        """How many tasks are parked on each dependency."""
