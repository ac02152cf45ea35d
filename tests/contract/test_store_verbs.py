"""The contract of every store: what persons do to tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.effect import EffectState
from harnessd.domain.ports import Refused, TaskFilter
from harnessd.domain.record import (
    AppendNode,
    AskPerson,
    ChangeTask,
    PersonMessage,
    PlanEffect,
    Record,
    SettleEffect,
    TakeMessage,
)
from harnessd.domain.task import TASK_TRANSITIONS, Lease, StopReason, Task, TaskState, Verb
from harnessd.stores import SqlStore
from tests.stores.scenes import (
    NOW,
    PLACES,
    a_task,
    assistant,
    claimed,
    effect,
    folder,
    lease_of,
    opened,
    refused,
    result,
    running,
    submitted,
    user,
)


@pytest.fixture(params=PLACES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    with folder(request.param, tmp_path) as place:
        async with opened(place / "harnessd.db") as one:
            yield one


async def a_queued(store: SqlStore) -> Task:
    return await submitted(store)


def moved(*records: Record) -> Callable[[SqlStore], Coroutine[Any, Any, Task]]:
    async def scene(store: SqlStore) -> Task:
        task, lease = await running(store)
        if records:
            await store.record(lease, records, NOW)
        return a_task(await store.find(task.id))

    return scene


IN_STATE = {
    TaskState.QUEUED: a_queued,
    TaskState.RUNNING: moved(),
    TaskState.PARKED: moved(ChangeTask(Verb.PARK, until=NOW + 60, why="quota")),
    TaskState.WAITING: moved(ChangeTask(Verb.ASK, waits_for="answer")),
    TaskState.PAUSED: moved(ChangeTask(Verb.PAUSE)),
    TaskState.ROLLING_BACK: moved(ChangeTask(Verb.ROLL_BACK)),
    TaskState.STOPPED: moved(ChangeTask(Verb.STOP, StopReason.ERROR, "auth", "The key is dead.", (("x", "y"),))),
    TaskState.COMPLETED: moved(ChangeTask(Verb.COMPLETE)),
}
ALREADY_SO = {(TaskState.QUEUED, Verb.RESUME), (TaskState.PAUSED, Verb.PAUSE), (TaskState.STOPPED, Verb.CANCEL)}
REMEMBERED = {(TaskState.RUNNING, Verb.PAUSE), (TaskState.RUNNING, Verb.CANCEL)}


@pytest.mark.parametrize("verb", [Verb.RESUME, Verb.RETRY, Verb.CANCEL, Verb.PAUSE])
@pytest.mark.parametrize("state", list(TaskState))
async def test_a_verb_does_what_the_table_says(store: SqlStore, state: TaskState, verb: Verb) -> None:
    task = await IN_STATE[state](store)
    assert task.state is state
    answer = await store.apply(task.id, verb, NOW + 1, "ann")
    if (state, verb) in REMEMBERED:
        now = a_task(answer)
        assert (now.state, now.pause_asked, now.cancel_asked) == (state, verb is Verb.PAUSE, verb is Verb.CANCEL)
    elif (state, verb) in ALREADY_SO:
        assert answer == task
    elif verb in TASK_TRANSITIONS[state]:
        assert a_task(answer).state is TASK_TRANSITIONS[state][verb]
    else:
        no = refused(answer)
        assert no.code == "refused"
        assert task.id in no.message
        assert "harnessctl" in no.hint
        assert await store.find(task.id) == task


@pytest.mark.parametrize("verb", [Verb.CLAIM, Verb.STOP, Verb.COMPLETE, Verb.WAKE, Verb.ROLL_BACK])
async def test_a_person_has_no_other_verbs(store: SqlStore, verb: Verb) -> None:
    task = await submitted(store)
    assert refused(await store.apply(task.id, verb, NOW, "ann")).code == "refused"


async def test_a_verb_takes_a_prefix_and_refuses_strangers(store: SqlStore) -> None:
    task = await submitted(store)
    assert a_task(await store.apply(task.id[:4], Verb.PAUSE, NOW, "ann")).state is TaskState.PAUSED
    assert refused(await store.apply("zzzz", Verb.PAUSE, NOW, "ann")).code == "not_found"


async def test_cancelling_a_task_nobody_holds_ends_it_at_once(store: SqlStore) -> None:  # R3.8
    task = await submitted(store)
    ended = a_task(await store.apply(task.id, Verb.CANCEL, NOW + 5, "ann"))
    assert (ended.state, ended.reason, ended.ended_at) == (TaskState.STOPPED, StopReason.ABORTED, NOW + 5)
    assert ended.sentence == "Cancelled by ann."
    assert ended.next_steps == (("harnessctl", "resume", task.id),)
    last = (await store.events(task=task.id))[-1]
    assert (last.type, last.data["by"], last.data["reason"]) == ("task_stopped", "ann", "aborted")


async def test_what_was_asked_of_a_running_task_survives_its_worker(store: SqlStore) -> None:
    task, _ = await running(store)
    await store.apply(task.id, Verb.CANCEL, NOW, "ann")
    await store.apply(task.id, Verb.CANCEL, NOW, "ann")
    await store.release_all(NOW)
    again = await claimed(store)
    assert again.cancel_asked
    assert [event.type for event in await store.events(task=task.id)].count("cancel_asked") == 1


async def test_resume_takes_back_the_wish_to_pause(store: SqlStore) -> None:
    task, _ = await running(store)
    await store.apply(task.id, Verb.PAUSE, NOW, "ann")
    now = a_task(await store.apply(task.id, Verb.RESUME, NOW, "ann"))
    assert (now.state, now.pause_asked) == (TaskState.RUNNING, False)


async def test_resume_starts_afresh_where_it_stands(store: SqlStore) -> None:
    task, lease = await running(store)
    await store.release_all(NOW)
    lease = lease_of(await claimed(store))
    await store.apply(task.id, Verb.PAUSE, NOW, "ann")
    await store.record(
        lease, [AppendNode(user("n1", None)), ChangeTask(Verb.STOP, StopReason.ERROR, "auth", "No.")], NOW
    )
    now = a_task(await store.apply(task.id, Verb.RESUME, NOW + 1, "ann", say="The key is new."))
    assert (now.state, now.pointer) == (TaskState.QUEUED, "n1")
    assert (now.reason, now.sentence, now.error_class, now.ended_at, now.until) == (None, "", None, None, None)
    assert (now.pause_asked, now.cancel_asked, now.recoveries, now.next_steps) == (False, False, 0, ())
    assert [message.text for message in (await store.history(task.id)).messages] == ["The key is new."]


# --- retry ------------------------------------------------------------------------------------------------------------


async def stopped_after(store: SqlStore, *units: list[Record]) -> tuple[str, Lease]:
    task, lease = await running(store)
    for unit in units:
        await store.record(lease, unit, NOW)
    await store.record(lease, [ChangeTask(Verb.STOP, StopReason.ERROR)], NOW)
    return task.id, lease


async def test_retry_goes_back_before_the_turn_that_failed_in_its_tools(store: SqlStore) -> None:
    task, _ = await stopped_after(
        store,
        [AppendNode(user("n1", None)), PlanEffect(effect("e1", "model", "n1"))],
        [SettleEffect("e1", EffectState.DONE), AppendNode(assistant("n2", "n1", "", ("c1",)))],
        [AppendNode(result("n3", "n2", "c1"))],
    )
    now = a_task(await store.apply(task, Verb.RETRY, NOW, "ann"))
    assert (now.state, now.pointer) == (TaskState.QUEUED, "n1")
    last = (await store.events(task=task))[-1]
    assert (last.type, last.data["from"], last.data["to"]) == ("retried", "n3", "n1")
    lease = lease_of(await claimed(store))
    await store.record(lease, [AppendNode(assistant("n4", "n1"))], NOW)
    assert [node.id for node in (await store.history(task)).path] == ["n1", "n4"]
    assert len(await store.nodes(task)) == 4
    assert await store.verify(task) is None


async def test_retry_keeps_a_sound_turn_before_a_failed_model_call(store: SqlStore) -> None:
    task, _ = await stopped_after(
        store,
        [AppendNode(user("n1", None)), PlanEffect(effect("e1", "model", "n1"))],
        [SettleEffect("e1", EffectState.DONE), AppendNode(assistant("n2", "n1", "", ("c1",)))],
        [AppendNode(result("n3", "n2", "c1")), PlanEffect(effect("e2", "model", "n3"))],
        [SettleEffect("e2", EffectState.FAILED)],
    )
    assert a_task(await store.apply(task, Verb.RETRY, NOW, "ann")).pointer == "n3"


@pytest.mark.parametrize(
    ("path", "before"),
    [
        ([], None),
        ([user("n1", None)], "n1"),
        ([user("n1", None), assistant("n2", "n1")], "n1"),
        ([user("n1", None), assistant("n2", "n1"), user("n3", "n2")], "n1"),
    ],
)
async def test_retry_without_a_recorded_call_goes_before_the_last_reply(
    store: SqlStore, path: list[Any], before: str | None
) -> None:
    task, _ = await stopped_after(store, [AppendNode(node) for node in path])
    assert a_task(await store.apply(task, Verb.RETRY, NOW, "ann")).pointer == before


# --- set, send, answer ------------------------------------------------------------------------------------------------


async def test_set_is_merged_and_recorded_with_who_and_when(store: SqlStore) -> None:
    task = await submitted(store, budget={"turns": 5.0}, labels={"team": "web", "old": "1"})
    other = await submitted(store)
    changes = {"budget": {"tool_calls": 150}, "labels": {"old": None, "new": "2"}, "priority": -1, "model": "second"}
    now = a_task(await store.change(task.id[:6], NOW + 3, "ann", changes))
    assert now.draft.budget == {"turns": 5.0, "tool_calls": 150}
    assert now.draft.labels == {"team": "web", "new": "2"}
    assert (now.draft.priority, now.draft.model) == (-1, "second")
    assert [one.id for one in await store.list(TaskFilter(labels={"new": "2"}))] == [task.id]
    assert [one.id for one in await store.claim("a1", 2, NOW, 20)] == [other.id, task.id]
    changed = next(event for event in await store.events(task=task.id) if event.type == "changed")
    assert (changed.at, changed.data["by"], changed.data["changes"]["model"]) == (NOW + 3, "ann", "second")
    assert refused(await store.change(task.id, NOW, "ann", {"prompt": "Other"})).code == "refused"


async def test_sets_at_once_lose_nothing(store: SqlStore) -> None:
    task = await submitted(store)
    await asyncio.gather(*(store.change(task.id, NOW, "ann", {"labels": {f"l{n}": "1"}}) for n in range(10)))
    assert len(a_task(await store.find(task.id)).draft.labels) == 10


async def test_a_message_waits_until_it_is_a_node(store: SqlStore) -> None:
    task, lease = await running(store)
    first = await store.send(task.id, "Use v2", NOW, "ann")
    assert isinstance(first, PersonMessage)
    await store.send(task.id, "Please", NOW, "ann")
    assert [message.text for message in (await store.history(task.id)).messages] == ["Use v2", "Please"]
    await store.record(lease, [AppendNode(user("n1", None)), TakeMessage(first.id, "n1")], NOW)
    assert [message.text for message in (await store.history(task.id)).messages] == ["Please"]
    await store.record(lease, [ChangeTask(Verb.COMPLETE)], NOW)
    assert refused(await store.send(task.id, "Too late", NOW, "ann")).code == "refused"


def ask(id_: str, kind: Any = "question", call: str | None = "c1", node: str = "n2") -> AskPerson:
    return AskPerson(id_, kind, node, call, "Which one?", ("go-on", "stop"), NOW + 60)


async def waiting(store: SqlStore, *questions: AskPerson) -> str:
    task, lease = await running(store)
    nodes = [AppendNode(user("n1", None)), AppendNode(assistant("n2", "n1", "", ("c1", "c2")))]
    await store.record(lease, [*nodes, *questions, ChangeTask(Verb.ASK, waits_for="answer", until=NOW + 60)], NOW)
    return task.id


async def test_an_answer_queues_the_task_when_nothing_else_is_open(store: SqlStore) -> None:
    task = await waiting(store, ask("a1"), ask("a2", call="c2"))
    assert [question.id for question in await store.questions()] == ["a1", "a2"]
    assert refused(await store.answer("a1", "maybe", "", NOW, "ann")).code == "refused"
    assert refused(await store.answer("a9", "stop", "", NOW, "ann")).code == "not_found"
    assert a_task(await store.answer("a1", "go-on", "use src/", NOW + 1, "ann")).state is TaskState.WAITING
    assert a_task(await store.answer(f"{task}/a2", "go-on", "", NOW + 1, "ann")).state is TaskState.QUEUED
    assert await store.questions(task) == []
    answered = (await store.history(task)).questions
    assert [(one.id, one.choice, one.say, one.answered_by) for one in answered] == [
        ("a1", "go-on", "use src/", "ann"),
        ("a2", "go-on", "", "ann"),
    ]
    assert (await store.history(task)).task.until is None


async def test_a_question_whose_time_is_out_keeps_nobody_waiting(store: SqlStore) -> None:
    late = replace(ask("a1"), until=NOW + 1)
    await waiting(store, late, ask("a2", call="c2"))
    assert a_task(await store.answer("a2", "go-on", "", NOW + 2, "ann")).state is TaskState.QUEUED


async def test_an_answer_that_came_before_the_wait_leaves_nobody_waiting(store: SqlStore) -> None:
    """A task that is taken up has read its questions, and goes back to its wait while a person answers."""
    task = await waiting(store, ask("a1"), ask("a2", call="c2"))
    await store.apply(task, Verb.RESUME, NOW, "ann")
    (again,) = await store.claim("d1", 1, NOW, 20.0)
    assert again.lease is not None
    wait = ChangeTask(Verb.ASK, waits_for="answer", until=NOW + 60)
    await store.answer("a1", "go-on", "", NOW, "ann")
    await store.record(again.lease, [wait], NOW)
    assert a_task(await store.find(task)).state is TaskState.WAITING  # for the other one
    assert a_task(await store.answer("a2", "go-on", "", NOW, "ann")).state is TaskState.QUEUED
    (again,) = await store.claim("d1", 1, NOW, 20.0)
    assert again.lease is not None
    await store.record(again.lease, [wait], NOW)
    assert a_task(await store.find(task)).state is TaskState.QUEUED  # nothing is open: somebody goes on


async def test_the_first_answer_counts(store: SqlStore) -> None:
    await waiting(store, ask("a1"))
    answers = await asyncio.gather(
        *(store.answer("a1", choice, "", NOW, choice) for choice in ("go-on", "stop", "go-on", "stop"))
    )
    accepted = [answer for answer in answers if not isinstance(answer, Refused)]
    assert {answer.code for answer in answers if isinstance(answer, Refused)} == {"conflict"}
    assert len(accepted) == 2  # the first, and its repeat


async def test_a_question_id_that_two_tasks_use_needs_its_task(store: SqlStore) -> None:
    one, two = await waiting(store, ask("a1")), await waiting(store, ask("a1"))
    no = refused(await store.answer("a1", "stop", "", NOW, "ann"))
    assert no.code == "ambiguous"
    assert f"{one}/a1" in no.message
    assert a_task(await store.answer(f"{two}/a1", "stop", "", NOW, "ann")).id == two
    assert a_task(await store.answer("a1", "stop", "", NOW, "ann")).id == one


async def test_nobody_is_asked_for_a_task_that_ended(store: SqlStore) -> None:
    task = await waiting(store, ask("a1"))
    await store.apply(task, Verb.CANCEL, NOW, "ann")
    assert await store.questions() == []
    assert refused(await store.answer("a1", "stop", "", NOW, "ann")).code == "refused"


async def test_a_verb_races_with_the_worker_and_one_of_them_wins(store: SqlStore) -> None:
    for _ in range(10):
        task, lease = await running(store)
        done, cancel = await asyncio.gather(
            store.record(lease, [ChangeTask(Verb.COMPLETE)], NOW),
            store.apply(task.id, Verb.CANCEL, NOW, "ann"),
            return_exceptions=True,
        )
        assert done is None
        now = a_task(await store.find(task.id))
        assert now.state is TaskState.COMPLETED
        assert isinstance(cancel, Refused | Task)
