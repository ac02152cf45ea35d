"""The contract of every store: what people are to be told, and what still waits to be delivered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harnessd.domain.durable.breaker_store import Transition
from harnessd.domain.durable.outbox import Incident, Outgoing, Told
from harnessd.stores import SqlStore
from harnessd.stores.database import Missed
from tests.stores.scenes import NOW, PLACES, folder, opened, submitted

TYPES = ("breaker_opened", "task_stopped")
OPEN = Incident(
    "breaker_opened|model/a|", "breaker_opened", NOW, {"dependency": "model/a"}, 3, 1, {"ops": NOW}, ("t1",), NOW + 60
)


def alert(key: str, channel: str = "ops") -> Outgoing:
    return Outgoing(channel, {"key": key, "title": "Title", "labels": {"team": "web"}})


@pytest.fixture(params=PLACES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    with folder(request.param, tmp_path) as place:
        async with opened(place / "harnessd.db") as one:
            yield one


async def test_only_the_wanted_events_above_the_cursor_are_given(store: SqlStore) -> None:
    await submitted(store)
    for type_ in ("breaker_opened", "daemon_started", "breaker_opened"):
        await store.log(type_, {"dependency": "model/a"}, NOW)
    first, second = await store.events_to_tell(0, TYPES, 10)
    assert (first.type, second.type) == ("breaker_opened", "breaker_opened")
    assert await store.events_to_tell(first.seq, TYPES, 10) == [second]
    assert await store.events_to_tell(0, TYPES, 1) == [first]
    assert await store.events_to_tell(0, (), 10) == []


async def test_cursor_incident_and_alert_are_one_unit(tmp_path: Path) -> None:  # R3.4, J20
    path = tmp_path / "harnessd.db"
    async with opened(path) as store:
        assert (await store.tell_cursor(), await store.incidents(), await store.outbox()) == (0, [], [])
        await store.tell(Told(7, (OPEN,), (), (alert("k1"), alert("k1", "pager"))), NOW)
    async with opened(path) as store:
        assert await store.tell_cursor() == 7
        assert await store.incidents() == [OPEN]
        ops, pager = await store.outbox()
        assert (ops.channel, pager.channel, ops.alert) == ("ops", "pager", alert("k1").alert)
        assert (ops.tries, ops.at, ops.next_at, ops.said) == (0, NOW, NOW, "")
        with pytest.raises(Missed):  # a cursor never goes back, and nothing of such a unit is kept
            await store.tell(Told(6, (), (OPEN.key,), (alert("k2"),)), NOW)
        assert (len(await store.outbox()), len(await store.incidents())) == (2, 1)


async def test_an_alert_that_waits_already_is_not_put_in_twice(store: SqlStore) -> None:  # J20
    await store.tell(Told(1, (), (), (alert("k1"),)), NOW)
    await store.tell(Told(1, (), (), (alert("k1"), alert("k2"))), NOW + 1)
    assert [(entry.alert["key"], entry.at) for entry in await store.outbox()] == [("k1", NOW), ("k2", NOW + 1)]


async def test_an_incident_ends_and_begins_anew(store: SqlStore) -> None:
    await store.tell(Told(1, (OPEN,)), NOW)
    await store.tell(Told(2, (), (OPEN.key, "unknown")), NOW)
    assert await store.incidents() == []
    again = Incident(OPEN.key, OPEN.event, NOW + 9, {"n": 2})
    await store.tell(Told(3, (again,), (OPEN.key,)), NOW)
    assert await store.incidents() == [again]


async def test_a_failed_try_waits_and_is_an_event_in_one_unit(store: SqlStore) -> None:  # F39
    await store.tell(Told(1, (), (), (alert("k1"), alert("k2"))), NOW)
    first, second = await store.outbox()
    told = Transition("notify_failed", {"dependency": "notify/ops"}, 4)
    await store.undelivered(first.id, NOW + 8, "status 500", NOW, told)
    await store.undelivered(first.id, NOW + 16, "status 502", NOW + 8)
    waiting = (await store.outbox())[0]
    assert (waiting.tries, waiting.next_at, waiting.said, waiting.at) == (2, NOW + 16, "status 502", NOW)
    (event,) = await store.events()
    assert (event.type, event.data, event.revision, event.task) == ("notify_failed", told.data, 4, None)
    await store.undelivered(second.id, None, "given up", NOW)
    await store.delivered(first.id)
    await store.delivered(first.id)  # told once more after a crash: no harm
    assert await store.outbox() == []
