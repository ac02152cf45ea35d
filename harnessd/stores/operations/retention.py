"""Retention: ended tasks as rows, and how what policy keeps no longer goes: in short steps, the task's row first."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from harnessd.domain.durable.retention import Aged, EndedTask
from harnessd.stores.database import Row, Statement
from harnessd.stores.kernel import Kernel

_SMALL = (
    *("forget_session", "forget_counters", "forget_messages", "forget_questions", "forget_jobs", "forget_restores"),
    "drop_checkpoints",
)
_LARGE = ("strip_effects", "strip_decisions", "strip_events", "strip_nodes")


class Retention(Kernel):
    """`RetentionStore` of the domain."""

    async def ended(self, after: tuple[float, str], limit: int) -> Sequence[EndedTask]:
        """See the port."""
        place = {"ended_at": after[0], "id": after[1], "limit": limit}
        rows, waiting = await self._database.fetch((Statement("ended_tasks", place), Statement("waited_for", {})))
        wanted = {task for row in waiting for task in json.loads(row[0])}
        return [_ended(row, wanted) for row in rows]

    async def tasks_known(self, tasks: Collection[str]) -> frozenset[str]:
        """See the port."""
        found = await self._database.fetch([Statement("epoch", {"task": task}) for task in tasks])
        return frozenset(task for task, rows in zip(tasks, found, strict=True) if rows)

    async def orphans(self) -> Sequence[str]:
        """See the port."""
        return [str(row[0]) for row in await self._rows("orphans", {})]

    async def forget(self, task: str, ended_at: float) -> bool:
        """See the port."""
        first = Statement("forget_task", {"task": task, "ended_at": ended_at}, or_stop=True)
        answer = await self._write((first, *(Statement(name, {"task": task}) for name in _SMALL)))
        return bool(answer[0])

    async def strip(self, task: str, rows: int) -> int:
        """See the port."""
        for name in _LARGE:
            (gone,) = await self._write((Statement(name, {"task": task, "rows": rows}),))
            if gone:
                return len(gone)
        return 0

    async def drop_checkpoints_of(self, task: str, ended_at: float) -> bool:
        """See the port."""
        (gone,) = await self._write((Statement("drop_checkpoints_of", {"task": task, "ended_at": ended_at}),))
        return bool(gone)

    async def idle_revisions(self, before: float) -> Sequence[int]:
        """See the port."""
        old = [int(row[0]) for row in await self._rows("old_revisions", {"before": before})]
        if not old:
            return ()
        named = {row[0] for row in await self._rows("revisions_decided", {})}
        return [number for number in old if number not in named]

    async def forget_revision(self, number: int) -> None:
        """See the port."""
        await self._write((Statement("forget_revision", {"number": number}), Statement("forget_idle_sets", {})))

    async def aged(self, before: float) -> Aged:
        """See the port."""
        row = await self._row("aged", {"before": before, "day": _day(before)})
        return Aged(*row) if row is not None else Aged()

    async def forget_aged(self, before: float, rows: int) -> int:
        """See the port."""
        params = {"before": before, "rows": rows}
        names = ("forget_old_events", "forget_old_alerts", "forget_old_starts")
        unit = [Statement(name, params) for name in names]
        answers = await self._write((*unit, Statement("forget_old_days", {"day": _day(before)})))
        return sum(len(answer) for answer in answers)


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _ended(row: Row, wanted: Collection[str]) -> EndedTask:
    id_, ended_at, draft, touched_at, checkpoints, beside = row
    try:
        keep_s = json.loads(draft).get("keep_s")
    except (ValueError, AttributeError):
        keep_s = None  # a damaged row is kept no longer than others
    return EndedTask(id_, ended_at, touched_at or ended_at, keep_s, checkpoints, bool(beside) or id_ in wanted)
