"""Leases: since when this daemon knows that its tasks are its own; who was stopped for long asks before it acts.

A process may be stopped between the commit of an intent and the act (SIGSTOP, a machine that slept, a hypervisor), for
longer than a lease lasts. What it then writes is refused by the epoch; what it does outside nobody refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from harnessd.domain.failure import REFUSED_FOR_NOW, LeaseLost
from harnessd.domain.ports import Clock, Store
from harnessd.domain.task import Lease, Task

# The part of a lease's time for which an answer of the store is good: what begins then has the other part to begin in.
_GOOD_PART = 0.5


@dataclass(slots=True)
class Leases:
    """The leases of a pool's tasks."""

    store: Store
    clock: Clock
    ttl_s: float
    # (task, epoch) -> when we asked for what was given, by both clocks: a machine's sleep shows in the second alone.
    _asked: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)

    async def claim(self, owner: str, count: int, full: Collection[str]) -> Sequence[Task]:
        """Tasks that are due. Raises HarnessError."""
        asked = self._now()
        tasks = await self.store.claim(owner, count, asked[1], self.ttl_s, full)
        self._asked.update({_key(task.lease): asked for task in tasks if task.lease is not None})
        return tasks

    async def prolong(self, leases: Sequence[Lease]) -> frozenset[str]:
        """The tasks that are still ours; `leases` are all that are at work. Raises HarnessError."""
        for ended in self._asked.keys() - {_key(lease) for lease in leases}:
            del self._asked[ended]
        return await self._prolong(leases) if leases else frozenset()

    async def make_sure(self, task: Task) -> None:
        """Return while the task's lease is ours for some time more. Raises LeaseLost, StoreLost."""
        lease = task.lease
        while lease is not None and not self._good(lease):
            try:
                kept = await self._prolong((lease,))
            except REFUSED_FOR_NOW:
                return  # a store that takes nothing gives the task to nobody else either
            if lease.task not in kept:
                raise LeaseLost

    async def _prolong(self, leases: Sequence[Lease]) -> frozenset[str]:
        asked = self._now()
        kept = await self.store.heartbeat(leases, asked[1], self.ttl_s)
        for lease in leases:
            if lease.task in kept and _key(lease) in self._asked:
                self._asked[_key(lease)] = asked
        return kept

    def _good(self, lease: Lease) -> bool:
        asked = self._asked.get(_key(lease))
        if asked is None:
            return True  # no task of this pool is at work under it
        return max(now - then for now, then in zip(self._now(), asked, strict=True)) < self.ttl_s * _GOOD_PART

    def _now(self) -> tuple[float, float]:
        return self.clock.monotonic(), self.clock.now()


def _key(lease: Lease) -> tuple[str, int]:
    return lease.task, lease.epoch
