"""The contract of every store: the queue's half. One suite, each store a parameter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from harnessd.domain.failure import LeaseLost
from harnessd.domain.ports import Refused, Store, Submitted, TaskFilter
from harnessd.domain.record import ChangeTask, SaveCounters
from harnessd.domain.task import Counters, StopReason, TaskDraft, TaskState, Verb
from harnessd.stores import SqlStore
from tests.stores.scenes import NOW, PLACES, claimed, draft, folder, lease_of, opened, refused, running, submitted


@pytest.fixture(params=PLACES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    with folder(request.param, tmp_path) as place:
        async with opened(place / "harnessd.db") as one:
            yield one


def test_it_fulfils_the_port(store: SqlStore) -> None:
    port: Store = store
    assert port.epoch == 1


# --- submit -----------------------------------------------------------------------------------------------------------


async def test_a_submitted_task_is_there_as_it_was_asked_for(store: SqlStore) -> None:  # R6.1
    wanted = draft("Port it", "/w/a", priority=3, labels={"team": "web"}, budget={"turns": 5.0}, key="k1")
    answer = await store.submit(wanted, NOW)
    assert isinstance(answer, Submitted)
    assert answer.fresh
    found = await store.find(answer.task.id)
    assert found == answer.task
    assert answer.task.draft == wanted
    assert (answer.task.state, answer.task.submitted_at) == (TaskState.QUEUED, NOW)


async def test_the_same_key_and_wish_is_the_same_task(store: SqlStore) -> None:  # J2
    first = await store.submit(draft(key="k"), NOW)
    again = await store.submit(draft(key="k"), NOW + 9)
    assert isinstance(first, Submitted)
    assert isinstance(again, Submitted)
    assert again == Submitted(first.task, fresh=False)
    assert sum((await store.counts()).values()) == 1


async def test_the_same_key_for_another_wish_is_a_conflict(store: SqlStore) -> None:
    task = await submitted(store, key="k")
    no = refused(await store.submit(draft("Something else", key="k"), NOW))
    assert no.code == "conflict"
    assert task.id in no.message


async def test_a_key_means_its_task_also_after_its_budget_was_raised(store: SqlStore) -> None:
    task = await submitted(store, key="k")
    await store.change(task.id, NOW, "ann", {"budget": {"turns": 9}, "priority": 7})
    again = await store.submit(draft(key="k"), NOW)
    assert isinstance(again, Submitted)
    assert (again.fresh, again.task.draft.priority) == (False, 7)


async def test_many_submits_at_once_with_one_key_make_one_task(store: SqlStore) -> None:
    answers = await asyncio.gather(*(store.submit(draft(key="k"), NOW) for _ in range(50)))
    made = [answer for answer in answers if isinstance(answer, Submitted)]
    assert len(made) == 50
    assert [answer.fresh for answer in made].count(True) == 1
    assert len({answer.task.id for answer in made}) == 1


async def test_ids_are_short_and_sort_as_they_were_submitted(store: SqlStore) -> None:
    ids = [(await submitted(store, now=NOW + n // 3)).id for n in range(40)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 40
    assert {len(id_) for id_ in ids} == {6}
    later = await submitted(store, now=NOW + 86_400)
    assert later.id > ids[-1]
    assert later.id[:2] == ids[0][:2]  # time stands in front
    assert later.id[:4] != ids[0][:4]


async def test_a_clock_set_back_takes_no_id_twice(store: SqlStore) -> None:
    first = await submitted(store)
    assert (await submitted(store, now=NOW - 3600)).id > first.id


async def test_a_task_may_be_named_by_a_prefix(store: SqlStore) -> None:
    one = await submitted(store)
    two = await submitted(store, now=NOW + 3_000_000)
    assert await store.find(one.id[:3]) == one
    assert await store.find(f" {two.id.upper()} ") == two
    unclear = refused(await store.find(one.id[:1]))
    assert unclear.code == "ambiguous"
    assert one.id in unclear.message
    assert two.id in unclear.message
    for nothing in ("", "zzzz", "%", "\0"):
        assert refused(await store.find(nothing)).code == "not_found"


# --- claim and lease --------------------------------------------------------------------------------------------------


async def test_tasks_are_claimed_by_priority_then_age(store: SqlStore) -> None:
    low = await submitted(store, now=NOW)
    high = await submitted(store, priority=5, now=NOW + 1)
    late = await submitted(store, now=NOW + 2)
    taken = await store.claim("a1", 2, NOW + 3, 20)
    assert [task.id for task in taken] == [high.id, low.id]
    assert [task.id for task in await store.claim("a1", 9, NOW + 3, 20)] == [late.id]
    assert await store.claim("a1", 9, NOW + 3, 20) == ()


async def test_a_claim_is_a_lease_with_a_higher_epoch(store: SqlStore) -> None:
    await submitted(store)
    first = lease_of(await claimed(store))
    assert (first.owner, first.epoch, first.expires_at) == ("a1", 1, NOW + 20)
    await store.record(first, [ChangeTask(Verb.HAND_BACK)], NOW)
    assert lease_of(await claimed(store)).epoch == 2


async def test_claims_at_once_never_share_a_task(store: SqlStore) -> None:  # I11
    tasks = [await submitted(store) for _ in range(60)]
    taken = await asyncio.gather(*(store.claim("a1", 3, NOW, 20) for _ in range(30)))
    ids = [task.id for batch in taken for task in batch]
    assert sorted(ids) == sorted(task.id for task in tasks)


async def test_a_task_waits_for_its_time(store: SqlStore) -> None:
    task = await submitted(store, not_before=NOW + 60)
    assert await store.claim("a1", 1, NOW + 59, 20) == ()
    assert await store.next_due(NOW) == NOW + 60
    assert [one.id for one in await store.claim("a1", 1, NOW + 60, 20)] == [task.id]


async def test_a_task_waits_for_those_before_it_to_be_completed(store: SqlStore) -> None:
    first = await submitted(store)
    second = await submitted(store, after=(first.id[:6],))
    assert await store.waits_for(second.id) == first.id
    running_first = await claimed(store)
    assert running_first.id == first.id
    assert await store.claim("a1", 1, NOW, 20) == ()
    await store.record(lease_of(running_first), [ChangeTask(Verb.STOP, StopReason.ERROR)], NOW)
    assert await store.claim("a1", 1, NOW, 20) == ()  # stopped is not completed
    await store.apply(first.id, Verb.RETRY, NOW, "ann")
    await store.record(lease_of(await claimed(store)), [ChangeTask(Verb.COMPLETE)], NOW)
    assert await store.waits_for(second.id) is None
    assert (await claimed(store)).id == second.id


async def test_nobody_waits_for_a_task_that_is_not_there(store: SqlStore) -> None:
    assert refused(await store.submit(draft(after=("zzzz",)), NOW)).code == "not_found"


@pytest.mark.parametrize(
    ("held", "wanted", "free"),
    [
        ("/w/a", "/w/a", False),
        ("/w/a", "/w/a/", False),
        ("/w/a", "/w/a/b", False),
        ("/w/a/b", "/w/a", False),
        ("/", "/w", False),
        ("/w/a", "/w/x/../a", False),
        ("/w/a", "/w/ab", True),
        ("/w/a", "/w/b", True),
        ("/w/a_", "/w/aX", True),
        ("/w/%", "/w/abc", True),
        ("/w/a", "", True),
        ("", "", True),
    ],
)
async def test_one_running_task_holds_a_workspace(store: SqlStore, held: str, wanted: str, free: bool) -> None:
    holder = await submitted(store, workspace=held, priority=1)
    other = await submitted(store, workspace=wanted)
    taken = [task.id for task in await store.claim("a1", 2, NOW, 20)]
    assert taken == ([holder.id, other.id] if free else [holder.id])
    assert await store.waits_for(other.id) == (None if free else holder.id)


@pytest.mark.parametrize("verb", [Verb.PARK, Verb.ASK, Verb.PAUSE, Verb.HAND_BACK])
async def test_a_workspace_is_held_until_the_task_ends(store: SqlStore, verb: Verb) -> None:
    holder, lease = await running(store, workspace="/w/a", priority=1)
    other = await submitted(store, workspace="/w/a/b")
    await store.record(lease, [ChangeTask(verb, until=NOW + 999)], NOW)
    if verb is Verb.HAND_BACK:
        assert (await claimed(store)).id == holder.id
    assert await store.claim("a1", 1, NOW, 20) == ()
    await store.apply(holder.id, Verb.CANCEL, NOW, "ann")
    if verb is Verb.HAND_BACK:
        again = await store.find(holder.id)
        assert not isinstance(again, Refused)
        await store.record(lease_of(again), [ChangeTask(Verb.CANCEL)], NOW)
    assert (await claimed(store)).id == other.id


async def test_a_heartbeat_prolongs_what_is_ours_and_names_it(store: SqlStore) -> None:
    task, lease = await running(store)
    assert await store.heartbeat([lease], NOW + 15, 20) == {task.id}
    assert await store.sweep(NOW + 25) == 0
    assert await store.sweep(NOW + 35) == 1
    assert await store.heartbeat([lease], NOW + 36, 20) == frozenset()
    task, lease = await running(store)
    old = replace(lease, epoch=lease.epoch - 1)
    assert await store.heartbeat([old], NOW + 37, 20) == frozenset(), "an earlier lease of the same worker"
    assert await store.heartbeat([], NOW, 20) == frozenset()


async def test_a_lease_that_ran_out_is_taken_over_and_the_old_holder_fenced(store: SqlStore) -> None:  # R6.2, F16
    task, old = await running(store)
    assert await store.sweep(NOW + 21) == 1
    new = await claimed(store, NOW + 22)
    assert (new.id, lease_of(new).epoch, new.recoveries) == (task.id, 2, 1)
    for stale in ([SaveCounters(Counters(turns=9))], [ChangeTask(Verb.COMPLETE)]):
        with pytest.raises(LeaseLost):
            await store.record(old, stale, NOW + 23)
    await store.record(lease_of(new), [SaveCounters(Counters(turns=1))], NOW + 23)
    assert (await store.history(task.id)).task.counters.turns == 1


async def test_parked_and_waiting_tasks_are_queued_when_their_time_comes(store: SqlStore) -> None:
    parked, lease = await running(store)
    await store.record(lease, [ChangeTask(Verb.PARK, until=NOW + 60, why="model/primary is down")], NOW)
    waiting, lease = await running(store)
    await store.record(lease, [ChangeTask(Verb.ASK, until=NOW + 90, waits_for="answer")], NOW)
    found = await store.find(parked.id)
    assert not isinstance(found, Refused)
    assert (found.state, found.until, found.why) == (TaskState.PARKED, NOW + 60, "model/primary is down")
    assert await store.next_due(NOW) == NOW + 60
    assert await store.sweep(NOW + 59) == 0
    assert await store.sweep(NOW + 60) == 1
    assert await store.next_due(NOW + 60) == NOW + 90
    assert await store.sweep(NOW + 100) == 1
    assert [task.id for task in await store.claim("a1", 9, NOW + 100, 20)] == [parked.id, waiting.id]
    assert await store.next_due(NOW + 100) is None
    assert {event.type for event in await store.events()} >= {"parked", "woken", "needs_human", "unanswered"}


async def test_at_start_every_lease_ends_and_only_those_cost_a_recovery(store: SqlStore) -> None:  # R6.1a
    cut, _ = await running(store, priority=2)
    handed, lease = await running(store, priority=1)
    await store.record(lease, [ChangeTask(Verb.HAND_BACK)], NOW)
    assert await store.release_all(NOW + 1) == 1
    tasks = {task.id: task for task in await store.list(TaskFilter())}
    assert (tasks[cut.id].state, tasks[cut.id].recoveries, tasks[cut.id].lease) == (TaskState.QUEUED, 1, None)
    assert (tasks[handed.id].state, tasks[handed.id].recoveries) == (TaskState.QUEUED, 0)
    assert await store.release_all(NOW + 2) == 0


# --- wake-up, lists ---------------------------------------------------------------------------------------------------


async def test_a_commit_that_makes_a_task_claimable_rings(store: SqlStore) -> None:
    await asyncio.wait_for(store.wait_queued(), 1)  # once at open: there may be work
    waiting = asyncio.create_task(store.wait_queued())
    await asyncio.sleep(0)
    assert not waiting.done()
    await submitted(store)
    await asyncio.wait_for(waiting, 1)
    task = await claimed(store)
    waiting = asyncio.create_task(store.wait_queued())
    await store.record(lease_of(task), [ChangeTask(Verb.COMPLETE)], NOW)
    await asyncio.wait_for(waiting, 1)


async def test_list_and_counts(store: SqlStore) -> None:
    web = await submitted(store, labels={"team": "web", "x": "1"}, now=NOW)
    data = await submitted(store, labels={"team": "data"}, agent="crawler", now=NOW + 10)
    ended, lease = await running(store, priority=9, now=NOW + 20)
    await store.record(lease, [ChangeTask(Verb.STOP, StopReason.BUDGET_EXHAUSTED, "budget_exhausted")], NOW + 30)

    async def ids(wanted: TaskFilter) -> list[str]:
        return [task.id for task in await store.list(wanted)]

    assert await ids(TaskFilter()) == [ended.id, data.id, web.id]
    assert await ids(TaskFilter(limit=2)) == [ended.id, data.id]
    assert await ids(TaskFilter(states=(TaskState.QUEUED,))) == [data.id, web.id]
    assert await ids(TaskFilter(labels={"team": "web"})) == [web.id]
    assert await ids(TaskFilter(labels={"team": "web", "x": "2"})) == []
    assert await ids(TaskFilter(agent="crawler")) == [data.id]
    assert await ids(TaskFilter(reasons=("budget_exhausted",))) == [ended.id]
    assert await ids(TaskFilter(error_class="budget_exhausted")) == [ended.id]
    assert await ids(TaskFilter(since=NOW + 5, until=NOW + 15)) == [data.id]
    assert await store.counts() == {state.value: 0 for state in TaskState} | {"queued": 2, "stopped": 1}


async def test_odd_text_is_stored_and_shown(store: SqlStore) -> None:  # e16, j11
    odd = TaskDraft("half \ud83c pair \ud83c\udf78 nul \0 end", "coder", "", key="k\0\ud800", labels={"a\0": "\udfff"})
    answer = await store.submit(odd, NOW)
    assert isinstance(answer, Submitted)
    assert answer.task.draft.prompt == "half � pair 🍸 nul \0 end"
    assert await store.find(answer.task.id) == answer.task
    again = await store.submit(odd, NOW)
    assert isinstance(again, Submitted)
    assert not again.fresh
