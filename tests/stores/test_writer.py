"""Group commit: many writers share a transaction, a poisoned one fails alone, nobody is answered before the commit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from harnessd.domain.failure import HarnessError, IllegalEvent, LeaseLost
from harnessd.domain.ports import Submitted
from harnessd.domain.record import AppendNode, PlanEffect, SaveCounters
from harnessd.domain.task import Counters, Lease
from harnessd.stores import SqlStore
from harnessd.stores.database import Missed, Statement
from harnessd.stores.writer import BATCH_MAX
from tests.stores.scenes import NOW, draft, effect, lease_of, opened, running, submitted, user


class Gate:
    """A crash point that counts batches, and can hold the writer at one of them."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.threads: set[int] = set()
        self.hold_at = ""
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, name: str) -> None:
        self.passed.append(name)
        if name.startswith("J27"):
            self.threads.add(threading.get_ident())
        if name == self.hold_at:
            self.hold_at = ""
            self.reached.set()
            assert self.go_on.wait(20)

    @property
    def batches(self) -> int:
        return self.passed.count("J27-after")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def store(tmp_path: Path, gate: Gate) -> AsyncIterator[SqlStore]:
    async with opened(tmp_path / "harnessd.db", crashpoint=gate) as one:
        yield one
        gate.go_on.set()


async def test_200_writers_share_a_few_syncs(store: SqlStore, gate: Gate) -> None:  # J27
    await asyncio.gather(*(submitted(store, f"Task {n}") for n in range(200)))
    tasks = await store.claim("a1", 200, NOW, 20)
    assert len(tasks) == 200
    before = gate.batches

    async def turns(lease: Lease) -> None:
        for n in range(1, 11):
            await store.record(lease, [AppendNode(user(f"n{n}", f"n{n - 1}" if n > 1 else None))], NOW)

    await asyncio.gather(*(turns(lease_of(task)) for task in tasks))
    assert 10 <= gate.batches - before <= 40  # 2,000 units
    assert len(gate.threads) == 1
    for task in tasks[::20]:
        assert [node.id for node in await store.nodes(task.id)] == [f"n{n}" for n in range(1, 11)]
        assert await store.verify(task.id) is None


async def test_a_poisoned_member_fails_alone(store: SqlStore, gate: Gate) -> None:  # J27
    leases = [(await running(store))[1] for _ in range(9)]
    await asyncio.gather(*(store.record(lease, [PlanEffect(effect("e1"))], NOW) for lease in leases))
    before = gate.batches
    bad = Lease(leases[0].task, "a1", 99, 0.0)
    answers = await asyncio.gather(
        store.record(leases[0], [AppendNode(user("n1", None)), AppendNode(user("n2", "n1"))], NOW),
        store.record(bad, [AppendNode(user("n3", "n2"))], NOW),
        store.record(leases[1], [AppendNode(user("n1", None)), AppendNode(user("n2", "nowhere"))], NOW),
        store.record(leases[2], [AppendNode(user("n1", None)), PlanEffect(effect("e1"))], NOW),
        store.record(leases[3], [AppendNode(user("n1", None, at=float("nan")))], NOW),
        *(store.record(lease, [AppendNode(user("n1", None))], NOW) for lease in leases[4:]),
        return_exceptions=True,
    )
    assert gate.batches == before + 1
    assert [type(answer) for answer in answers[:4]] == [type(None), LeaseLost, IllegalEvent, IllegalEvent]
    assert isinstance(answers[4], HarnessError)
    assert answers[5:] == [None] * 5
    lengths = [len(await store.nodes(lease.task)) for lease in leases]
    assert lengths == [2, 0, 0, 0, 1, 1, 1, 1, 1]
    for lease in leases:
        assert await store.verify(lease.task) is None


async def test_nobody_is_answered_before_the_commit(store: SqlStore, gate: Gate, tmp_path: Path) -> None:  # I1, J27
    gate.hold_at = "J27-before"
    answer = asyncio.create_task(store.submit(draft(), NOW))
    assert await asyncio.to_thread(gate.reached.wait, 20)
    await asyncio.sleep(0.02)
    assert not answer.done()
    assert sum((await store.counts()).values()) == 0  # readers are not held up, and see nothing of it
    gate.go_on.set()
    assert isinstance(await answer, Submitted)
    assert sum((await store.counts()).values()) == 1


