"""Courier: delivers what waits in the outbox, at least once; each channel has its own line and its own breaker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.durable.breaker_store import Transition
from harnessd.domain.durable.outbox import Delivery, Notifier, OutboxEntry, OutboxStore
from harnessd.domain.events import EventType
from harnessd.domain.failure import StorageFull, StoreLocked
from harnessd.domain.ports import Clock, Refused
from harnessd.runtime import telemetry

_log = telemetry.log("notify")
LONGEST_S = 900.0  # between two tries
WISH_MAX_S = 3600.0  # how long a target's own wish to wait is heeded
OPENS_AFTER = 3  # failures in a row; then one alert is the probe and the others wait behind it
GIVE_UP_S = 7 * 86400.0
_STORE_AGAIN_S = 30.0
_LONGEST_SLEEP_S = 3600.0  # the machine's clock may be set meanwhile


@dataclass(slots=True)
class Line:
    """One channel: its failures in a row, how long its breaker is open, the task that delivers now."""

    failures: int = 0
    open_until: float = 0.0
    work: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Courier:
    """`notifier` makes a channel ready with the secrets of this moment, or says why it cannot be used."""

    store: OutboxStore
    notifier: Callable[[str], Notifier | Refused]
    clock: Clock
    redact: Callable[[Any], Any] = lambda value: value
    revision: Callable[[], int] = lambda: 0
    first_retry_s: float = 2.0
    _lines: dict[str, Line] = field(default_factory=dict)
    _bell: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Something waits, or a channel may have become another."""
        self._bell.set()

    def down(self, channel: str) -> bool:
        """Whether its last try failed."""
        line = self._lines.get(channel)
        return line is not None and line.failures > 0

    def rules_changed(self) -> None:
        """Channels may be others now: each gets its chance at once."""
        for line in self._lines.values():
            line.open_until = 0.0
        self.wake()

    async def try_once(self, channel: str, alert: dict[str, Any]) -> Delivery | Refused:
        """One delivery outside the outbox, for `notify test`."""
        notifier = self.notifier(channel)
        return notifier if isinstance(notifier, Refused) else self._clean(await notifier.deliver(alert))

    async def run(self) -> None:
        """Until cancelled; what is under way is ended with it and tried again after a restart."""
        try:
            while True:
                self._bell.clear()
                wait_s = await self._round()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._bell.wait()
        finally:
            works = [line.work for line in self._lines.values() if line.work is not None]
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _round(self) -> float | None:
        waiting: dict[str, list[OutboxEntry]] = {}
        for entry in await self.store.outbox():
            waiting.setdefault(entry.channel, []).append(entry)
        now, times = self.clock.now(), []
        for line in self._lines.values():
            if line.work is not None and line.work.done():
                work, line.work = line.work, None
                try:
                    work.result()
                except (StorageFull, StoreLocked) as fault:
                    _log.warning("notify_waits", why=fault.sentence)
                    line.open_until = now + _STORE_AGAIN_S
        for channel, entries in waiting.items():
            line = self._lines.setdefault(channel, Line())
            if line.work is not None:
                continue
            due = [entry for entry in entries if entry.next_at <= now]
            if due and line.open_until <= now:
                line.work = asyncio.create_task(self._deliver(channel, line, due), name=f"notify {channel}")
                line.work.add_done_callback(lambda _: self._bell.set())
            else:
                times.append(max(line.open_until, min(entry.next_at for entry in entries)))
        return min(_LONGEST_SLEEP_S, max(0.0, min(times) - now)) if times else None

    async def _deliver(self, channel: str, line: Line, due: Sequence[OutboxEntry]) -> None:
        for entry in due:
            delivery, final = await self._try(channel, entry)
            if delivery.done:
                line.failures, line.open_until = 0, 0.0
                await self.store.delivered(entry.id)
                continue
            await self._failed(channel, line, entry, delivery, final=final)
            if line.failures >= OPENS_AFTER:
                line.open_until = self.clock.now() + self._backoff_s(line.failures - OPENS_AFTER + 1)
                return

    async def _try(self, channel: str, entry: OutboxEntry) -> tuple[Delivery, bool]:
        """One try, and whether there is no use in another."""
        notifier = self.notifier(channel)
        if isinstance(notifier, Refused):
            return Delivery(done=False, said=notifier.message), notifier.code == "not_found"
        return self._clean(await notifier.deliver(entry.alert)), False

    def _clean(self, delivery: Delivery) -> Delivery:
        return Delivery(delivery.done, self.redact(delivery.said), delivery.retry_after_s)

    async def _failed(self, channel: str, line: Line, entry: OutboxEntry, delivery: Delivery, *, final: bool) -> None:
        now = self.clock.now()
        wait_s = max(self._backoff_s(entry.tries + 1), min(delivery.retry_after_s or 0.0, WISH_MAX_S))
        given_up = final or now + wait_s - entry.at > GIVE_UP_S
        first = line.failures == 0 and entry.tries == 0
        line.failures += not final
        sentence = f"Channel {channel} could not be told: {delivery.said}."
        sentence += " This alert was given up." if given_up else " It is tried again."
        _log.warning("notify_failed", channel=channel, said=delivery.said, tries=entry.tries + 1, given_up=given_up)
        # One event for each time a channel goes down, none about a message that tells of such an event: no circles.
        told = None
        if (first or given_up) and entry.alert.get("event") != EventType.NOTIFY_FAILED:
            data = {
                "dependency": f"notify/{channel}",
                "channel": channel,
                "sentence": sentence,
                "key": entry.alert["key"],
            }
            told = Transition(EventType.NOTIFY_FAILED.value, data, self.revision())
        next_at = None if given_up else now + wait_s
        await self.store.undelivered(entry.id, next_at, delivery.said, now, told)

    def _backoff_s(self, tries: int) -> float:
        return float(min(LONGEST_S, self.first_retry_s * 2 ** min(tries - 1, 20)))
