"""The contract of every store: units of a task's worker, its session, its journal, its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harnessd.domain.decision import Decision, Pass, Retry, RuleRef
from harnessd.domain.effect import EffectState
from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError, IllegalEvent, LeaseLost
from harnessd.domain.record import (
    AppendNode,
    AskPerson,
    ChangeTask,
    FreezeSystem,
    MovePointer,
    PlanEffect,
    Record,
    RecordDecision,
    RecordEvent,
    SaveCounters,
    SettleEffect,
    TakeMessage,
)
from harnessd.domain.session import Node, NodeKind, assistant_message, blocks_of, path_to, result_payload
from harnessd.domain.task import Counters, Lease, StopReason, TaskState, Verb
from harnessd.stores import SqlStore
from tests.stores.scenes import NOW, PLACES, assistant, effect, folder, opened, refused, result, running, user

RULE = RuleRef("retry", "default", "throttled", "builtin retry.yaml", 17, 3)


@pytest.fixture(params=PLACES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    with folder(request.param, tmp_path) as place:
        async with opened(place / "harnessd.db") as one:
            yield one


async def everything(store: SqlStore, task: str) -> tuple[object, ...]:
    """All that is known of a task."""
    return (
        await store.history(task),
        await store.nodes(task),
        await store.decisions(task),
        await store.events(task=task),
        await store.verify(task),
    )


# --- one unit ---------------------------------------------------------------------------------------------------------


async def test_a_turn_is_read_back_as_it_was_recorded(store: SqlStore) -> None:  # R6.1
    task, lease = await running(store)
    counters = Counters(turns=1, tokens=812, cost_usd=0.25, nodes=3, warned=("turns:0.7",), calls_of={"bash": 2})
    first, second, third = user("n1", None), assistant("n2", "n1", "I look", ("c1",)), result("n3", "n2", "c1")
    await store.record(lease, [FreezeSystem("You are a coder."), AppendNode(first)], NOW)
    await store.record(lease, [PlanEffect(effect("e1", "model"))], NOW)
    await store.record(
        lease,
        [SettleEffect("e1", EffectState.DONE, {"tokens": 812}), AppendNode(second), SaveCounters(counters, "thinking")],
        NOW,
    )
    await store.record(lease, [PlanEffect(effect("e2", node="n2", key="4f", arguments={"command": "ls"}))], NOW)
    await store.record(lease, [SettleEffect("e2", EffectState.FAILED, {"exit": 1}), AppendNode(third)], NOW + 1)
    found = await store.history(task.id)
    assert found.path == (first, second, third)
    assert assistant_message(found.path[1]) == assistant_message(second)
    assert [(one.id, one.state, one.result) for one in found.effects] == [
        ("e1", EffectState.DONE, {"tokens": 812}),
        ("e2", EffectState.FAILED, {"exit": 1}),
    ]
    assert (found.effects[1].key, found.effects[1].arguments) == ("4f", {"command": "ls"})
    assert (found.task.counters, found.task.doing, found.task.pointer) == (counters, "thinking", "n3")
    assert found.task.system == "You are a coder."
    assert await store.effects(task.id) == list(found.effects)
    assert await store.verify(task.id) is None


async def test_the_system_prompt_is_frozen(store: SqlStore) -> None:  # R4.8
    task, lease = await running(store)
    await store.record(lease, [FreezeSystem("first")], NOW)
    await store.record(lease, [FreezeSystem("second")], NOW)
    assert (await store.history(task.id)).task.system == "first"


WRONG: dict[str, list[Record]] = {
    "a parent that is not the pointer": [AppendNode(user("n9", "n7"))],
    "a node that is there": [AppendNode(user("n1", "n1"))],
    "a pointer elsewhere": [MovePointer("n7", None)],
    "a pointer to nowhere": [MovePointer("n1", "n7")],
    "an outcome without an intent": [SettleEffect("e9", EffectState.DONE)],
    "an effect twice": [PlanEffect(effect("e1"))],
    "a message that is not there": [TakeMessage(9, "n1")],
    "a move the table refuses": [ChangeTask(Verb.ROLLED_BACK)],
    "an unknown word": [RecordEvent("weather")],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
async def test_a_unit_is_written_whole_or_not_at_all(store: SqlStore, wrong: list[Record]) -> None:
    task, lease = await running(store)
    await store.record(lease, [AppendNode(user("n1", None)), PlanEffect(effect("e1"))], NOW)
    before = await everything(store, task.id)
    good: list[Record] = [SaveCounters(Counters(turns=7)), RecordEvent("nudge"), PlanEffect(effect("e7"))]
    with pytest.raises(IllegalEvent):
        await store.record(lease, [*good, *wrong], NOW)
    assert await everything(store, task.id) == before
    await store.record(lease, good, NOW)  # nothing is left in the way
    assert (await store.history(task.id)).task.counters.turns == 7


async def test_an_outcome_is_settled_once(store: SqlStore) -> None:  # I3
    task, lease = await running(store)
    await store.record(lease, [AppendNode(user("n1", None)), PlanEffect(effect("e1"))], NOW)
    await store.record(lease, [SettleEffect("e1", EffectState.STARTED)], NOW)
    await store.record(lease, [SettleEffect("e1", EffectState.DONE, {"output": "all"})], NOW)
    for other in (EffectState.STARTED, EffectState.FAILED, EffectState.UNKNOWN, EffectState.DONE):
        with pytest.raises(IllegalEvent):
            await store.record(lease, [SettleEffect("e1", other)], NOW)
    (one,) = await store.effects(task.id)
    assert (one.state, one.result) == (EffectState.DONE, {"output": "all"})


async def test_what_nobody_knew_may_be_learnt_later_and_once(store: SqlStore) -> None:  # R5.3
    task, lease = await running(store)
    await store.record(lease, [AppendNode(user("n1", None)), PlanEffect(effect("e1"))], NOW)
    await store.record(lease, [SettleEffect("e1", EffectState.UNKNOWN, {"output": "so far"})], NOW)
    await store.record(lease, [SettleEffect("e1", EffectState.DONE, {"output": "all"})], NOW)
    with pytest.raises(IllegalEvent):
        await store.record(lease, [SettleEffect("e1", EffectState.FAILED)], NOW)
    (one,) = await store.effects(task.id)
    assert (one.state, one.result) == (EffectState.DONE, {"output": "all"})


@pytest.mark.parametrize(
    "other",
    [{"epoch": 2}, {"epoch": 0}, {"owner": "b2"}, {"task": "zzzzzz"}],
    ids=lambda facts: next(iter(facts)),
)
async def test_a_lease_that_is_not_the_rows_writes_nothing(store: SqlStore, other: dict[str, object]) -> None:  # F16
    task, lease = await running(store)
    before = await everything(store, task.id)
    facts: dict[str, object] = {"task": lease.task, "owner": lease.owner, "epoch": lease.epoch, "expires_at": 0.0}
    foreign = Lease(**{**facts, **other})  # type: ignore[arg-type]
    with pytest.raises(LeaseLost):
        await store.record(foreign, [AppendNode(user("n1", None))], NOW)
    assert await everything(store, task.id) == before


@pytest.mark.parametrize(
    ("change", "state", "reason"),
    [
        (ChangeTask(Verb.COMPLETE, sentence="It is done."), TaskState.COMPLETED, StopReason.COMPLETED),
        (ChangeTask(Verb.STOP, StopReason.LOOP_DETECTED, "loop_detected"), TaskState.STOPPED, StopReason.LOOP_DETECTED),
        (ChangeTask(Verb.CANCEL), TaskState.STOPPED, StopReason.ABORTED),
        (ChangeTask(Verb.PARK, until=NOW + 5, why="quota"), TaskState.PARKED, None),
        (ChangeTask(Verb.ASK, waits_for="approval"), TaskState.WAITING, None),
        (ChangeTask(Verb.PAUSE), TaskState.PAUSED, None),
        (ChangeTask(Verb.HAND_BACK), TaskState.QUEUED, None),
    ],
    ids=lambda value: value.verb.value if isinstance(value, ChangeTask) else "",
)
async def test_a_move_releases_the_lease(
    store: SqlStore, change: ChangeTask, state: TaskState, reason: StopReason | None
) -> None:
    task, lease = await running(store)
    await store.record(lease, [change], NOW + 1)
    now = (await store.history(task.id)).task
    assert (now.state, now.reason, now.lease) == (state, reason, None)
    assert (now.sentence, now.until, now.why, now.waits_for, now.error_class) == (
        change.sentence,
        change.until,
        change.why,
        change.waits_for,
        change.error_class,
    )
    assert now.ended_at == (NOW + 1 if state.ended else None)
    with pytest.raises(LeaseLost):
        await store.record(lease, [SaveCounters(Counters())], NOW + 2)


# --- the tree ---------------------------------------------------------------------------------------------------------


async def test_a_pointer_moved_back_makes_a_branch_and_keeps_the_old_one(store: SqlStore) -> None:  # R5.1, e07
    task, lease = await running(store)
    tree = [user("n1", None), assistant("n2", "n1"), user("n3", "n2", at=NOW + 99)]
    await store.record(lease, [AppendNode(node) for node in tree], NOW)
    await store.record(lease, [MovePointer("n3", "n1"), AppendNode(assistant("n4", "n1", at=NOW - 5))], NOW)
    found = await store.history(task.id)
    assert [node.id for node in found.path] == ["n1", "n4"]  # the pointer decides, never the time
    nodes = await store.nodes(task.id)
    assert [node.id for node in nodes] == ["n1", "n2", "n3", "n4"]
    assert path_to({node.id: node for node in nodes}, "n3") == tuple(tree)
    assert await store.verify(task.id) is None
    await store.record(lease, [MovePointer("n4", None)], NOW)
    assert (await store.history(task.id)).path == ()


async def test_a_node_keeps_the_wire_form_key_by_key(store: SqlStore) -> None:
    task, lease = await running(store)
    wire = {"zeta": 1, "alpha": [1.0, 2, None, "é", {"b": True, "a": "x\0y"}], "m": ""}
    payload = {"role": "assistant", "blocks": [{"type": "opaque", "protocol": "p", "wire": wire}], "wire": wire}
    await store.record(lease, [AppendNode(Node("n1", None, NodeKind.ASSISTANT, payload, NOW))], NOW)
    (node,) = await store.nodes(task.id)
    assert list(node.payload["wire"]) == ["zeta", "alpha", "m"]
    assert node.payload == payload
    assert repr(node.payload["wire"]["alpha"][0]) == "1.0"


async def test_half_a_surrogate_pair_in_arguments_and_results_is_shown_as_one_sign(store: SqlStore) -> None:  # j11
    task, lease = await running(store)
    text = "ok \ud83c done \ud83c\udf78 a\0b"
    node = Node("n1", None, NodeKind.TOOL_RESULT, result_payload("c\ud800", text, is_error=False), NOW)
    await store.record(
        lease,
        [AppendNode(node), PlanEffect(effect("e1", arguments={"text": text})), SaveCounters(Counters(), text)],
        NOW,
    )
    await store.record(lease, [SettleEffect("e1", EffectState.DONE, {"text": text})], NOW)
    await store.record(lease, [ChangeTask(Verb.STOP, sentence=text, why=text)], NOW)
    found = await store.history(task.id)
    assert found.effects[0].arguments == {"text": "ok � done 🍸 a\0b"}
    assert found.effects[0].result == {"text": "ok � done 🍸 a\0b"}
    assert getattr(blocks_of(found.path[0])[0], "text", None) == "ok � done 🍸 a\0b"
    assert found.task.sentence == found.task.why == found.task.doing == "ok � done 🍸 a␀b"


# --- decisions, events ------------------------------------------------------------------------------------------------


async def test_a_decision_is_kept_with_its_rule_and_evidence(store: SqlStore) -> None:  # R1.3
    task, lease = await running(store)
    decision = Decision(
        Retry(7.1, 2, 4), "rate_limited", RULE, {"status": 429}, ("fall back",), (Pass("line1", "not a tool"),)
    )
    await store.record(lease, [AppendNode(user("n1", None)), RecordDecision("n1", "c1", decision)], NOW, revision=3)
    (kept,) = await store.decisions(task.id)
    assert (kept.at, kept.task, kept.node, kept.call_id) == (NOW, task.id, "n1", "c1")
    assert kept.decision == {
        "do": "retry",
        "remedy": {"after_s": 7.1, "attempt": 2, "of": 4},
        "error_class": "rate_limited",
        "rule": {
            "kind": "retry",
            "name": "default",
            "rule": "throttled",
            "file": "builtin retry.yaml",
            "line": 17,
            "revision": 3,
        },
        "evidence": {"status": 429},
        "alternatives": ["fall back"],
        "tried": [{"line": "line1", "why": "not a tool"}],
    }
    seen = {event.type: event for event in await store.events(task=task.id)}
    assert seen["decision"].data["where"] == "builtin retry.yaml:17"
    assert (seen["retry_wait"].data["after_s"], seen["retry_wait"].revision) == (7.1, 3)


async def test_each_step_leaves_an_event(store: SqlStore) -> None:
    task, lease = await running(store)
    await store.record(lease, [AppendNode(user("n1", None, "Look")), PlanEffect(effect("e1", "model"))], NOW)
    reply = assistant("n2", "n1", "I look", ("c1",))
    await store.record(lease, [SettleEffect("e1", EffectState.DONE), AppendNode(reply)], NOW)
    await store.record(lease, [PlanEffect(effect("e2", node="n2"))], NOW)
    await store.record(
        lease, [SettleEffect("e2", EffectState.DONE), AppendNode(result("n3", "n2", "c1", "x" * 999))], NOW
    )
    await store.record(lease, [ChangeTask(Verb.COMPLETE, sentence="Done.")], NOW + 1)
    events = await store.events(task=task.id)
    assert [(event.type, event.node) for event in events] == [
        ("submitted", None),
        ("started", None),
        ("user", "n1"),
        ("model_call", "n1"),
        ("assistant", "n2"),
        ("tool_call", "n2"),
        ("tool_result", "n3"),
        ("task_completed", None),
    ]
    assert events[4].data == {"text": "I look", "calls": [{"id": "c1", "name": "bash"}]}
    assert len(events[6].data["text"]) == 200
    assert events[7].data == {"reason": "completed", "sentence": "Done."}
    assert {event.type for event in events} <= set(EventType)


async def test_an_event_by_name_replaces_the_automatic_one(store: SqlStore) -> None:
    task, lease = await running(store)
    stop: list[Record] = [ChangeTask(Verb.STOP), RecordEvent("task_stopped", {"mine": 1}, None)]
    await store.record(lease, stop, NOW)
    assert [event.data for event in await store.events(task=task.id) if event.type == "task_stopped"] == [{"mine": 1}]


async def test_a_question_speaks_for_the_move(store: SqlStore) -> None:
    task, lease = await running(store)
    ask = AskPerson("a1", "approval", "n1", "c1", "May it push?", ("allow", "deny"), NOW + 60, {"tool": "bash"})
    await store.record(lease, [AppendNode(user("n1", None)), ask, ChangeTask(Verb.ASK, waits_for="approval")], NOW)
    types = [event.type for event in await store.events(task=task.id)]
    assert types[-2:] == ["user", "approval_wanted"]
    (question,) = await store.questions()
    assert (question.task, question.choices, question.data) == (task.id, ("allow", "deny"), {"tool": "bash"})


async def test_events_are_numbered_without_gaps_for_one_reader(store: SqlStore) -> None:  # I2
    task, lease = await running(store)
    await asyncio.gather(*(store.log("disk_low", {"n": n}, NOW) for n in range(30)))
    await store.record(lease, [RecordEvent("progress", {"trace": "t1"})], NOW)
    events = await store.events()
    numbers = [event.seq for event in events]
    assert numbers == list(range(1, len(numbers) + 1))
    assert await store.events(after=numbers[-3], limit=2) == events[-2:]
    assert events[-1].trace == "t1"
    assert [event.task for event in await store.events(task=task.id)] == [task.id] * 3


async def test_a_follower_hears_the_newest_number_and_nothing_twice(store: SqlStore) -> None:
    followers = [store.subscribe() for _ in range(3)]
    for follower in followers:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(follower), 0.01)
    for _ in range(5):
        await store.log("disk_low", {}, NOW)
    for follower in followers:
        assert await asyncio.wait_for(anext(follower), 1) == 5
    heard, _ = await asyncio.wait_for(asyncio.gather(anext(followers[0]), store.log("disk_low", {}, NOW)), 1)
    assert heard == 6


async def test_a_history_is_refused_for_a_task_that_is_not_there(store: SqlStore) -> None:
    with pytest.raises(HarnessError, match="no task"):
        await store.history("zzzzzz")
    assert await store.verify("zzzzzz") == "Task zzzzzz has no session."
    assert refused(await store.find("zzzzzz")).code == "not_found"