async def test_a_caller_that_is_cancelled_cuts_no_transaction(store: SqlStore, gate: Gate) -> None:
    gate.hold_at = "J27-before"
    gone = asyncio.create_task(store.submit(draft(key="gone"), NOW))
    assert await asyncio.to_thread(gate.reached.wait, 20)
    waiting = asyncio.create_task(store.submit(draft(key="waits"), NOW))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    gate.go_on.set()
    assert isinstance(await waiting, Submitted)
    again = await store.submit(draft(key="gone"), NOW)
    assert isinstance(again, Submitted)
    assert not again.fresh  # it was under way: the client that comes back finds its task


async def test_a_batch_has_an_upper_bound(store: SqlStore, gate: Gate) -> None:
    _, lease = await running(store)
    before = gate.batches
    units = [store.record(lease, [SaveCounters(Counters(turns=n))], NOW) for n in range(2 * BATCH_MAX + 1)]
    await asyncio.gather(*units)
    assert 3 <= gate.batches - before <= 4
    assert (await store.history(lease.task)).task.counters.turns == 2 * BATCH_MAX  # in the order they were handed in


async def test_what_waits_at_close_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path / "harnessd.db") as store:
        answers = [asyncio.create_task(store.submit(draft(), NOW)) for _ in range(50)]
        await asyncio.sleep(0)
    assert all(isinstance(answer, Submitted) for answer in await asyncio.gather(*answers))
    with pytest.raises(HarnessError, match="not open"):
        await store.submit(draft(), NOW)
    async with opened(tmp_path / "harnessd.db") as store:
        assert (await store.counts())["queued"] == 50


async def test_a_follower_ends_with_the_store(tmp_path: Path) -> None:
    async with opened(tmp_path / "harnessd.db") as store:
        follower = store.subscribe()
        await submitted(store)
    assert [number async for number in follower] == [1]


async def test_a_unit_stops_where_it_is_told_to(store: SqlStore) -> None:
    stop = Statement("task_by_id", {"task": "zzzzzz"}, or_stop=True)
    assert await store._write((stop, Statement("counts", {}))) == [[]]
    with pytest.raises(Missed) as caught:
        await store._write((Statement("counts", {}), Statement("task_by_id", {"task": "zzzzzz"}, must_touch=1)))
    assert caught.value.statement == "task_by_id"


async def test_readers_cannot_write(store: SqlStore) -> None:
    with pytest.raises(HarnessError, match=r"readonly|read-only"):
        await store._database.fetch((Statement("create_meta", {"store": "x"}),))


async def test_the_file_is_written_as_promised(store: SqlStore, tmp_path: Path) -> None:
    writer = store._database._writer  # type: ignore[attr-defined]
    pragmas = {
        name: await writer.hop(lambda connection, name=name: connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("journal_mode", "synchronous")
    }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}
    names = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert names == dict.fromkeys(
        ["harnessd.db", "harnessd.db-wal", "harnessd.db-shm", "harnessd.db.lock", "harnessd.db.acked"], 0o600
    )


async def test_the_log_is_folded_in_and_stays_bounded(tmp_path: Path) -> None:  # e06
    async with opened(tmp_path / "harnessd.db") as store:
        _, lease = await running(store)
        parent = None
        for n in range(300):
            node = user(f"n{n}", parent, "x" * 40_000)
            await store.record(lease, [AppendNode(node)], NOW)
            parent = node.id
        assert (tmp_path / "harnessd.db-wal").stat().st_size < 8 << 20  # of 12 MB written
    assert {path.name for path in tmp_path.iterdir()} == {"harnessd.db", "harnessd.db.lock", "harnessd.db.acked"}
    with closing(sqlite3.connect(tmp_path / "harnessd.db")) as connection:
        assert connection.execute("SELECT count(*) FROM nodes").fetchone() == (300,)


async def test_what_changes_nothing_costs_no_sync(store: SqlStore, gate: Gate) -> None:
    await submitted(store, key="k")
    before = gate.batches
    assert await store.claim("a1", 5, NOW - 1, 20) != ()
    assert gate.batches == before + 1
    assert await store.claim("a1", 5, NOW, 20) == ()
    again = await store.submit(draft("Do it", key="k"), NOW)
    assert isinstance(again, Submitted)
    assert await store.heartbeat([Lease("zzzzzz", "a1", 1, 0.0)], NOW, 20) == frozenset()
    assert gate.batches == before + 1


async def test_more_claims_than_fit_into_one_unit(store: SqlStore) -> None:
    await asyncio.gather(*(submitted(store) for _ in range(50)))
    assert len(await store.claim("a1", 40, NOW, 20)) == 40
    assert len(await store.claim("a1", 40, NOW, 20)) == 10
