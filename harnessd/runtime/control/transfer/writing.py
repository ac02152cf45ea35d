"""Writing: a session as JSON lines, read from the store in pages: memory holds one page, however long the session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from harnessd import __version__
from harnessd.domain.ports import Store
from harnessd.domain.task import Task, TaskDraft
from harnessd.domain.transfer import Outline, StoredNode
from harnessd.domain.transfer.lines import Lines
from harnessd.runtime.control import show

_NODES, _ROWS = 32, 200
T = TypeVar("T")


async def session_lines(store: Store, task: str, now: float) -> AsyncIterator[bytes]:
    """All lines, some at a time. A cut stream has no last line: whoever reads it notices."""
    outline = await store.outline(task)
    out = Lines()
    yield out.header(__version__, now) + out.line("task", _task(outline))
    async for nodes in _pages(lambda after: store.stored_nodes(outline, after, _NODES), lambda one: one.seq):
        yield b"".join(out.line("node", _node(one), one.payload) for one in nodes)
    async for effects in _pages(lambda after: store.stored_effects(outline, after, _ROWS), lambda row: row[0]):
        yield b"".join(out.line("effect", show.show_effect(one)) for _, one in effects)
    async for decisions in _pages(lambda after: store.stored_decisions(outline, after, _ROWS), lambda row: row[0]):
        yield b"".join(out.line("decision", show.show_decision(one)) for _, one in decisions)
    async for events in _pages(lambda after: store.stored_events(outline, after, _ROWS), lambda one: one.seq):
        # An event's own `type` is its word in the closed list; here that of the line goes first.
        yield b"".join(out.line("event", _renamed(show.show_event(one))) for one in events)
    for question in await store.stored_questions(outline):
        answer = {"choice": question.choice, "say": question.say, "answered_by": question.answered_by}
        yield out.line("question", show.show_question(question, outline.task) | answer)
    for checkpoint in await store.stored_checkpoints(outline):
        yield out.line("checkpoint", asdict(checkpoint))
    yield out.end()


async def _pages(fetch: Callable[[int], Any], place: Callable[[Any], int]) -> AsyncIterator[Sequence[Any]]:
    after = 0
    while page := await fetch(after):
        yield page
        after = place(page[-1])


def _renamed(event: dict[str, Any]) -> dict[str, Any]:
    return {("event" if name == "type" else name): value for name, value in event.items()}


def _task(outline: Outline) -> dict[str, Any]:
    task = outline.task
    return {
        "task": task.id,
        "keys_of": task.draft.keys_of or task.id,
        "draft": _draft(task.draft),
        "state": task.state.value,
        "reason": task.reason.value if task.reason else None,
        "class": task.error_class,
        "sentence": task.sentence,
        "submitted_at": task.submitted_at,
        "started_at": task.started_at,
        "ended_at": task.ended_at,
        "recoveries": task.recoveries,
        "pointer": task.pointer,
        "nodes": outline.nodes,
        "chain": outline.chain.hex(),
        "counters": _counters(task),
        "system": task.system,
    }


def _draft(draft: TaskDraft) -> dict[str, Any]:
    """What was asked for; a client's key and the order in the queue mean nothing elsewhere."""
    return {
        "prompt": draft.prompt,
        "agent": draft.agent,
        "workspace": draft.workspace,
        "priority": draft.priority,
        "labels": dict(draft.labels),
        "model": draft.model,
        "feature": draft.feature,
        "budget": dict(draft.budget),
        "policies": dict(draft.policies),
    }


def _counters(task: Task) -> dict[str, Any]:
    return asdict(task.counters)


def _node(node: StoredNode) -> dict[str, Any]:
    return {"id": node.id, "parent": node.parent, "kind": node.kind, "at": node.at, "chain": node.chain.hex()}
