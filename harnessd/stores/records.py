"""Records: what a running task wants durable, as the statements of one unit of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from harnessd.domain.decision import Retry
from harnessd.domain.effect import Effect
from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError, IllegalEvent, LeaseLost
from harnessd.domain.jobs import WAITED_FOR
from harnessd.domain.record import (
    AppendNode,
    AskPerson,
    ChangeTask,
    FreezeSystem,
    KeepCheckpoint,
    MovePointer,
    PlanEffect,
    Record,
    RecordDecision,
    RecordEvent,
    SaveCounters,
    SettleEffect,
    TakeMessage,
)
from harnessd.domain.session import Node
from harnessd.domain.task import TASK_TRANSITIONS, Counters, Lease, StopReason, TaskState, Verb
from harnessd.domain.transfer.chain import digest
from harnessd.stores.database import Missed, Statement, Unit
from harnessd.stores.kernel import event
from harnessd.stores.operations.checkpoints import keep
from harnessd.stores.rows import decision_to_json, effect_params, encode, plain

TARGETS: Mapping[Verb, TaskState] = {verb: to for moves in TASK_TRANSITIONS.values() for verb, to in moves.items()}
SOURCES: Mapping[Verb, tuple[TaskState, ...]] = {
    verb: tuple(state for state, moves in TASK_TRANSITIONS.items() if verb in moves) for verb in TARGETS
}
SEEN_AS: Mapping[Verb, EventType] = {
    Verb.HAND_BACK: EventType.HANDED_BACK,
    Verb.PARK: EventType.PARKED,
    Verb.ASK: EventType.NEEDS_HUMAN,
    Verb.PAUSE: EventType.PAUSED,
    Verb.RESUME: EventType.RESUMED,
    Verb.RETRY: EventType.RETRIED,
    Verb.CANCEL: EventType.TASK_STOPPED,
    Verb.STOP: EventType.TASK_STOPPED,
    Verb.COMPLETE: EventType.TASK_COMPLETED,
    Verb.ROLL_BACK: EventType.ROLLING_BACK,
    Verb.ROLLED_BACK: EventType.ROLLED_BACK,
}
DEFAULT_REASON: Mapping[Verb, StopReason] = {
    Verb.CANCEL: StopReason.ABORTED,
    Verb.COMPLETE: StopReason.COMPLETED,
    Verb.STOP: StopReason.ERROR,
}
AFRESH = (Verb.RESUME, Verb.RETRY)
_COUNTERS = tuple(field.name for field in fields(Counters))
# What a move sets where nobody says anything else; without an owner it is a person's.
NOTHING: Mapping[str, Any] = {
    "owner": None,
    "error_class": None,
    "sentence": "",
    "next_steps": "[]",
    "until": None,
    "why": "",
    "waits_for": None,
    "parked_on": None,
    "heeds": "",
}

# Every record but a node, which is row and event in one.
Written = (
    MovePointer
    | PlanEffect
    | SettleEffect
    | RecordDecision
    | RecordEvent
    | SaveCounters
    | ChangeTask
    | TakeMessage
    | AskPerson
    | FreezeSystem
    | KeepCheckpoint
)


def unit_of(lease: Lease, records: Sequence[Record], now: float, revision: int) -> Unit:
    """The whole unit: the fence first, then the records in order, then the events that nobody recorded by name."""
    if len(records) == 1 and isinstance(records[0], AppendNode):  # most units of a run
        return append_node(lease, records[0].node, revision, fenced=False)
    task = lease.task
    statements: list[Statement] = []
    seen: list[Statement] = []
    named = {record.type for record in records if isinstance(record, RecordEvent)}
    asked = any(isinstance(record, AskPerson) for record in records)
    for record in records:
        if isinstance(record, AppendNode):
            statements += append_node(lease, record.node, revision, fenced=bool(statements))
            continue
        if not statements and not isinstance(record, ChangeTask):  # a move carries the fence itself, as a node does
            statements.append(Statement("fence", fence_of(lease), 1))
        statements += _written(record, lease, now)
        if asked and isinstance(record, ChangeTask) and record.verb is Verb.ASK:
            continue  # the question speaks for the task's move
        shown = _shown(record, task, now, revision)
        seen += [one for one in shown if one.params["type"] not in named] if named else shown
    seen += [event(r.type, now, task, r.data, r.node, revision) for r in records if isinstance(r, RecordEvent)]
    return (*statements, *seen)


def fence_of(lease: Lease) -> dict[str, Any]:
    """The parameters that a lease's holder must match."""
    return {"task": lease.task, "owner": lease.owner, "epoch": lease.epoch}


