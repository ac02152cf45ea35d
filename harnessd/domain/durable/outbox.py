"""Outbox: what people are to be told: incidents that last, alerts that wait for delivery, and who delivers them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harnessd.domain.durable.breaker_store import Transition
from harnessd.domain.record import StoredEvent

Alert = Mapping[str, Any]
"""One message as JSON.

`key` (equal in every try of the same message), `event`, `state` (new, still, ended), `title`, `sentence`, `next`,
`task`, `agent`, `dependency`, `class`, `reason`, `revision`, `at`, `count`, `lasting` (seconds), `labels`, `data`.
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What came of one try. `said` is a sentence for people, without secrets; `retry_after_s` is the target's wish."""

    done: bool
    said: str
    retry_after_s: float | None = None


class Notifier(Protocol):
    """One way to tell people. Never raises for what the target does; a try takes 30 s at most."""

    async def deliver(self, alert: Alert) -> Delivery:
        """Try once. The same alert may come again: whoever receives it knows it by its `key`.

        Cancelling the awaiting task leaves no process and no connection behind.
        """


@dataclass(frozen=True, slots=True)
class Incident:
    """The same event of the same dependency or task, and class: one message, however often it happens.

    Attributes:
        key: event, dependency or task, class; its own identity.
        since: when it began, in seconds since the Unix epoch; `next_at`: when it is looked at again, None = never.
        count: how often it happened; `told_count`: what the last message said of that.
        about: the newest event with the facts of its task, as JSON.
        told: channel -> when it was last told.
        holders: the tasks or questions that keep it open; empty where none do.
    """

    key: str
    event: str
    since: float
    about: Mapping[str, Any]
    count: int = 1
    told_count: int = 0
    told: Mapping[str, float] = field(default_factory=dict)
    holders: tuple[str, ...] = ()
    next_at: float | None = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An alert on its way to one channel."""

    channel: str
    alert: Alert


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """An alert that waits: how often it was tried, when it is due, and what came of the last try."""

    id: int
    channel: str
    alert: Alert
    at: float
    tries: int
    next_at: float
    said: str


@dataclass(frozen=True, slots=True)
class Told:
    """One unit: how far events were read, the incidents that changed or ended, the alerts of that."""

    cursor: int
    changed: Sequence[Incident] = ()
    ended: Collection[str] = ()  # keys
    alerts: Sequence[Outgoing] = ()


class OutboxStore(Protocol):
    """Where it is kept what people are to be told, so that a crash forgets and repeats as little as can be."""

    async def tell_cursor(self) -> int:
        """The sequence number up to which events were read."""

    async def events_to_tell(self, after: int, types: Collection[str], limit: int) -> Sequence[StoredEvent]:
        """Events of these types above a sequence number, in order; nodes are left out."""

    async def incidents(self) -> Sequence[Incident]:
        """Every incident that is open or still remembered, oldest first."""

    async def tell(self, told: Told, now: float) -> None:
        """Keep all of it in one unit. An alert whose key and channel wait already is not put in a second time."""

    async def outbox(self, limit: int = 1000) -> Sequence[OutboxEntry]:
        """Alerts that wait, in the order in which they were put in."""

    async def delivered(self, id_: int) -> None:
        """It arrived: forgotten."""

    async def undelivered(
        self, id_: int, next_at: float | None, said: str, now: float, told: Transition | None = None
    ) -> None:
        """A try failed: due again at `next_at`, given up where that is None; `told` is the event of it."""
