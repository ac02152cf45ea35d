"""Rows: the domain's values as columns, and back."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from harnessd.domain.decision import Decision
from harnessd.domain.effect import Effect, EffectClass, EffectState, well_formed
from harnessd.domain.failure import HarnessError
from harnessd.domain.record import PersonMessage, Question, StoredDecision, StoredEvent
from harnessd.domain.session import Node, NodeKind
from harnessd.domain.task import Counters, Lease, StopReason, Task, TaskDraft, TaskState
from harnessd.stores.database import Row

EXCERPT = 200  # characters of a node that its event shows; the node holds the whole
DAMAGED = "(the record of this task is damaged in the store)"
SYMBOL_FOR_NULL = "\N{SYMBOL FOR NULL}"


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _made_once() -> Callable[[Any], str]:
    """`JSONEncoder.encode` builds its inner encoder anew at each call, which costs more than a small value itself."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the accelerator
        return _encoder.encode
    inner = make(None, _encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    return lambda value: "".join(inner(value, 0))


_json_text = _made_once()


def encode(value: Any) -> str:
    """JSON in one line, keys in the order they came: the wire form of a block must leave as it arrived."""
    text = _json_text(value)
    return text if text.isascii() else well_formed(text)


def plain(text: str) -> str:
    """Text for a column of its own: PostgreSQL takes no NUL and nobody takes half a surrogate pair."""
    return (text if text.isascii() else well_formed(text)).replace("\0", SYMBOL_FOR_NULL)


def folder(workspace: str) -> str:
    """A workspace as the queue compares it: normal form with a slash at the end; empty for none."""
    if not workspace:
        return ""
    return posixpath.normpath(well_formed(workspace)).rstrip("/") + "/"


# --- tasks ----------------------------------------------------------------------------------------------------------


def draft_to_json(draft: TaskDraft) -> dict[str, Any]:
    """The stored form of what was asked for."""
    return {
        "prompt": draft.prompt,
        "agent": draft.agent,
        "workspace": draft.workspace,
        "priority": draft.priority,
        "labels": dict(draft.labels),
        "key": draft.key,
        "not_before": draft.not_before,
        "after": list(draft.after),
        "model": draft.model,
        "budget": dict(draft.budget),
        "policies": dict(draft.policies),
        "pinned_revision": draft.pinned_revision,
        **({"feature": draft.feature} if draft.feature else {}),
        **({"keys_of": draft.keys_of} if draft.keys_of else {}),
        **({"keep_s": draft.keep_s} if draft.keep_s else {}),
    }


def draft_from_json(stored: Mapping[str, Any]) -> TaskDraft:
    """What was asked for."""
    return TaskDraft(**{**stored, "after": tuple(stored["after"])})


def counters_from_json(stored: Mapping[str, Any]) -> Counters:
    """The counters; a field this version does not know is left out."""
    known = {name: stored[name] for name in Counters.__dataclass_fields__ if name in stored}
    for name in ("warned", "pending_warnings"):
        known[name] = tuple(known.get(name, ()))
    return Counters(**known)


def task_from(row: Row) -> Task:
    """A task from the columns of the fragment `task_columns`.

    One damaged row must not keep all others from being read and run: what cannot be read comes as a task without an
    agent, and whoever takes that stops it.
    """
    try:
        return _task(row)
    except (ValueError, TypeError, KeyError):
        draft = encode(draft_to_json(TaskDraft(prompt=DAMAGED, agent="", workspace="")))
        return _task((row[0], draft, *row[2:10], "[]", *row[11:14], None, *row[15:]))


def _task(row: Row) -> Task:
    (id_, draft, state, submitted_at, pointer, started_at, ended_at, reason, error_class, sentence) = row[:10]
    (next_steps, until, why, waits_for, counters, lease_owner, epoch, lease_expires) = row[10:18]
    (doing, system, pause_asked, recoveries, cancel_asked) = row[18:]
    return Task(
        id=id_,
        draft=draft_from_json(json.loads(draft)),
        state=TaskState(state),
        submitted_at=submitted_at,
        pointer=pointer,
        started_at=started_at,
        ended_at=ended_at,
        reason=StopReason(reason) if reason else None,
        error_class=error_class,
        sentence=sentence,
        next_steps=tuple(tuple(step) for step in json.loads(next_steps)) if next_steps != "[]" else (),
        until=until,
        why=why,
        waits_for=waits_for,
        counters=counters_from_json(json.loads(counters)) if counters is not None else Counters(),
        lease=Lease(id_, lease_owner, epoch, lease_expires) if lease_owner else None,
        doing=doing or "",
        system=system,
        pause_asked=bool(pause_asked),
        recoveries=recoveries,
        cancel_asked=bool(cancel_asked),
    )


# --- sessions and journal -------------------------------------------------------------------------------------------


def node_from(row: Row) -> Node:
    """A node from id, parent, kind, payload, at."""
    id_, parent, kind, payload, at = row[:5]
    try:
        return Node(id_, parent, NodeKind(kind), json.loads(payload), at)
    except ValueError:
        sentence = f"The record of node {id_} is damaged in the store; nothing is gone on from it."
        raise HarnessError(sentence, remedy="Restore a backup: harnessd restore FILE") from None


def effect_from(row: Row) -> Effect:
    """An effect from the columns of the query `effects`."""
    id_, kind, node, call_id, name, effect_class, state, key, arguments, result, attempt, at = row
    return Effect(
        id=id_,
        kind=kind,
        node=node,
        call_id=call_id,
        name=name,
        effect_class=EffectClass(effect_class),
        state=EffectState(state),
        key=key,
        arguments=json.loads(arguments) if arguments is not None else None,
        result=json.loads(result) if result is not None else None,
        attempt=attempt,
        at=at,
    )


def effect_params(effect: Effect) -> dict[str, Any]:
    """The parameters of `plan_effect`, without the task."""
    return {
        "id": plain(effect.id),
        "kind": effect.kind,
        "node": effect.node,
        "call_id": plain(effect.call_id),
        "name": plain(effect.name),
        "effect_class": effect.effect_class.value,
        "state": effect.state.value,
        "key": effect.key,
        "arguments": encode(effect.arguments) if effect.arguments is not None else None,
        "result": encode(effect.result) if effect.result is not None else None,
        "attempt": effect.attempt,
        "at": effect.at,
    }


def decision_to_json(decision: Decision) -> dict[str, Any]:
    """The stored form of a decision; `do` is the remedy's word in policies."""
    remedy = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(decision.remedy).__name__).lower()
    return {
        "do": remedy,
        "remedy": asdict(decision.remedy),
        "error_class": decision.error_class,
        "rule": asdict(decision.rule),
        "evidence": dict(decision.evidence),
        "alternatives": list(decision.alternatives),
        "tried": [asdict(handed_up) for handed_up in decision.tried],
    }


