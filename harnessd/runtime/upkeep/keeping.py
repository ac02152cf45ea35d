"""Keeping: what policy keeps no longer goes, at quiet moments, in steps that hold the writer up for milliseconds."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessd.domain.durable.retention import EndedTask
from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Clock, Store
from harnessd.policy.retention import RetentionPolicy, keep_s
from harnessd.runtime import telemetry
from harnessd.runtime.upkeep import plan as planning
from harnessd.runtime.upkeep.plan import Folder, Plan
from harnessd.runtime.workspaces.collecting import Collector

_log = telemetry.log("upkeep")
_PAGE = 500
STEP_S = 0.02  # a step that took the writer longer makes the next one smaller
_ROWS_FIRST, _ROWS_MAX, _ROWS_MIN = 100, 1000, 10
_QUIET_LOOK_S = 30.0
_PATIENCE_S = 6 * 3600.0  # a daemon that is never quiet is collected all the same


@dataclass(slots=True)
class Keeping:
    """Plans and performs. `quiet`: nothing runs now. `lock` keeps backups and collecting apart."""

    store: Store
    collector: Collector
    artefacts: Path
    policy: Callable[[], RetentionPolicy]
    clock: Clock
    quiet: Callable[[], bool]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _rows: int = _ROWS_FIRST
    _whole: bool = False  # the leftovers of a crash were looked for since the start

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self.collector.every_s)
            waited_s = 0.0
            while not self.quiet() and waited_s < _PATIENCE_S:
                await asyncio.sleep(_QUIET_LOOK_S)
                waited_s += _QUIET_LOOK_S
            try:
                await self.collect()
            except (HarnessError, OSError) as fault:
                _log.warning("collect", words=str(fault))

    async def make_room(self) -> None:
        """The disk fills up: what may go goes now. Whoever looks after the disk does not wait for a backup."""
        if self.lock.locked():
            return
        try:
            await self.collect(tight=True)
        except (HarnessError, OSError) as fault:  # a full disk may refuse this too
            _log.warning("collect", words=str(fault))

    async def plan(self) -> Plan:
        """What would go now."""
        policy, now = self.policy(), self.clock.now()
        ended = await self._ended()
        whole = planning.gone(policy, ended, now)
        ids = {task.id for task in whole}
        folders = await asyncio.to_thread(_folders, self.artefacts)
        by_id = {task.id: task for task in ended}
        unknown = [folder.task for folder in folders if folder.task not in by_id]
        live = await self.store.tasks_known(unknown)
        kept_s = keep_s(policy, "revisions")
        aged_s = keep_s(policy, "sessions")
        before = float("-inf") if aged_s is None else now - max(aged_s, keep_s(policy, "idempotency") or 0.0)
        return Plan(
            tasks=whole,
            checkpoints=planning.checkpoints(policy, ended, ids, now),
            artefacts=planning.artefacts(policy, folders, by_id, live, now, ids),
            revisions=tuple(await self.store.idle_revisions(now - kept_s)) if kept_s is not None else (),
            orphans=() if self._whole else tuple(await self.store.orphans()),
            aged=await self.store.aged(before) if aged_s is not None else Plan().aged,
            aged_before=before,
        )

    async def collect(self, *, tight: bool = False) -> dict[str, Any]:
        """Do it; gives what was done, and the bytes freed on the disk."""
        async with self.lock:
            wanted = await self.plan()
            done = {**wanted.json(), "freed_bytes": 0}
            if not wanted.empty:
                counts = {name: len(value) if isinstance(value, list) else value for name, value in done.items()}
                # Before anything goes: the newest row of all stays, so that no sequence number is given twice.
                await self.store.log(EventType.COLLECTED, counts, self.clock.now())
                done["freed_bytes"] += await self._perform(wanted)
            self._whole = True
            spared = [task.id for task in await self._ended() if self._spared(task)]
            done["freed_bytes"] += await self.collector.collect(tight=tight, spared=spared)
        return done

    async def _perform(self, wanted: Plan) -> int:
        for task in wanted.orphans:
            await self._strip(task)
        for row in wanted.tasks:
            if await self.store.forget(row.id, row.ended_at):
                await self._strip(row.id)
        for row in wanted.checkpoints:
            await self._step(self.store.drop_checkpoints_of(row.id, row.ended_at))
        for number in wanted.revisions:
            await self._step(self.store.forget_revision(number))
        while wanted.aged_before > 0 and await self._step(self.store.forget_aged(wanted.aged_before, self._rows)):
            pass
        return await asyncio.to_thread(_remove, self.artefacts, await self._still(wanted.artefacts))

    async def _still(self, folders: Sequence[Folder]) -> list[Folder]:
        """Without those of tasks that went on meanwhile."""
        known = await self.store.tasks_known([folder.task for folder in folders])
        ended = {task.id: task.ended_at for task in await self._ended()}
        return [one for one in folders if one.task not in known or ended.get(one.task) == one.ended_at]

    async def _strip(self, task: str) -> None:
        while await self._step(self.store.strip(task, self._rows)):
            pass

    async def _step(self, step: Any) -> Any:
        """One step for the writer, then as long a pause: others' work goes between."""
        begun = self.clock.monotonic()
        done = await step
        took_s = self.clock.monotonic() - begun
        if took_s > STEP_S:
            self._rows = max(_ROWS_MIN, self._rows // 2)
        else:
            self._rows = min(_ROWS_MAX, self._rows * 2)
        await asyncio.sleep(min(took_s, 1.0))
        return done

    async def _ended(self) -> list[EndedTask]:
        found: list[EndedTask] = []
        after = (float("-inf"), "")
        while page := await self.store.ended(after, _PAGE):
            found += page
            after = (page[-1].ended_at, page[-1].id)
        return found

    def _spared(self, task: EndedTask) -> bool:
        return task.needed or planning.wanted(task, self.clock.now())


def _folders(above: Path) -> list[Folder]:
    """One for each task; links are not followed, and what is no folder of a task is left alone."""
    if not above.is_dir():
        return []
    found = []
    for name in sorted(os.listdir(above)):  # noqa: PTH208 - names alone
        folder = above / name
        if not name.isalnum() or folder.is_symlink() or not folder.is_dir():
            continue
        size, newest = 0, folder.stat().st_mtime
        for inside, _, names in os.walk(folder):
            for one in names:
                try:
                    status = Path(inside, one).lstat()
                except OSError:
                    continue  # it went meanwhile
                size, newest = size + status.st_blocks * 512, max(newest, status.st_mtime)
        found.append(Folder(name, size, newest))
    return found


def _remove(above: Path, folders: list[Folder]) -> int:
    freed = 0
    for folder in folders:
        shutil.rmtree(above / folder.task, ignore_errors=True)
        freed += folder.size if not (above / folder.task).exists() else 0
    return freed


def dry(plan: Plan) -> Mapping[str, Any]:
    """The document of a dry run."""
    return {**plan.json(), "dry_run": True}
