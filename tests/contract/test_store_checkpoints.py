"""The contract of every store: a checkpoint counts with its row, rows say what is needed, restores have a journal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harnessd.domain.failure import LeaseLost
from harnessd.domain.record import ChangeTask, KeepCheckpoint
from harnessd.domain.session import Checkpoint
from harnessd.domain.task import Lease, StopReason, Task, Verb
from harnessd.domain.workspace import KeptRestore
from harnessd.stores import SqlStore
from tests.stores.scenes import NOW, PLACES, folder, opened, running


@pytest.fixture(params=PLACES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    with folder(request.param, tmp_path) as place:
        async with opened(place / "harnessd.db") as one:
            yield one


def checkpoint(ref: str = "c1", manifest: str = "aa" * 32) -> Checkpoint:
    return Checkpoint("n1", ref, manifest, "/srv/w", NOW, "before", 3, 1)


def intent(task: Task, token: str = "t0k3n") -> KeptRestore:
    return KeptRestore(task.id, token, "/srv/w", "aa" * 32, "bb" * 32, {"to": "n1"}, NOW)


async def ended(store: SqlStore, lease: Lease) -> None:
    await store.record(lease, [ChangeTask(Verb.STOP, reason=StopReason.ERROR)], NOW + 1)


# R5.3: tied to nodes; J15: the row is the commit point.
async def test_a_checkpoint_counts_with_its_row_and_is_told(store: SqlStore) -> None:
    task, lease = await running(store)
    await store.record(lease, [KeepCheckpoint(checkpoint())], NOW)
    await store.add_checkpoint(task.id, checkpoint("c2", "cc" * 32))
    assert await store.checkpoints(task.id) == [checkpoint(), checkpoint("c2", "cc" * 32)]
    assert await store.live_manifests() == {"/srv/w": {"aa" * 32, "cc" * 32}}
    (told,) = [event for event in await store.events(task=task.id) if event.type == "checkpoint"]
    assert told.node == "n1"
    assert told.data == {"checkpoint": "c1", "why": "before", "changed": 3, "uncovered": 1}


async def test_who_lost_the_lease_keeps_no_checkpoint(store: SqlStore) -> None:
    task, lease = await running(store)
    with pytest.raises(LeaseLost):
        await store.record(Lease(lease.task, lease.owner, lease.epoch + 1, 0.0), [KeepCheckpoint(checkpoint())], NOW)
    assert await store.checkpoints(task.id) == []


# R5.3a: garbage collection by reference from rows.
async def test_an_ended_task_gives_its_checkpoints_back_and_a_running_one_keeps_them(store: SqlStore) -> None:
    task, lease = await running(store)
    await store.record(lease, [KeepCheckpoint(checkpoint())], NOW)
    assert await store.expire_checkpoints(NOW + 100) == 0
    assert await store.drop_oldest_checkpoints() is None
    await ended(store, lease)
    assert await store.expire_checkpoints(NOW) == 0
    assert await store.expire_checkpoints(NOW + 100) == 1
    assert await store.live_manifests() == {}
    await store.add_checkpoint(task.id, checkpoint("c2"))
    assert await store.drop_oldest_checkpoints() == task.id
    assert await store.checkpoints(task.id) == []


# J16: a restore that was cut off is found again, and nothing that it needs is given back meanwhile.
async def test_a_restore_is_open_until_it_is_ended_and_keeps_what_it_needs(store: SqlStore) -> None:
    task, lease = await running(store)
    await store.record(lease, [KeepCheckpoint(checkpoint())], NOW)
    await ended(store, lease)
    await store.begin_restore(intent(task))
    assert await store.open_restores() == [intent(task)]
    assert await store.expire_checkpoints(NOW + 100) == 0
    assert await store.drop_oldest_checkpoints() is None
    assert await store.live_manifests() == {"/srv/w": {"aa" * 32, "bb" * 32}}
    await store.end_restore("t0k3n", "done", {"written": ["a"]}, NOW + 2)
    assert await store.open_restores() == []
    (kept,) = await store.restores(task.id)
    assert (kept.state, kept.report, kept.ended_at) == ("done", {"written": ["a"]}, NOW + 2)