def decision_from(row: Row) -> StoredDecision:
    """A decision from at, task, node, call_id, decision."""
    at, task, node, call_id, decision = row
    return StoredDecision(at, task, node, call_id, json.loads(decision))


def event_from(row: Row) -> StoredEvent:
    """An event from seq, at, task, node, type, data, revision, and whether its data are a node's payload."""
    seq, at, task, node, type_, text, revision, is_node = row
    data = excerpt(json.loads(text)) if is_node else json.loads(text)
    return StoredEvent(seq, at, task, node, type_, data, revision, str(data.get("trace", "")))


def excerpt(payload: Mapping[str, Any]) -> dict[str, Any]:
    """What an event shows of a node."""
    shown: dict[str, Any] = {}
    for block in payload["blocks"]:
        match block["type"]:
            case "text":
                shown.setdefault("text", block["text"][:EXCERPT])
            case "tool_use":
                shown.setdefault("calls", []).append({"id": block["id"], "name": block["name"]})
            case "tool_result":
                is_error = block.get("is_error", False)
                shown |= {"call": block["tool_use_id"], "is_error": is_error, "text": block["text"][:EXCERPT]}
            case _:
                pass
    return shown


def message_from(row: Row) -> PersonMessage:
    """A word to the task from id, text, at, kind."""
    return PersonMessage(*row)


def question_from(row: Row) -> Question:
    """A question from the columns of the fragment `question_columns`."""
    id_, task, kind, node, call_id, sentence, choices, asked_at, until, choice, say, answered_by, data = row
    return Question(
        id=id_,
        task=task,
        kind=kind,
        node=node,
        call_id=call_id,
        sentence=sentence,
        choices=tuple(json.loads(choices)),
        asked_at=asked_at,
        until=until,
        choice=choice,
        say=say,
        answered_by=answered_by,
        data=json.loads(data),
    )
