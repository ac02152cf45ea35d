"""Collecting: checkpoints that policy keeps no longer are given back, by reference from rows; when full, the oldest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Clock
from harnessd.domain.workspace import CheckpointStore, Workspace
from harnessd.policy.retention import RetentionPolicy, keep_s
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

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self.every_s)
            await self.collect()

    async def collect(self, *, tight: bool = False) -> int:
        """One round; gives the bytes freed. `tight`: room is short, so that little is spared."""
        freed = 0
        try:
            kept_s = keep_s(self.policy(), "checkpoints")
            if kept_s is not None:
                await self.store.expire_checkpoints(self.clock.now() - kept_s)
            freed = await self._give_back(_TIGHT_GRACE_S if tight else GRACE_S)
            freed += await self._shrink()
        except (HarnessError, OSError) as fault:
            _log.warning("collect", words=str(fault))
        if freed:
            _log.info("collect", freed=freed)
        return freed

    async def make_room(self) -> None:
        """The disk fills up: give back what can be had."""
        await self.collect(tight=True)

    async def _give_back(self, grace_s: float) -> int:
        live = await self.store.live_manifests()
        return await asyncio.to_thread(self.workspace.collect, live, grace_s)

    async def _shrink(self) -> int:
        """`max_size.checkpoints`: tasks that ended longest ago lose theirs until the rest fits."""
        most, freed = self.policy().shape.max_size.checkpoints, 0
        while most is not None and await asyncio.to_thread(self.workspace.size) > most:
            task = await self.store.drop_oldest_checkpoints()
            freed += await self._give_back(_TIGHT_GRACE_S)
            if task is None:
                break
            _log.warning("checkpoints_dropped", task=task, words="max_size.checkpoints is reached")
        return freed
