"""Store figures: what the store can say of itself to whoever watches it; counts of the whole store, not of a daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """How it stands now. `oldest_due_at`: when the oldest queued task that could run was submitted (Unix epoch)."""

    due: int = 0
    oldest_due_at: float | None = None
    outbox: Mapping[str, int] = field(default_factory=dict)  # channel -> alerts that wait
    questions: Mapping[str, int] = field(default_factory=dict)  # kind -> open rows of the inbox


@dataclass(frozen=True, slots=True)
class EventCounts:
    """What happened behind a sequence number, up to `upto`. `ends`: stop reason (or `completed`) -> tasks."""

    upto: int
    types: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commits:
    """Transactions: how many took at most as long as each bound (seconds; one count more for the rest), and in sum.

    `units`: the units of work that they held.
    """

    bounds_s: tuple[float, ...]
    took: tuple[int, ...]
    took_s: float
    units: int


class FiguresStore(Protocol):
    """Reads for metrics and traces; nothing here writes."""

    async def newest_event(self) -> int:
        """The highest sequence number of an event or node."""

    async def figures(self, now: float) -> StoreFigures:
        """How the store stands."""

    async def event_counts(self, after: int) -> EventCounts:
        """Events and nodes above a sequence number, by their word."""

    async def latest(self, tasks: Sequence[str]) -> Mapping[str, float]:
        """When each of these tasks was last heard of: the time of its newest event (Unix epoch)."""

    async def trace_at(self, task: str, seq: int | None = None, node: str | None = None) -> str:
        """The trace id of the attempt to which an event or node belongs; of the newest one without either.

        Empty where no worker had the task yet.
        """

    def commits(self) -> Commits:
        """The transactions of this process until now."""
