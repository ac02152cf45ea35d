"""Outbox: incidents, and the alerts that wait until somebody took them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from harnessd.domain.durable.breaker_store import Transition
from harnessd.domain.durable.outbox import Incident, OutboxEntry, Told
from harnessd.domain.record import StoredEvent
from harnessd.stores.database import Row, Statement
from harnessd.stores.kernel import Kernel, event
from harnessd.stores.rows import encode, event_from, plain


class Outbox(Kernel):
    """`OutboxStore` of the domain."""

    async def tell_cursor(self) -> int:
        """See the port."""
        row = await self._row("tell_cursor", {})
        return int(row[0]) if row is not None else 0

    async def events_to_tell(self, after: int, types: Collection[str], limit: int) -> Sequence[StoredEvent]:
        """See the port."""
        params = {"after": after, "types": json.dumps(sorted(types)), "limit": limit}
        return [event_from(row) for row in await self._rows("events_to_tell", params)]

    async def incidents(self) -> Sequence[Incident]:
        """See the port."""
        return [_incident(row) for row in await self._rows("incidents", {})]

    async def tell(self, told: Told, now: float) -> None:
        """See the port."""
        unit = [Statement("move_tell_cursor", {"cursor": told.cursor}, must_touch=1)]
        unit += [Statement("end_incident", {"key": plain(key)}) for key in told.ended]
        unit += [_save(incident) for incident in told.changed]
        unit += [
            Statement(
                "post_alert",
                {
                    "key": plain(str(one.alert["key"])),
                    "channel": one.channel,
                    "alert": encode(dict(one.alert)),
                    "now": now,
                },
            )
            for one in told.alerts
        ]
        await self._write(tuple(unit))

    async def outbox(self, limit: int = 1000) -> Sequence[OutboxEntry]:
        """See the port."""
        return [
            OutboxEntry(id_, channel, json.loads(alert), at, tries, next_at, said)
            for id_, channel, alert, at, tries, next_at, said in await self._rows("outbox", {"limit": limit})
        ]

    async def delivered(self, id_: int) -> None:
        """See the port."""
        await self._write((Statement("unpost_alert", {"id": id_}),))

    async def undelivered(
        self, id_: int, next_at: float | None, said: str, now: float, told: Transition | None = None
    ) -> None:
        """See the port."""
        if next_at is None:
            change = Statement("unpost_alert", {"id": id_})
        else:
            change = Statement("postpone_alert", {"id": id_, "next_at": next_at, "said": plain(said)})
        seen = () if told is None else (event(told.type, now, None, told.data, None, told.revision),)
        await self._write((change, *seen))


def _save(incident: Incident) -> Statement:
    return Statement(
        "save_incident",
        {
            "key": plain(incident.key),
            "event": incident.event,
            "since": incident.since,
            "about": encode(dict(incident.about)),
            "count": incident.count,
            "told_count": incident.told_count,
            "told": encode(dict(incident.told)),
            "holders": encode(list(incident.holders)),
            "next_at": incident.next_at,
        },
    )


def _incident(row: Row) -> Incident:
    key, event_, since, about, count, told_count, told, holders, next_at = row
    return Incident(
        key, event_, since, json.loads(about), count, told_count, json.loads(told), tuple(json.loads(holders)), next_at
    )