def explain_miss(missed: Missed, lease: Lease) -> HarnessError:
    """What a statement that touched no row means."""
    if missed.statement == "fence":
        return LeaseLost(f"The lease on task {lease.task} (epoch {lease.epoch}) is not ours any more.")
    words = {
        "advance": "the new node's parent is not the pointer",
        "fenced_advance": "the new node's parent is not the pointer",
        "move_pointer": "the pointer is not where it was expected, or there is no such node",
        "settle_effect": "there is no open effect with this id",
        "move_task": "its state does not know this move",
        "take_message": "this message is not waiting",
    }
    return IllegalEvent(f"Task {lease.task}: {words.get(missed.statement, missed.statement)}; nothing was written.")


def _written(record: Written, lease: Lease, now: float) -> Sequence[Statement]:
    match record:
        case ChangeTask():
            return change_task(lease, record, now)
        case RecordEvent():
            return ()
        case PlanEffect(effect):
            return (Statement("plan_effect", {"task": lease.task, **effect_params(effect)}),)
        case RecordDecision(node_id, call_id, decision):
            text = encode(decision_to_json(decision))
            params = {"task": lease.task, "node": node_id, "call_id": call_id, "now": now, "decision": text}
            return (Statement("insert_decision", params),)
        case KeepCheckpoint(checkpoint):
            return (keep(lease.task, checkpoint),)
        case AskPerson():
            return (Statement("ask_person", _question(lease.task, record, now)),)
        case _:
            name, row = _updated(record, now)
            return (Statement(name, {"task": lease.task, **row}, must_touch=1),)


def _counters(counters: Counters) -> dict[str, Any]:
    """As JSON. They hold plain values alone, and a deep copy of all of them cost more than the encoding."""
    return {name: getattr(counters, name) for name in _COUNTERS}


def _updated(
    record: MovePointer | SettleEffect | SaveCounters | TakeMessage | FreezeSystem, now: float
) -> tuple[str, dict[str, Any]]:
    """The query and the parameters of a record that changes exactly one row which must be there."""
    match record:
        case MovePointer(expected, to):
            return "move_pointer", {"expected": expected, "to": to}
        case SettleEffect(effect_id, state, result):
            return "settle_effect", {"id": effect_id, "state": state.value, "result": encode(dict(result)), "now": now}
        case SaveCounters(counters, doing):
            return "save_counters", _saved(counters, doing)
        case TakeMessage(message, node_id):
            return "take_message", {"message": message, "node": node_id}
        case FreezeSystem(text):
            return "freeze_system", {"text": plain(text)}


def _saved(counters: Counters, doing: str) -> dict[str, Any]:
    return {"counters": encode(_counters(counters)), "doing": plain(doing)}


def counters_row(task: str, counters: Counters, doing: str) -> Statement:
    """The counters of a task that nobody works on."""
    return Statement("save_counters", {"task": task, **_saved(counters, doing)}, 1)


def append_node(lease: Lease, node: Node, revision: int, *, fenced: bool) -> tuple[Statement, Statement]:
    """The pointer and the chain go on by compare-and-set on the parent; then the row takes its hash from there.

    A node that begins its unit carries the fence in the same statement.
    """
    payload = encode(node.payload if isinstance(node.payload, dict) else dict(node.payload))
    kind = node.kind.value
    params = {
        "task": lease.task,
        "owner": lease.owner,
        "epoch": lease.epoch,
        "id": node.id,
        "parent": node.parent,
        "kind": kind,
        "payload": payload,
        "at": node.at,
        "revision": revision,
        "digest": digest(node.id, node.parent, kind, node.at, payload),
    }
    return Statement("advance" if fenced else "fenced_advance", params, 1), Statement("insert_node", params)


def change_task(lease: Lease, change: ChangeTask, now: float) -> tuple[Statement, ...]:
    """The task's own move."""
    return move(
        lease.task,
        lease.epoch,
        change.verb,
        now,
        SOURCES[change.verb],
        {
            "reason": change.reason,
            "error_class": change.error_class,
            "owner": lease.owner,
            "sentence": plain(change.sentence),
            "next_steps": encode(change.next_steps) if change.next_steps else "[]",
            "until": change.until,
            "why": plain(change.why),
            "waits_for": change.waits_for,
            "parked_on": plain(change.dependency) if change.dependency is not None else None,
            "heeds": _heeds(change),
        },
    )


def _heeds(change: ChangeTask) -> str:
    match change.verb:
        case Verb.PAUSE:
            return "pause"
        case Verb.ASK:
            return "answer"
        case Verb.PARK if change.dependency == WAITED_FOR:
            return "word"
        case _:
            return ""


