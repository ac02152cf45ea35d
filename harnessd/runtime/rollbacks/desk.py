"""Desk: rollbacks as people ask for them: the story first, then the deed; and what differs between two nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Clock, Refused, Store
from harnessd.domain.task import Task, TaskState
from harnessd.domain.workspace import Workspace, WorkspaceChange
from harnessd.runtime.rollbacks.carrying import Carrier, Hands, Jobs, known_of
from harnessd.runtime.rollbacks.deciding import Decided, Decider
from harnessd.runtime.rollbacks.targets import Wish, find


class Rollbacks:
    """Everything about rollbacks that the rest of the daemon asks for."""

    def __init__(self, store: Store, workspace: Workspace, jobs: Jobs, clock: Clock, hands: Hands) -> None:
        self._store, self._workspace, self._clock = store, workspace, clock
        self._decider = Decider(store, workspace, jobs)
        self._carrier = Carrier(store, workspace, jobs, clock, hands)
        self.carry_on, self.begin = self._carrier.carry_on, self._carrier.begin

    async def wanted(
        self, task: Task, wish: Wish, by: str, *, dry: bool
    ) -> tuple[Mapping[str, Any], Refused | None] | Refused:
        """The story of a wish, and what became of it; with the reason where it was, or would be, refused."""
        decided = await self._decider.decide(task, wish, by)
        if isinstance(decided, Refused):
            return decided
        if dry or decided.refused is not None:
            return decided.story | {"dry_run": dry}, decided.refused
        if _there_already(task, decided):
            words = f"It stands at {task.pointer} already, and its files do; nothing was changed."
            return decided.story | {"rolled_back": False, "sentence": words}, None
        done = await self._roll_back(task, decided)
        if isinstance(done, Refused):
            return decided.story, done
        if not done["rolled_back"]:
            return done | decided.story, Refused("refused", done["sentence"], f"See: harnessctl status {task.id}")
        return done | decided.story, None

    async def differ(self, task: Task, old: str, new: str) -> Mapping[str, Any] | Refused:
        """What differs in the workspace between two nodes; an empty `new` is the workspace now."""
        known, manifests = await known_of(self._store, task), []
        for name in (old, new):
            if not name and name is new:
                continue
            target = find(known, Wish(to=name))
            if isinstance(target, Refused):
                return target
            if target.checkpoint is None:
                return Refused("refused", f"{task.id} wrote no file: it has no checkpoint to compare.", "")
            manifests.append(target.checkpoint.manifest)
        try:
            changes = await asyncio.to_thread(self._differences, task.draft.workspace, manifests)
        except HarnessError as fault:
            return Refused("refused", fault.sentence, fault.remedy)
        return {"task": task.id, "from": old, "to": new or None, "changes": [asdict(change) for change in changes]}

    def _differences(self, root: str, manifests: Sequence[str]) -> Sequence[WorkspaceChange]:
        other = manifests[1] if len(manifests) > 1 else self._workspace.take(root).manifest
        return self._workspace.compare(root, manifests[0], other)

    async def checkpoints(self, task: Task) -> list[dict[str, Any]]:
        """A task's checkpoints, in order, with the node each is tied to."""
        return [
            {"checkpoint": one.ref, "node": one.node, "at": one.at, "why": one.why, "changed": one.changed}
            for one in await self._store.checkpoints(task.id)
        ]

    async def _roll_back(self, task: Task, decided: Decided) -> dict[str, Any] | Refused:
        moved = await self._store.roll_back(task, decided.rollback, task.counters, self._clock.now())
        if not moved:
            words = f"{task.id} moved meanwhile, or another task works in its workspace."
            return Refused("refused", words, f"Look again: harnessctl status {task.id}")
        return await self.carry_on(task.id)


def _there_already(task: Task, decided: Decided) -> bool:
    """The same command sent again: as a rollback of its own it would stand between a person and `--undo`."""
    wish, story = decided.rollback, decided.story
    more = wish.prompt or wish.undoes or wish.undo_effects or story["files_total"] or story["ended_first"]
    return task.state is TaskState.PAUSED and wish.to == task.pointer and not more
