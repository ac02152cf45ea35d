"""Rollbacks: the moves of a task whose pointer and workspace go back together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harnessd.domain.effect import Effect, EffectState
from harnessd.domain.events import EventType
from harnessd.domain.rollback import Rollback
from harnessd.domain.session import Node
from harnessd.domain.task import Counters, Lease, StopReason, Task, TaskState, Verb
from harnessd.stores.database import Missed, Statement
from harnessd.stores.kernel import Kernel, event
from harnessd.stores.operations.checkpoints import end_restore
from harnessd.stores.records import append_node, counters_row, move, said
from harnessd.stores.rows import effect_params, encode, plain


class Rollbacks(Kernel):
    """`RollbackStore` of the domain."""

    async def roll_back(self, task: Task, rollback: Rollback, counters: Counters, now: float) -> bool:
        """See the port."""
        data = {"from": rollback.since, "to": rollback.to, "checkpoint": rollback.checkpoint, "by": rollback.by}
        kept = replace(counters, rollback=rollback.to_json())
        hold = (Statement("hold_to_roll_back", {"task": task.id, "now": now}, 1),) if task.draft.workspace else ()
        why = {"sentence": rollback.why, "why": rollback.why}
        try:
            await self._write(
                (
                    *move(task.id, await self._epoch_of(task.id), Verb.ROLL_BACK, now, (task.state,), why),
                    *hold,
                    counters_row(task.id, kept, f"rolling back to {rollback.to}"),
                    Statement("withdraw_questions", {"task": task.id}),
                    event(EventType.ROLLING_BACK, now, task.id, data | {"why": rollback.why}, rollback.since),
                )
            )
        except Missed:
            return False
        return True

    async def rolled_back(  # noqa: PLR0913 - one unit: all of it, or nothing
        self,
        task: Task,
        verb: Verb,
        counters: Counters,
        now: float,
        *,
        to: str | None,
        notice: Node | None,
        say: str,
        tell: str,
        restore: tuple[str, str, Mapping[str, Any]] | None,
        data: Mapping[str, Any],
        free: bool,
        was: Mapping[str, Any],
    ) -> None:
        """See the port."""
        epoch = await self._epoch_of(task.id)
        pointer = {"task": task.id, "expected": task.pointer, "to": to}
        moved = (Statement("move_pointer", pointer, 1),) if to is not None and to != task.pointer else ()
        noticed = append_node(Lease(task.id, "", epoch, 0.0), notice, 0, fenced=True) if notice is not None else ()
        facts = {"sentence": data.get("sentence", "")} if not was else dict(was)
        if was:
            facts |= {"reason": StopReason(was["reason"]), "next_steps": encode(was["next_steps"])}
        ended = was.get("ended_at") or now
        notice_row = {"task": task.id, "text": plain(tell), "now": now, "kind": "notice"}
        await self._write(
            (
                *moved,
                *noticed,
                *move(task.id, epoch, verb, ended, (TaskState.ROLLING_BACK,), facts),
                counters_row(task.id, counters, ""),
                *said(task.id, say, now, str(data.get("by", ""))),
                *((Statement("insert_notice", notice_row),) if tell else ()),
                *((end_restore(*restore, now),) if restore is not None else ()),
                *((Statement("free_workspace", {"task": task.id}),) if free else ()),
                event(
                    EventType.ROLLED_BACK if to is not None else EventType.ROLLBACK_FAILED,
                    now,
                    task.id,
                    data,
                    task.pointer,
                ),
            )
        )
        self._queued.set()

    async def plan_undo(self, task: str, effect: Effect) -> None:
        """See the port."""
        await self._write((Statement("plan_effect", {"task": task, **effect_params(effect)}),))

    async def settle_undo(self, task: str, effect: str, state: EffectState, result: Mapping[str, Any]) -> None:
        """See the port."""
        row = {"task": task, "id": effect, "state": state.value, "result": encode(dict(result)), "now": time.time()}
        await self._write((Statement("settle_effect", row, 1),))

    async def _epoch_of(self, task: str) -> int:
        row = await self._row("epoch", {"task": task})
        return row[0] if row is not None else 0
