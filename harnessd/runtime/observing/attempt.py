"""Attempt: one run of a task under one lease, and its trace id, known to every log line and span below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from structlog.contextvars import bind_contextvars, bound_contextvars

from harnessd.domain.record import AppendNode, Record
from harnessd.domain.task import Lease, Task
from harnessd.runtime.host.disk import Recorder


@contextmanager
def attempt_of(task: Task) -> Iterator[None]:
    """What is logged meanwhile, also by the calls that begin inside, names task, trace and node."""
    trace = task.lease.trace if task.lease is not None else ""
    facts = {"task": task.id, "trace": trace, "node": task.pointer}
    with bound_contextvars(**{name: value for name, value in facts.items() if value}):
        yield


@dataclass(frozen=True, slots=True)
class NamedNodes(Recorder):
    """A journal that tells the log where the session of its caller stands."""

    journal: Recorder

    async def record(self, lease: Lease, records: Sequence[Record], now: float, revision: int = 0) -> None:
        """See `Journal`."""
        await self.journal.record(lease, records, now, revision)
        for record in reversed(records):
            if isinstance(record, AppendNode):
                # A context belongs to the asyncio task that records: the runner. Its calls copy it when they begin.
                bind_contextvars(node=record.node.id)
                return
