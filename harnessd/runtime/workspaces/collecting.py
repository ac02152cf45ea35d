"""Collecting: contents of checkpoints that no row names any more are given back; when all are too many, the oldest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Clock
from harnessd.domain.workspace import CheckpointStore, Workspace
from harnessd.policy.retention import RetentionPolicy
from harnessd.runtime import telemetry

_log = telemetry.log("collecting")
EVERY_S = 3600.0
GRACE_S = 86400.0  # what was written less long ago may have its row still to come
_TIGHT_GRACE_S = 600.0  # where room is short


@dataclass(slots=True)
class Collector:
    """Gives contents back whose rows policy keeps no longer."""

    store: CheckpointStore
    workspace: Workspace
    policy: Callable[[], RetentionPolicy]
    clock: Clock
    every_s: float = EVERY_S

    async def collect(self, *, tight: bool = False, spared: Collection[str] = ()) -> int:
        """One round; gives the bytes freed. `tight`: room is short, so that little is waited for.

        `spared` are ended tasks whose checkpoints stay, however large they all are together.
        """
        freed = 0
        try:
            freed = await self._give_back(_TIGHT_GRACE_S if tight else GRACE_S)
            freed += await self._shrink(spared)
        except (HarnessError, OSError) as fault:
            _log.warning("collect", words=str(fault))
        if freed:
            _log.info("collect", freed=freed)
        return freed

    async def _give_back(self, grace_s: float) -> int:
        live = await self.store.live_manifests()
        return await asyncio.to_thread(self.workspace.collect, live, grace_s)

    async def _shrink(self, spared: Collection[str]) -> int:
        """`max_size.checkpoints`: tasks that ended longest ago lose theirs until the rest fits."""
        most, freed = self.policy().shape.max_size.checkpoints, 0
        while most is not None and await asyncio.to_thread(self.workspace.size) > most:
            task = await self.store.drop_oldest_checkpoints(spared)
            freed += await self._give_back(_TIGHT_GRACE_S)
            if task is None:
                break
            _log.warning("checkpoints_dropped", task=task, words="max_size.checkpoints is reached")
        return freed
