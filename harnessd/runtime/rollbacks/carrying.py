"""Carrying: a rollback that was decided on, carried to its end; each step durable before the next.

Decided is a rollback with the task's move to `rolling_back`: from then on its state is in the task's counters, and only
its end takes it out. Files first, pointer and task state after them in one unit of work: whoever looks in between sees
`rolling_back`, never a pointer that the files do not fit.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Clock, Refused, Store, TaskFilter
from harnessd.domain.rollback import Rollback
from harnessd.domain.session import Checkpoint, Node, NodeKind, user_payload
from harnessd.domain.task import Counters, StopReason, Task, TaskState, Verb
from harnessd.domain.workspace import KeptRestore, Restored, Workspace
from harnessd.runtime import telemetry
from harnessd.runtime.crashpoints import Crashpoint, nowhere
from harnessd.runtime.rollbacks import document
from harnessd.runtime.rollbacks.authors import others, own_until
from harnessd.runtime.rollbacks.targets import Known, workspace_at
from harnessd.runtime.rollbacks.undoing import Perform, undo

_log = telemetry.log("rollback")


class Jobs(Protocol):
    """What runs beside a task."""

    async def end_task(self, task: str) -> int:
        """Kill and verify everything a task left running; gives the number of jobs ended."""

    def running(self, task: str) -> Sequence[str]:
        """Ids of a task's jobs that still run."""


@dataclass(frozen=True, slots=True)
class Hands:
    """What a rollback does beside files: `perform` calls a tool (an undo that a person chose), `wake` the workers."""

    perform: Perform
    wake: Callable[[], None]
    crashpoint: Crashpoint = nowhere


class Carrier:
    """Carries rollbacks out, one for each task at a time."""

    def __init__(self, store: Store, workspace: Workspace, jobs: Jobs, clock: Clock, hands: Hands) -> None:
        self._store, self._workspace, self._jobs, self._clock, self._hands = store, workspace, jobs, clock, hands
        self._under_way: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def carry_on(self, task: str) -> dict[str, Any]:
        """Carry out what was decided for a task that is `rolling_back`, from wherever it stands; gives the report.

        A caller that goes away does not stop it.
        """
        under_way = self._under_way.get(task)
        if under_way is None:
            under_way = self._under_way[task] = asyncio.ensure_future(self._carry_out(task))
            under_way.add_done_callback(lambda _: self._under_way.pop(task, None))
        return await asyncio.shield(under_way)

    async def begin(self) -> None:
        """At start: end what the last daemon could not."""
        for task in await self._store.list(TaskFilter(states=(TaskState.ROLLING_BACK,))):
            _log.warning("taken_up", task=task.id, words="a rollback was cut off; it is carried to its end")
            await self.carry_on(task.id)

    async def _carry_out(self, name: str) -> dict[str, Any]:
        task = await self._store.find(name)
        if isinstance(task, Refused):
            raise HarnessError(f"Task {name} is gone while it is rolled back.")
        rollback = Rollback.from_json(task.counters.rollback)
        begun = next((one for one in await self._store.open_restores() if one.task == task.id), None)
        self._hands.crashpoint("J16-before")
        try:
            if begun is None:
                rollback = await self._resolved(task, rollback)
                begun = await self._begin(task, rollback)
            rollback = replace(rollback, manifest=begun.target)
            self._hands.crashpoint("J16")
            restored = await asyncio.to_thread(self._restore, begun, rollback)
        except HarnessError as fault:
            restored = Restored("refused", failed={task.draft.workspace: fault.sentence})
        back = restored.state in ("done", "disturbed")
        undone = (
            [
                await undo(self._store, self._hands.perform, task, effect, self._clock.now())
                for effect in rollback.undo_effects
            ]
            if back
            else []
        )
        return await self._end(task, rollback, begun, restored, undone)

    async def _resolved(self, task: Task, rollback: Rollback) -> Rollback:
        """With the checkpoint of its node, where a run decided that knows nodes alone.

        Raises HarnessError where there is none any more, and where others changed what would be put back.
        """
        if not rollback.unresolved:
            return rollback
        known = await known_of(self._store, task)
        found = workspace_at(known, known.nodes[rollback.to])
        if isinstance(found, Refused):
            raise HarnessError(found.message)
        if found is None:
            return rollback
        until = await own_until(self._store, self._jobs, task, known)
        await self._jobs.end_task(task.id)
        root, last = task.draft.workspace, task.counters.checkpoint or found.manifest
        now = await asyncio.to_thread(self._workspace.take, root)
        changed = await asyncio.to_thread(self._workspace.conflicts, root, last, now.manifest, found.manifest)
        theirs, _ = others(root, changed, until) if until else (changed, ())
        if theirs:
            raise HarnessError(f"{', '.join(theirs[:5])} was also changed from outside the task: a person must choose.")
        return replace(rollback, manifest=found.manifest, checkpoint=found.ref)

    async def _begin(self, task: Task, rollback: Rollback) -> KeptRestore:
        """Processes end, the state before is kept, the intent is durable: from here on there is a way forward."""
        await self._jobs.end_task(task.id)
        root, safety, ref, now = task.draft.workspace, "", "", self._clock.now()
        if rollback.manifest:
            taken = await asyncio.to_thread(self._workspace.take, root)
            root, safety = taken.root or root, taken.manifest
            # A crash may have left the row of an earlier try.
            kept = await self._store.checkpoints(task.id)
            ref = f"c{max([task.counters.checkpoints, *(int(one.ref[1:]) for one in kept)]) + 1}"
            uncovered = len(taken.uncovered or ())
            one = Checkpoint(task.pointer or "", ref, safety, root, now, "safety", taken.changed, uncovered)
            await self._store.add_checkpoint(task.id, one)
        about = {**rollback.to_json(), "task_was": task.state.value, "ref": ref}
        begun = KeptRestore(task.id, secrets.token_hex(8), root, rollback.manifest, safety, about, now)
        await self._store.begin_restore(begun)
        return begun

    def _restore(self, begun: KeptRestore, rollback: Rollback) -> Restored:
        if not begun.target:
            return Restored("done")
        return self._workspace.restore(
            begun.root, begun.target, begun.safety, begun.token, rollback.keep, rollback.overwrite
        )

    async def _end(
        self,
        task: Task,
        rollback: Rollback,
        begun: KeptRestore | None,
        restored: Restored,
        undone: list[dict[str, Any]],
    ) -> dict[str, Any]:
        back = restored.state in ("done", "disturbed")
        report = document.report(restored, undone)
        counters, notice = task.counters, None
        if begun is not None and (ref := str(begun.about.get("ref") or "")):
            counters = replace(counters, checkpoints=int(ref[1:]))
        if back:
            counters = _after(counters, rollback)
            if rollback.note:
                number = counters.nodes + 1
                counters = replace(counters, nodes=number)
                said = user_payload(rollback.note) | {"facts": {"rolled_back": rollback.since}}
                notice = Node(f"n{number}", rollback.to, NodeKind.NOTICE, said, self._clock.now())
        else:
            counters = replace(counters, rollback={})
        way = {"from": rollback.since, "to": rollback.to, "checkpoint": rollback.checkpoint, "by": rollback.by}
        data = way | report | {"sentence": _sentence(rollback, restored)}
        was = {} if back else rollback.was
        # With half of the files put back a person looks first.
        goes_on = rollback.after == "queued" and (back or (bool(rollback.note) and restored.state != "stuck"))
        self._hands.crashpoint("J16-end")
        await self._store.rolled_back(
            task,
            Verb.ROLLED_BACK if goes_on else _stays(was),
            counters,
            self._clock.now(),
            to=rollback.to if back else None,
            notice=notice,
            say=rollback.prompt if back else "",
            tell=_told(rollback, restored) if goes_on and not back else "",
            restore=(begun.token, restored.state, report) if begun is not None else None,
            data=data,
            free=rollback.free,
            was=was,
        )
        self._hands.crashpoint("J16-after")
        self._hands.wake()
        log = _log.info if back else _log.warning
        log("rolled_back" if back else "rollback_failed", task=task.id, words=data["sentence"])
        return data | {"rolled_back": back, "before": str(begun.about.get("ref") or "") if begun is not None else ""}