def overtaken(records: Sequence[Record]) -> tuple[Record, ...] | None:
    """The same unit where a person took its pause back, or a word or an answer came that it was to wait for.

    The task is handed back instead, for whoever goes on with it. None where the unit holds no such move.
    """
    if not any(isinstance(record, ChangeTask) and _heeds(record) for record in records):
        return None
    back = ChangeTask(Verb.HAND_BACK, why="there is something to go on with")
    return tuple(back if isinstance(record, ChangeTask) else record for record in records)


def move(
    task: str,
    epoch: int,
    verb: Verb,
    now: float,
    sources: Sequence[TaskState],
    facts: Mapping[str, Any],
) -> tuple[Statement, ...]:
    """The statements of one move in TASK_TRANSITIONS: the row, and the workspace when the task ends."""
    target = TARGETS[verb]
    ended = target.ended
    reason = (facts.get("reason") or DEFAULT_REASON[verb]) if ended else None
    params = {
        **NOTHING,
        **facts,
        "task": task,
        "epoch": epoch,
        "to": target.value,
        "sources": f" {' '.join(sources)} ",
        "reason": reason.value if reason is not None else None,
        "ended_at": now if ended else None,
        "forget": ended or verb is Verb.PAUSE or verb in AFRESH,
        "afresh": verb in AFRESH,
    }
    row = Statement("move_task", params, must_touch=1)
    return (row, Statement("free_workspace", {"task": task})) if ended else (row,)


def said(task: str, text: str, now: float, by: str) -> Unit:
    """A person's word, read at the next turn; nothing where there is none."""
    if not text:
        return ()
    message = Statement(
        "insert_message", {"task": task, "text": plain(text), "now": now, "by": plain(by)}, or_stop=True
    )
    return (message, event(EventType.MESSAGE, now, task, {"by": by, "text": text[:200]}))


def _question(task: str, ask: AskPerson, now: float) -> dict[str, Any]:
    return {
        "task": task,
        "id": ask.id,
        "kind": ask.kind,
        "node": ask.node,
        "call_id": ask.call_id,
        "sentence": plain(ask.sentence),
        "choices": encode(list(ask.choices)),
        "now": now,
        "until": ask.until,
        "data": encode(dict(ask.data)),
    }


# --- what people see ------------------------------------------------------------------------------------------------


def _shown(record: Written, task: str, now: float, revision: int) -> Sequence[Statement]:
    match record:
        case MovePointer(expected, to):
            return (event(EventType.POINTER_MOVED, now, task, {"from": expected, "to": to}, to, revision),)
        case PlanEffect(effect):
            type_ = EventType.MODEL_CALL if effect.kind == "model" else EventType.TOOL_CALL
            return (event(type_, now, task, _call(effect), effect.node, revision),)
        case RecordDecision():
            return _decided(record, task, now, revision)
        case ChangeTask():
            return (event(SEEN_AS[record.verb], now, task, _moved(record), None, revision),)
        case KeepCheckpoint(one):
            facts = {"checkpoint": one.ref, "why": one.why, "changed": one.changed, "uncovered": one.uncovered}
            return (event(EventType.CHECKPOINT, now, task, facts, one.node, revision),)
        case AskPerson():
            type_ = EventType.APPROVAL_WANTED if record.kind == "approval" else EventType.NEEDS_HUMAN
            data = {"question": record.id, "kind": record.kind, "sentence": record.sentence, "until": record.until}
            return (event(type_, now, task, {**data, "choices": list(record.choices)}, record.node, revision),)
        case _:
            return ()


def _call(effect: Effect) -> dict[str, Any]:
    call = {"effect": effect.id, "call": effect.call_id, "name": effect.name, "class": effect.effect_class.value}
    return {**call, "attempt": effect.attempt}


def _decided(record: RecordDecision, task: str, now: float, revision: int) -> Sequence[Statement]:
    decision = record.decision
    stored = decision_to_json(decision)
    rule = decision.rule
    data = {
        "do": stored["do"],
        "class": decision.error_class,
        "rule": f"{rule.kind}/{rule.name} {rule.rule}".strip(),
        "where": f"{rule.file}:{rule.line}",
        "call": record.call_id,
    }
    seen = [event(EventType.DECISION, now, task, data, record.node, revision)]
    if isinstance(decision.remedy, Retry):
        wait = {**stored["remedy"], "class": decision.error_class}
        seen.append(event(EventType.RETRY_WAIT, now, task, wait, record.node, revision))
    return seen


def _moved(change: ChangeTask) -> dict[str, Any]:
    facts = {
        "reason": (change.reason or DEFAULT_REASON[change.verb]).value if TARGETS[change.verb].ended else None,
        "class": change.error_class,
        "sentence": change.sentence,
        "next_steps": [list(step) for step in change.next_steps],
        "until": change.until,
        "why": change.why,
        "waits_for": change.waits_for,
    }
    return {name: value for name, value in facts.items() if value}
