"""Deciding: what a person's wish means for a task, what it would do, and what stands in its way."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harnessd.domain.effect import Effect, EffectState
from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Refused, Store
from harnessd.domain.rollback import Rollback
from harnessd.domain.task import Task, TaskState
from harnessd.domain.workspace import Uncovered, Workspace
from harnessd.runtime.rollbacks import document
from harnessd.runtime.rollbacks.authors import others, own_until
from harnessd.runtime.rollbacks.carrying import Jobs, known_of
from harnessd.runtime.rollbacks.choosing import in_the_workspace, nowhere, under
from harnessd.runtime.rollbacks.document import Seen
from harnessd.runtime.rollbacks.targets import Known, Target, Wish, find, left_behind
from harnessd.runtime.rollbacks.undoing import undos_of

_FROM = frozenset(
    {TaskState.QUEUED, TaskState.PARKED, TaskState.WAITING, TaskState.PAUSED, TaskState.STOPPED, TaskState.COMPLETED}
)

_NAMED_MAX = 5  # paths written into the command that chooses


@dataclass(frozen=True, slots=True)
class Decided:
    """A rollback that can be made, with its story; `refused` says why it would not be."""

    rollback: Rollback
    story: dict[str, Any]
    refused: Refused | None = None


class Decider:
    """Turns wishes into rollbacks. Nothing is changed; the workspace is looked at."""

    def __init__(self, store: Store, workspace: Workspace, jobs: Jobs) -> None:
        self._store, self._workspace, self._jobs = store, workspace, jobs

    async def decide(self, task: Task, wish: Wish, by: str) -> Decided | Refused:
        """What a wish means and would do. Nothing is changed; the workspace is looked at."""
        if task.state not in _FROM:
            hint = (
                f"harnessctl pause {task.id} --now" if task.state is TaskState.RUNNING else "Wait until it is through."
            )
            return Refused("refused", f"{task.id} is {task.state.value} and cannot be rolled back now.", hint)
        chosen = in_the_workspace(task.draft.workspace, wish)
        if isinstance(chosen, Refused):
            return chosen
        wish = chosen
        known = await known_of(self._store, task)
        target = find(known, wish)
        if isinstance(target, Refused):
            return target
        effects = left_behind(known, target.node)
        effects = tuple(effect for effect in effects if not _undone(known, effect, EffectState.DONE))
        if refused := _no_such_undo(task, wish, known, effects):
            return refused
        try:
            until = await own_until(self._store, self._jobs, task, known)
            seen = await asyncio.to_thread(self._look, task, known, target, wish, until)
        except HarnessError as fault:
            return Refused("refused", fault.sentence, fault.remedy)
        if seen.nowhere:
            words = f"There is no {seen.nowhere[0]} in the workspace, neither now nor at {target.node.id}."
            return Refused("refused", words, f"See what differs: harnessctl diff {task.id} {target.node.id}")
        story = document.preview(task, known, target, effects, seen)
        manifest = target.checkpoint.manifest if target.checkpoint is not None else ""
        rollback = Rollback(
            to=target.node.id,
            since=task.pointer,
            manifest=manifest,
            checkpoint=target.checkpoint.ref if target.checkpoint is not None else "",
            keep=wish.keep,
            overwrite=wish.overwrite,
            by=by,
            why=f"rolled back to {target.node.id} by {by}",
            after="queued" if wish.prompt else "paused",
            prompt=wish.prompt,
            undo_effects=wish.undo_effects,
            undoes=target.undoes,
            free=task.state.ended and not wish.prompt,
            was=_as_it_ended(task),
        )
        return Decided(rollback, story, _in_the_way(task, wish, target, seen))

    def _look(self, task: Task, known: Known, target: Target, wish: Wish, own_until: float) -> Seen:
        ended_first = tuple(self._jobs.running(task.id))
        if target.checkpoint is None:
            return Seen(ended_first=ended_first)
        root, manifest = task.draft.workspace, target.checkpoint.manifest
        now = self._workspace.take(root).manifest
        chosen = {*wish.keep, *wish.overwrite}
        last = task.counters.checkpoint or known.checkpoints[-1].manifest
        changed = [one for one in self._workspace.conflicts(root, last, now, manifest) if not under(one, chosen)]
        conflicts, own = others(root, changed, own_until) if own_until else (changed, [])
        changes = self._workspace.compare(root, now, manifest, lines=False)
        there = {one for one in chosen if os.path.lexists(f"{root}/{one}")}
        return Seen(
            changes,
            conflicts,
            self._workspace.plan(root, now, manifest, wish.keep, wish.overwrite),
            [*self._workspace.uncovered(root, manifest), *_elsewhere(root)],
            ended_first,
            own,
            nowhere(chosen, [*(one.path for one in changes), *changed], there),
        )


def _elsewhere(root: str) -> list[Uncovered]:
    """In a worktree `.git` is a file that names the repository it belongs to: branch and index lie there."""
    away = Path(root, ".git").is_file()
    return [Uncovered(".git", "its branch, index and commits lie outside of the workspace")] if away else []


def _in_the_way(task: Task, wish: Wish, target: Target, seen: Seen) -> Refused | None:
    paths = [*seen.conflicts, *(path for path in seen.planned.blocked if path not in seen.conflicts)]
    if not paths:
        return None
    what = f"{len(paths)} paths were changed from outside the task, or stand" if len(paths) > 1 else f"{paths[0]} was"
    what += " in the way" if len(paths) > 1 else " changed from outside the task, or stands in the way"
    named = " ".join(f"--keep {shlex.quote(path)}" for path in paths[:_NAMED_MAX])
    named += " ..." if len(paths) > _NAMED_MAX else ""
    to = f"--steps {wish.steps}" if wish.steps else "--undo" if wish.undo else f"--to {wish.to or target.node.id}"
    return Refused(
        "refused",
        f"{what}; nothing was changed.",
        f"Choose by name: harnessctl rollback {task.id} {to} {named} (or --overwrite for those that go back)",
    )


def _undone(known: Known, effect: Effect, *states: EffectState) -> bool:
    return any(each.state in states for each in undos_of(known.effects, effect.id))


def _no_such_undo(task: Task, wish: Wish, known: Known, effects: Sequence[Effect]) -> Refused | None:
    declared = {
        effect.id
        for effect in effects
        if (effect.result or {}).get("undo") and not _undone(known, effect, EffectState.UNKNOWN)
    }
    for name in wish.undo_effects:
        if name not in declared:
            offered = ", ".join(sorted(declared)) or "none"
            words = f"{name} has no declared undo among what this rollback leaves behind."
            return Refused("refused", words, f"There are: {offered}. See: harnessctl effects {task.id}")
    return None


def _as_it_ended(task: Task) -> dict[str, Any]:
    """How an ended task ended, as its row has it."""
    if not task.state.ended or task.reason is None:
        return {}
    return {
        "reason": task.reason.value,
        "error_class": task.error_class,
        "sentence": task.sentence,
        "next_steps": [list(step) for step in task.next_steps],
        "ended_at": task.ended_at,
    }