async def known_of(store: Store, task: Task) -> Known:
    """Everything that is kept of a task's way."""
    return Known(
        task.id,
        task.pointer,
        {node.id: node for node in await store.nodes(task.id)},
        await store.effects(task.id),
        await store.checkpoints(task.id),
        await store.restores(task.id),
    )


def _after(counters: Counters, rollback: Rollback) -> Counters:
    """What a task knows of its way begins anew; what it has used is not given back."""
    return replace(
        counters,
        rollback={},
        checkpoint=rollback.manifest or counters.checkpoint,
        taken=counters.taken if rollback.note else {},  # a ladder that rolls back by itself is bounded
        streak={},
        tallies_from=counters.nodes,
        loop_from=counters.nodes,
        asking="",
        stand_ins={},
        ending={},
        last_turn=False,
        tries=0,
        tries_of={},
        episode_at=None,
        episode_parked_s=0.0,
        wait_until=None,
        probing="",
        reserved_usd=0.0,
        context={},
    )


def _stays(was: Mapping[str, Any]) -> Verb:
    """What becomes of a task that does not go on: it ended as it had ended, or stays as a person left it."""
    if not was:
        return Verb.PAUSE
    return Verb.COMPLETE if was["reason"] == StopReason.COMPLETED else Verb.STOP


def _told(rollback: Rollback, restored: Restored) -> str:
    """One line for the model that goes on where it was: what was meant to be put back, and what kept it from that."""
    reasons = {**restored.failed, **restored.blocked}
    why = "; ".join([" ".join(f"{path}: {words}".split()) for path, words in list(reasons.items())[:5]])
    words = f"The work was to be taken back to {rollback.to}, files too, and nothing was taken back: {why}"
    return f"{words.rstrip('.')}. What others changed is theirs: leave it, and plan another way from where you are."


def _sentence(rollback: Rollback, restored: Restored) -> str:
    match restored.state:
        case "done":
            return f"Rolled back to {rollback.to}."
        case "disturbed":
            paths = ", ".join(sorted(restored.failed)[:5])
            return f"Rolled back to {rollback.to}; something goes on writing: {paths}."
        case "stuck":
            paths = ", ".join(f"{path} ({why})" for path, why in list(restored.failed.items())[:5])
            return f"The rollback to {rollback.to} stopped half-way and could not be taken back: {paths}."
        case _:
            reasons = {**restored.failed, **restored.blocked}
            paths = ", ".join(f"{path} ({why})" for path, why in list(reasons.items())[:5])
            return f"The rollback to {rollback.to} failed, and everything is as it was: {paths}."
