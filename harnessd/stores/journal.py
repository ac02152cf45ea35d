"""Journal: intents, outcomes, decisions and events, written in units under a lease's epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.domain.effect import Effect
from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError, IllegalEvent
from harnessd.domain.ports import History
from harnessd.domain.record import (
    AppendNode,
    AskPerson,
    ChangeTask,
    MovePointer,
    PlanEffect,
    Question,
    Record,
    RecordEvent,
    SettleEffect,
    StoredDecision,
    StoredEvent,
)
from harnessd.domain.session import Checkpoint, Node, NodeKind, open_calls
from harnessd.domain.task import Lease
from harnessd.stores.database import Conflict, Missed, Rows, Statement
from harnessd.stores.kernel import Kernel, event
from harnessd.stores.records import TARGETS, explain_miss, fence_of, overtaken, unit_of
from harnessd.stores.rows import (
    decision_from,
    effect_from,
    event_from,
    message_from,
    node_from,
    question_from,
    task_from,
)


class Journal(Kernel):
    """`Journal` of the domain's ports."""

    async def record(self, lease: Lease, records: Sequence[Record], now: float, revision: int = 0) -> None:
        """See the port. Raises IllegalEvent for a unit that the stored state does not know: our bug."""
        if not records:
            return
        points = points_of(records)
        unit = unit_of(lease, records, now, revision)
        for point in points:
            self._crashpoint(f"{point}-before")
        try:
            await self._write(unit)
        except Missed as missed:
            ours = await self._row("fence", fence_of(lease)) is not None
            instead = overtaken(records) if ours and missed.statement == "move_task" else None
            if instead is not None:
                await self.record(lease, instead, now, revision)
                return
            raise explain_miss(missed if ours else Missed("fence"), lease) from None
        except Conflict as conflict:
            raise IllegalEvent(f"Task {lease.task}: recorded twice ({conflict}); nothing was written.") from conflict
        for point in points:
            self._crashpoint(f"{point}-after")
        if any(isinstance(record, ChangeTask) for record in records):
            self._queued.set()  # handed back, or ended: its workspace and the tasks behind it are free

    async def log(self, type_: str, data: Mapping[str, Any], now: float, revision: int = 0) -> None:
        """See the port."""
        await self._write((event(type_, now, None, data, None, revision),))

    async def history(self, task: str) -> History:
        """See the port. Raises HarnessError for an unknown task and for a path with a hole."""
        params = {"task": task}
        beside = ("effects", "messages_waiting", "questions_of", "checkpoints", "job_codes")
        names = ("task_by_id", "session", "path", *beside)
        found = await self._database.fetch(tuple(Statement(name, params) for name in names))
        task_rows, session, path_rows, effects, messages, questions, checkpoints, jobs = found
        if not task_rows:
            raise HarnessError(f"There is no task {task}.")
        path = whole_path(task, session, path_rows)
        return History(
            task=task_from(task_rows[0]),
            path=path,
            effects=tuple(effect_from(row) for row in effects),
            messages=tuple(message_from(row) for row in messages),
            questions=_of_open_calls(path, [question_from(row) for row in questions]),
            changed=frozenset(one.node for one in (Checkpoint(*row) for row in checkpoints) if one.why == "after"),
            ended_jobs={str(row[0]): int(row[1]) for row in jobs},
        )

    async def effects(self, task: str) -> Sequence[Effect]:
        """See the port."""
        return [effect_from(row) for row in await self._rows("effects", {"task": task})]

    async def decisions(self, task: str) -> Sequence[StoredDecision]:
        """See the port."""
        return [decision_from(row) for row in await self._rows("decisions", {"task": task})]

    async def events(self, after: int = 0, task: str | None = None, limit: int = 1000) -> Sequence[StoredEvent]:
        """See the port."""
        name = "events_after" if task is None else "events_of_task"
        return [event_from(row) for row in await self._rows(name, {"after": after, "task": task, "limit": limit})]


def points_of(records: Sequence[Record]) -> tuple[str, ...]:
    """The crash points that lie at the edges of this unit.

    J8: between an assistant node with calls and their intents. J13: between an outcome and its result node. J14:
    between a result node and the next turn. J16: between a pointer's move and what follows. J17: between a summary and
    its node. J18: between a counter and its warning. J20: between a question's row and the notification. J21: between
    a task's end and the cleanup behind it. At J8, J13, J17 and J18 both are one unit: a crash finds both or neither.
    """
    points: set[str] = set()
    kinds: set[NodeKind] = set()
    intent = outcome = False
    for record in records:
        if isinstance(record, AppendNode):
            kinds.add(record.node.kind)
        elif isinstance(record, PlanEffect):
            intent = intent or record.effect.kind == "tool"
        elif isinstance(record, SettleEffect):
            outcome = True
        elif point := _point_of(record):
            points.add(point)
    if NodeKind.TOOL_RESULT in kinds:
        points |= {"J13", "J14"} if outcome else {"J14"}
    if intent and NodeKind.ASSISTANT in kinds:
        points.add("J8")
    if NodeKind.COMPACTION in kinds:
        points.add("J17")
    return tuple(sorted(points)) if points else ()


def _point_of(record: Record) -> str:
    match record:
        case MovePointer():
            return "J16"
        case RecordEvent(type=EventType.BUDGET_WARNING):
            return "J18"
        case AskPerson():
            return "J20"
        case ChangeTask(verb=verb) if TARGETS[verb].ended:
            return "J21"
        case _:
            return ""


def whole_path(task: str, session: Rows, rows: Rows) -> tuple[Node, ...]:
    """The path to the pointer. Raises HarnessError where it reaches no root: nothing resumes a cut-off history."""
    path = tuple(node_from(row) for row in rows)
    pointer = session[0][0] if session else None
    reaches = path[0].parent is None and path[-1].id == pointer if path else pointer is None
    if not reaches:
        raise HarnessError(
            f"The session of task {task} is damaged: the path to its pointer {pointer} has a hole.",
            remedy="Other tasks are not touched. Run `harnessd restore FILE` with a backup, or cancel this task.",
        )
    return path


def _of_open_calls(path: Sequence[Node], questions: Sequence[Question]) -> tuple[Question, ...]:
    calls = set(open_calls(path))
    there = {node.id for node in path}
    return tuple(
        question
        for question in questions
        if question.call_id in calls or (question.call_id is None and (not question.node or question.node in there))
    )
