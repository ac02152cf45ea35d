"""What the store says of itself: what is due, what waits for people, what happened since, whose trace an event is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harnessd.domain.events import EventType
from harnessd.domain.ports import Store, Submitted
from harnessd.domain.record import AppendNode, AskPerson, ChangeTask
from harnessd.domain.session import Node, NodeKind
from harnessd.domain.task import Lease, StopReason, Task, TaskDraft, Verb
from harnessd.stores import open_store

NOW = 1_800_000_000.0


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = open_store(tmp_path / "harnessd.db")
    await store.open("a1")
    yield store
    await store.close()


async def submitted(store: Store, number: int = 1, **more: float) -> Task:
    done = await store.submit(TaskDraft("Do it.", "coder", f"/srv/{number}", **more), NOW + number)  # type: ignore[arg-type]
    assert isinstance(done, Submitted)
    return done.task


async def claimed(store: Store, at: float = NOW) -> tuple[Task, Lease]:
    (task,) = await store.claim("a1", 1, at, 20.0)
    assert task.lease is not None
    return task, task.lease


async def test_what_is_due_and_since_when(store: Store) -> None:
    await submitted(store, 1)
    await submitted(store, 2)
    await submitted(store, 3, not_before=NOW + 3600)
    found = await store.figures(NOW + 10)
    assert (found.due, found.oldest_due_at) == (2, NOW + 1)
    await store.claim("a1", 2, NOW + 10, 20.0)
    found = await store.figures(NOW + 10)
    assert (found.due, found.oldest_due_at, dict(found.outbox), dict(found.questions)) == (0, None, {}, {})


async def test_each_attempt_has_a_trace_and_each_event_the_one_of_its_attempt(store: Store) -> None:
    await submitted(store)
    task, first = await claimed(store)
    await store.record(first, (AppendNode(Node("n1", None, NodeKind.USER, {"blocks": []}, NOW)),), NOW)
    await store.record(first, (ChangeTask(Verb.HAND_BACK),), NOW + 1)
    _, second = await claimed(store, NOW + 2)
    await store.record(second, (AppendNode(Node("n2", "n1", NodeKind.USER, {"blocks": []}, NOW)),), NOW + 2)
    assert len(first.trace) == len(second.trace) == 32
    assert first.trace != second.trace
    assert int(first.trace, 16)
    assert await store.trace_at(task.id, node="n1") == first.trace
    assert await store.trace_at(task.id, node="n2") == second.trace
    assert await store.trace_at(task.id) == second.trace
    seqs = {event.type: event.seq for event in await store.events(0, task.id)}
    assert await store.trace_at(task.id, seqs[EventType.SUBMITTED]) == ""
    assert await store.trace_at(task.id, seqs[EventType.HANDED_BACK]) == first.trace


async def test_events_are_counted_by_their_word_and_ends_by_their_reason(store: Store) -> None:
    before = (await store.event_counts(0)).upto
    await submitted(store)
    _, lease = await claimed(store)
    await store.record(lease, (AppendNode(Node("n1", None, NodeKind.USER, {"blocks": []}, NOW)),), NOW)
    await store.record(lease, (ChangeTask(Verb.STOP, StopReason.BUDGET_EXHAUSTED),), NOW)
    counts = await store.event_counts(before)
    assert dict(counts.types) == {"submitted": 1, "started": 1, "user": 1, "task_stopped": 1}
    assert dict(counts.ends) == {"budget_exhausted": 1}
    assert await store.event_counts(counts.upto) == type(counts)(counts.upto)


async def test_open_questions_are_counted_by_kind(store: Store) -> None:
    await submitted(store)
    _, lease = await claimed(store)
    asked = AskPerson("a1", "outcome", "n0", None, "Was it paid?", ("done", "not-done"))
    await store.record(lease, (asked, ChangeTask(Verb.ASK, waits_for="answer")), NOW)
    assert dict((await store.figures(NOW)).questions) == {"outcome": 1}


async def test_transactions_are_timed(store: Store) -> None:
    before = store.commits()
    await submitted(store)
    after = store.commits()
    assert sum(after.took) == sum(before.took) + 1
    assert after.units == before.units + 1
    assert after.took_s > before.took_s
    assert len(after.took) == len(after.bounds_s) + 1
