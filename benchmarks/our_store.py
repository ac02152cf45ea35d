"""Ours: the store as the runtime uses it, every check and hash chain included."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from harnessd.domain.ports import Refused
from harnessd.domain.record import AppendNode, ChangeTask
from harnessd.domain.session import Node, NodeKind
from harnessd.domain.task import Lease, StopReason, TaskDraft, Verb
from harnessd.stores import open_store

OWNER = "bench"
TTL_S = 3600.0
BATCH = 64


def draft(number: int) -> TaskDraft:
    """A task of its own workspace: two tasks never share one."""
    return TaskDraft(prompt="nothing", agent="bench", workspace=f"/srv/bench/{number}")


class OurStore:
    """One task a session; each step appends a node under the task's lease."""

    def __init__(self, folder: Path) -> None:
        """Nothing is opened yet."""
        self._store = open_store(folder / "ours.db")
        self._leases: list[Lease] = []

    async def open(self, sessions: int) -> None:
        """Take the store, submit and lease a task for each session."""
        await self._store.open(OWNER)
        now = time.time()
        await asyncio.gather(*(self._store.submit(draft(number), now) for number in range(sessions)))
        claimed = await self._store.claim(OWNER, sessions, now, TTL_S)
        self._leases = [task.lease for task in claimed if task.lease]
        if len(self._leases) != sessions:
            raise RuntimeError(f"{len(self._leases)} of {sessions} tasks were leased")

    async def step(self, session: int, number: int, payload: bytes) -> None:
        """Append one node; returns once it is durable."""
        now = time.time()
        parent = f"n{number - 1}" if number > 1 else None
        said = {"blocks": [{"type": "text", "text": payload.decode()}]}
        node = Node(f"n{number}", parent, NodeKind.ASSISTANT, said, now)
        await self._store.record(self._leases[session], (AppendNode(node),), now)

    async def close(self) -> None:
        """Give the store back."""
        await self._store.close()


class OurQueue:
    """Submit, claim, complete: what a worker does around a task, without the task."""

    def __init__(self, folder: Path) -> None:
        """Nothing is opened yet."""
        self._store = open_store(folder / "ours.db")

    async def open(self) -> None:
        """Take the store."""
        await self._store.open(OWNER)

    async def submit(self, number: int) -> None:
        """Return once the task is durable."""
        got = await self._store.submit(draft(number), time.time())
        if isinstance(got, Refused):
            raise TypeError(got.message)

    async def work_off(self, tasks: int, workers: int) -> float:
        """Claim as the daemon does, for all free workers at once, and complete; gives when the last one started."""
        free = asyncio.Semaphore(workers)
        running: set[asyncio.Task[None]] = set()
        claimed, started = 0, 0.0
        while claimed < tasks:
            await self._store.wait_queued()
            while got := await self._store.claim(OWNER, BATCH, time.time(), TTL_S):
                started = time.perf_counter()
                claimed += len(got)
                for task in got:
                    await free.acquire()
                    if task.lease is None:
                        raise RuntimeError(f"{task.id} was claimed without a lease")
                    work = asyncio.create_task(self._complete(task.lease, free))
                    running.add(work)
                    work.add_done_callback(running.discard)
        await asyncio.gather(*running)
        return started

    async def _complete(self, lease: Lease, free: asyncio.Semaphore) -> None:
        change = ChangeTask(Verb.COMPLETE, reason=StopReason.COMPLETED, sentence="Nothing was to be done.")
        await self._store.record(lease, (change,), time.time())
        free.release()

    async def close(self) -> None:
        """Give the store back."""
        await self._store.close()
