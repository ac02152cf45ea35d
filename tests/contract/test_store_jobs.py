"""The contract of every store: background jobs, the words of their end, the daemon's starts, and overtaken moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from harnessd.domain.jobs import WAITED_FOR, KeptJob
from harnessd.domain.record import ChangeTask
from harnessd.domain.task import Task, TaskState, Verb
from harnessd.stores import SqlStore
from tests.stores.scenes import NOW, PLACES, a_task, folder, opened, running

WAIT = ChangeTask(Verb.PARK, until=NOW + 100, why="waits for job e2", dependency=WAITED_FOR)


@pytest.fixture(params=PLACES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    with folder(request.param, tmp_path) as place:
        async with opened(place / "harnessd.db") as one:
            yield one


def job_of(task: Task, id_: str = "e2") -> KeptJob:
    return KeptJob(task.id, id_, "make all", "slow", 4711, 99, "b00t", NOW, "/state/e2.out", 7200.0)


async def _types(store: SqlStore, task: Task) -> list[str]:
    return [event.type for event in await store.events(task=task.id)]


async def test_a_job_is_kept_and_its_end_is_a_notice_once(store: SqlStore) -> None:
    # R3.12
    task, _ = await running(store)
    job = job_of(task)
    await store.begin_job(job)
    assert await store.open_jobs() == [job]
    ended = replace(job, code=0, why="")
    assert await store.end_job(ended, "Job e2 ended with exit code 0.", NOW + 5)
    assert not await store.end_job(ended, "again", NOW + 6)
    assert await store.open_jobs() == []
    assert await store.find_job(task.id, "e2") == replace(ended, ended_at=NOW + 5)
    (message,) = (await store.history(task.id)).messages
    assert (message.kind, message.text) == ("notice", "Job e2 ended with exit code 0.")
    assert [word for word in await _types(store, task) if word.startswith("job_")] == ["job_started", "job_ended"]


async def test_a_task_that_waits_for_its_job_is_woken_by_its_end(store: SqlStore) -> None:
    # R3.12
    task, lease = await running(store)
    await store.begin_job(job_of(task))
    await store.record(lease, [WAIT], NOW)
    assert a_task(await store.find(task.id)).state is TaskState.PARKED
    await store.end_job(replace(job_of(task), code=1), "Job e2 ended with exit code 1.", NOW + 1)
    assert a_task(await store.find(task.id)).state is TaskState.QUEUED
    assert "woken" in await _types(store, task)


async def test_a_job_that_ended_just_before_the_wait_keeps_nobody_waiting(store: SqlStore) -> None:
    # R3.12
    task, lease = await running(store)
    await store.begin_job(job_of(task))
    await store.end_job(replace(job_of(task), code=0), "Job e2 ended with exit code 0.", NOW)
    await store.record(lease, [WAIT], NOW + 1)
    assert a_task(await store.find(task.id)).state is TaskState.QUEUED
    assert "parked" not in await _types(store, task)


async def test_a_persons_word_wakes_who_waits_for_a_job(store: SqlStore) -> None:
    task, lease = await running(store)
    await store.record(lease, [WAIT], NOW)
    await store.send(task.id, "never mind the build", NOW, "ann")
    assert a_task(await store.find(task.id)).state is TaskState.QUEUED


async def test_a_persons_word_does_not_wake_who_waits_for_a_service(store: SqlStore) -> None:
    task, lease = await running(store)
    await store.record(lease, [replace(WAIT, dependency="model/primary")], NOW)
    await store.send(task.id, "hurry", NOW, "ann")
    assert a_task(await store.find(task.id)).state is TaskState.PARKED


async def test_the_end_of_a_job_says_nothing_to_an_ended_task(store: SqlStore) -> None:
    task, lease = await running(store)
    await store.begin_job(job_of(task))
    await store.record(lease, [ChangeTask(Verb.COMPLETE)], NOW)
    assert await store.end_job(replace(job_of(task), code=137), "gone", NOW)
    assert (await store.history(task.id)).messages == ()


async def test_a_pause_that_was_taken_back_does_not_pause(store: SqlStore) -> None:
    """The worker's own move may be on its way while a person takes the wish back."""
    task, lease = await running(store)
    await store.apply(task.id, Verb.PAUSE, NOW, "ann")
    await store.apply(task.id, Verb.RESUME, NOW, "ann")
    await store.record(lease, [ChangeTask(Verb.PAUSE)], NOW)
    found = a_task(await store.find(task.id))
    assert (found.state, found.pause_asked) == (TaskState.QUEUED, False)
    assert "paused" not in await _types(store, task)


async def test_a_pause_asked_again_after_it_was_taken_back_pauses(store: SqlStore) -> None:
    task, lease = await running(store)
    for verb in (Verb.PAUSE, Verb.RESUME, Verb.PAUSE):
        await store.apply(task.id, verb, NOW, "ann")
    await store.record(lease, [ChangeTask(Verb.PAUSE)], NOW)
    assert a_task(await store.find(task.id)).state is TaskState.PAUSED


async def test_unclean_starts_are_counted_within_their_time(tmp_path: Path) -> None:
    # R6.1a
    path = tmp_path / "harnessd.db"
    counted = []
    for at, planned in ((0, True), (10, False), (20, False), (30, False), (40, True), (50, False), (900, False)):
        async with opened(path) as store:
            counted.append(await store.begin_start(NOW + at, 300.0))
            if planned:
                await store.end_start(NOW + at + 5)
    # The second follows a planned end, the sixth too; the last comes after everything is forgotten but its own.
    assert counted == [0, 0, 1, 2, 3, 3, 1]


async def test_only_what_a_crash_interrupted_is_held_until_resume(store: SqlStore) -> None:
    # R6.1a
    task, _ = await running(store)
    await store.release_all(NOW)
    fresh, lease = await running(store)
    assert fresh.id == task.id  # taken up again, and cut again
    await store.release_all(NOW)
    assert await store.hold_interrupted(NOW, "three unclean starts") == 1
    held = a_task(await store.find(task.id))
    assert (held.state, held.why, held.waits_for) == (TaskState.PAUSED, "three unclean starts", "resume")
    assert await store.held() == 1
    assert lease.epoch == 2
    assert a_task(await store.apply(task.id, Verb.RESUME, NOW, "ann")).state is TaskState.QUEUED
    assert await store.held() == 0
    assert await store.hold_interrupted(NOW, "again") == 0
