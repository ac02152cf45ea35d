"""Figures: what the store says of itself to whoever watches it, and which attempt an event belongs to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from harnessd.domain.durable.store_figures import Commits, EventCounts, StoreFigures
from harnessd.domain.events import EventType
from harnessd.stores.database import Statement
from harnessd.stores.kernel import Kernel
from harnessd.stores.writer import BOUNDS_S

_EVER = (1 << 63) - 1


class Figures(Kernel):
    """`FiguresStore` of the domain."""

    async def newest_event(self) -> int:
        """See the port."""
        row = await self._row("newest_event", {})
        return int(row[0]) if row is not None else 0

    async def figures(self, now: float) -> StoreFigures:
        """See the port."""
        reads = (
            Statement("queue_figures", {"now": now}),
            Statement("outbox_figures", {}),
            Statement("question_figures", {}),
        )
        queue, outbox, questions = await self._database.fetch(reads)
        due, oldest = queue[0]
        return StoreFigures(int(due), oldest, dict(map(tuple, outbox)), dict(map(tuple, questions)))

    async def event_counts(self, after: int) -> EventCounts:
        """See the port."""
        upto = await self.newest_event()
        if upto <= after:
            return EventCounts(max(after, upto))
        params = {"after": after, "upto": upto}
        counted, stopped = await self._database.fetch(
            (Statement("event_counts", params), Statement("ends_between", params))
        )
        types: Counter[str] = Counter()
        for word, count in counted:
            types[str(word)] += int(count)
        ends = Counter(str(json.loads(row[0]).get("reason") or "error") for row in stopped)
        if types[EventType.TASK_COMPLETED]:
            ends["completed"] = types[EventType.TASK_COMPLETED]
        return EventCounts(upto, types, ends)

    async def latest(self, tasks: Sequence[str]) -> Mapping[str, float]:
        """See the port."""
        if not tasks:
            return {}
        found = await self._database.fetch(tuple(Statement("latest_event", {"task": task}) for task in tasks))
        return {task: float(rows[0][0]) for task, rows in zip(tasks, found, strict=True) if rows}

    async def trace_at(self, task: str, seq: int | None = None, node: str | None = None) -> str:
        """See the port."""
        if node is not None:
            row = await self._row("seq_of_node", {"task": task, "node": node})
            seq = int(row[0]) if row is not None else None
        row = await self._row("attempt_at", {"task": task, "seq": _EVER if seq is None else seq})
        return str(json.loads(row[0]).get("trace", "")) if row is not None else ""

    def commits(self) -> Commits:
        """See the port."""
        writer = self._open_writer()
        return Commits(BOUNDS_S, tuple(writer.took), writer.took_s, writer.units)
