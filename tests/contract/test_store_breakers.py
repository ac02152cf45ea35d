"""The contract of every store: what traffic control keeps over restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harnessd.domain.durable.breaker_store import StoredBreaker, Transition
from harnessd.domain.record import ChangeTask
from harnessd.domain.task import Task, TaskState, Verb
from harnessd.stores import SqlStore
from tests.stores.scenes import NOW, PLACES, folder, opened, submitted

DAY = "2027-01-15"


@pytest.fixture(params=PLACES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    with folder(request.param, tmp_path) as place:
        async with opened(place / "harnessd.db") as one:
            yield one


async def parked(store: SqlStore, dependency: str | None) -> str:
    """A task that was parked on a dependency for an hour."""
    await submitted(store)
    (task,) = await store.claim("a1", 1, NOW, 20)
    assert task.lease is not None
    await store.record(task.lease, (ChangeTask(Verb.PARK, until=NOW + 3600, dependency=dependency),), NOW)
    return task.id


async def state_of(store: SqlStore, task: str) -> TaskState:
    found = await store.find(task)
    assert isinstance(found, Task)
    return found.state


async def test_a_breaker_comes_back_as_it_was_kept(tmp_path: Path) -> None:  # R3.5
    path = tmp_path / "harnessd.db"
    async with opened(path) as store:
        assert await store.breakers() == []
        await store.save_breakers([StoredBreaker("model/b", {"phase": "open", "window": [[1, 2, 3]]}, NOW)], NOW)
        await store.save_breakers([StoredBreaker("model/a", {"phase": "closed"}, NOW)], NOW)
        await store.save_breakers([StoredBreaker("model/b", {"phase": "half_open"}, NOW + 1)], NOW)
    async with opened(path) as store:
        assert await store.breakers() == [
            StoredBreaker("model/a", {"phase": "closed"}, NOW),
            StoredBreaker("model/b", {"phase": "half_open"}, NOW + 1),
        ]


async def test_a_transition_and_its_event_are_one_unit(store: SqlStore) -> None:  # R3.5
    transition = Transition("breaker_opened", {"dependency": "model/a", "why": "10 failures in a row"}, 7)
    await store.save_breakers([StoredBreaker("model/a", {}, NOW)], NOW, [transition])
    (event,) = await store.events()
    assert (event.type, event.data, event.revision, event.task) == ("breaker_opened", transition.data, 7, None)


async def test_costs_add_up_by_day_and_name(store: SqlStore) -> None:  # R3.9, A3
    await store.charge({"agent/crawler": 0.5, "model/a": 0.5}, DAY)
    await store.charge({"agent/crawler": -0.25}, DAY)
    assert await store.day_costs(DAY) == {"agent/crawler": 0.25, "model/a": 0.5}
    assert await store.day_costs("2027-01-16") == {}
    assert await store.day_costs(DAY) == {}  # the past is forgotten


async def test_a_ceiling_is_told_once_a_day(store: SqlStore) -> None:  # A3
    told = Transition("ceiling_reached", {"dependency": "agent/crawler"}, 3)
    assert await store.reach_ceiling("agent/crawler", DAY, told, NOW)
    assert not await store.reach_ceiling("agent/crawler", DAY, told, NOW)
    await store.charge({"agent/crawler": 1.0}, DAY)
    assert not await store.reach_ceiling("agent/crawler", DAY, told, NOW)
    assert await store.reach_ceiling("agent/crawler", "2027-01-16", told, NOW)
    assert [event.type for event in await store.events()] == ["ceiling_reached", "ceiling_reached"]


async def test_those_parked_on_a_dependency_are_woken_a_few_at_a_time_oldest_first(store: SqlStore) -> None:  # R3.2a
    first = await parked(store, "model/a")
    second = await parked(store, "model/a")
    other = await parked(store, "model/b")
    alone = await parked(store, None)
    assert await store.parked_on() == {"model/a": 2, "model/b": 1}
    assert await store.wake_parked("model/a", 1, NOW, "a probe") == 1
    assert [await state_of(store, task) for task in (first, second)] == [TaskState.QUEUED, TaskState.PARKED]
    assert [event.data for event in await store.events(task=first) if event.type == "woken"] == [{"why": "a probe"}]
    assert await store.wake_parked("model/a", 9, NOW, "it is well again") == 1
    assert await store.wake_parked("model/a", 9, NOW, "it is well again") == 0
    assert [await state_of(store, task) for task in (other, alone)] == [TaskState.PARKED, TaskState.PARKED]
    assert [task.id for task in await store.claim("a1", 9, NOW, 20)] == [first, second]


async def test_a_task_that_is_parked_again_waits_for_something_else(store: SqlStore) -> None:
    task = await parked(store, "model/a")
    await store.wake_parked("model/a", 1, NOW, "a probe")
    (again,) = await store.claim("a1", 1, NOW, 20)
    assert again.lease is not None
    await store.record(again.lease, (ChangeTask(Verb.PARK, until=NOW + 60, dependency="model/b"),), NOW)
    assert await store.parked_on() == {"model/b": 1}
    assert await store.wake_parked("model/a", 9, NOW, "") == 0
    assert await state_of(store, task) is TaskState.PARKED


async def test_a_claim_leaves_out_whom_policy_lets_run_no_more(store: SqlStore) -> None:  # R3.15, A19, A20
    nightly = await submitted(store, labels={"job": "nightly"})
    batch = await submitted(store, agent="crawler", labels={"batch": "7", "team": "web"})
    plain = await submitted(store, agent="crawler")
    full = {"label/job=nightly", "label/batch=7"}
    assert [task.id for task in await store.claim("a1", 9, NOW, 20, full)] == [plain.id]
    assert await store.claim("a1", 9, NOW, 20, {"label/job=nightly", "agent/crawler"}) == ()
    assert [task.id for task in await store.claim("a1", 9, NOW, 20, {"label/team=data"})] == [nightly.id, batch.id]
