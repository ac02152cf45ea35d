"""Transfers: whole sessions out of the store in pages, and into it in one unit."""

from __future__ import annotations

from collections.abc import Sequence

from harnessd.domain.effect import Effect
from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError
from harnessd.domain.record import Question, StoredDecision, StoredEvent
from harnessd.domain.session import Checkpoint
from harnessd.domain.task import Task, TaskState
from harnessd.domain.transfer import Brought, Outline, StoredNode
from harnessd.domain.transfer.chain import digest
from harnessd.stores.database import Conflict, Rows, Statement, Unit
from harnessd.stores.kernel import event
from harnessd.stores.queue import ID_TRIES, Queue, submission
from harnessd.stores.records import counters_row
from harnessd.stores.rows import decision_from, effect_from, effect_params, encode, event_from, question_from, task_from


class Transfers(Queue):
    """`TransferStore` of the domain."""

    async def outline(self, task: str) -> Outline:
        """See the port."""
        params = {"task": task}
        names = ("task_by_id", "session", "outline")
        tasks, sessions, bounds = await self._database.fetch(tuple(Statement(name, params) for name in names))
        if not tasks or not sessions:
            raise HarnessError(f"There is no task {task}.")
        node, effect, decision, event_, settled = bounds[0]
        _, count, chain = sessions[0]
        return Outline(task_from(tasks[0]), count, chain, node, effect, decision, event_, settled)

    async def stored_nodes(self, of: Outline, after: int, limit: int) -> Sequence[StoredNode]:
        """See the port."""
        return [StoredNode(*row) for row in await self._page("stored_nodes", of, after, of.node, limit)]

    async def stored_effects(self, of: Outline, after: int, limit: int) -> Sequence[tuple[int, Effect]]:
        """See the port."""
        return [
            (row[0], effect_from(row[1:])) for row in await self._page("stored_effects", of, after, of.effect, limit)
        ]

    async def stored_decisions(self, of: Outline, after: int, limit: int) -> Sequence[tuple[int, StoredDecision]]:
        """See the port."""
        rows = await self._page("stored_decisions", of, after, of.decision, limit)
        return [(row[0], decision_from(row[1:])) for row in rows]

    async def stored_events(self, of: Outline, after: int, limit: int) -> Sequence[StoredEvent]:
        """See the port."""
        return [event_from(row) for row in await self._page("stored_events", of, after, of.event, limit)]

    async def stored_questions(self, of: Outline) -> Sequence[Question]:
        """See the port."""
        return [question_from(row) for row in await self._rows("questions_of", {"task": of.task.id})]

    async def stored_checkpoints(self, of: Outline) -> Sequence[Checkpoint]:
        """See the port."""
        return [Checkpoint(*row) for row in await self._rows("checkpoints", {"task": of.task.id})]

    async def bring_in(self, session: Brought, now: float, by: str) -> Task:
        """See the port."""
        for _ in range(ID_TRIES):
            task = Task(self._next_id(now), session.draft, TaskState.QUEUED, now)
            try:
                await self._write(_unit(task, session, by))
            except Conflict:
                if await self._row("task_by_id", {"task": task.id}) is None:
                    raise
                continue  # somebody else's id, from a restored copy or a clock set back
            return await self._task(task.id)
        raise HarnessError("No free task id was found.")

    async def _page(self, name: str, of: Outline, after: int, last: int, limit: int) -> Rows:
        params = {"task": of.task.id, "after": after, "last": last, "limit": limit, "settled": of.settled}
        return await self._rows(name, params)


def _unit(task: Task, session: Brought, by: str) -> Unit:
    """A task that is never queued: it is paused before anybody else can see it."""
    why = f"imported from {session.source}"
    head = {"task": task.id, "expected": None, "to": session.pointer}
    shown = {"by": by, "why": why, "nodes": len(session.nodes), "effects": len(session.effects)}
    return (
        *submission(task),
        Statement("hold_imported", {"task": task.id, "system": session.system, "why": why}, 1),
        *(statement for node in session.nodes for statement in _node(task.id, node)),
        *(Statement("plan_effect", {"task": task.id, **effect_params(one)}) for one in session.effects),
        *(_decision(task.id, one) for one in session.decisions),
        *((Statement("move_pointer", head, 1),) if session.pointer is not None else ()),
        counters_row(task.id, session.counters, ""),
        event(EventType.PAUSED, task.submitted_at, task.id, shown),
    )


def _node(task: str, node: StoredNode) -> tuple[Statement, Statement]:
    params = {
        "task": task,
        "id": node.id,
        "parent": node.parent,
        "kind": node.kind,
        "payload": node.payload,
        "at": node.at,
        "revision": 0,
        "digest": digest(node.id, node.parent, node.kind, node.at, node.payload),
    }
    return Statement("chain_node", params, 1), Statement("insert_node", params)


def _decision(task: str, one: StoredDecision) -> Statement:
    text = encode(dict(one.decision))
    params = {"task": task, "node": one.node, "call_id": one.call_id, "now": one.at, "decision": text}
    return Statement("insert_decision", params)
