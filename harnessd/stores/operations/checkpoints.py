"""Checkpoints: which a task has, which contents are needed, restores that are under way."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from harnessd.domain.session import Checkpoint
from harnessd.domain.workspace import KeptRestore
from harnessd.stores.database import Row, Statement
from harnessd.stores.kernel import Kernel
from harnessd.stores.rows import encode


class Checkpoints(Kernel):
    """`CheckpointStore` of the domain."""

    async def checkpoints(self, task: str) -> Sequence[Checkpoint]:
        """See the port."""
        return [Checkpoint(*row) for row in await self._rows("checkpoints", {"task": task})]

    async def add_checkpoint(self, task: str, checkpoint: Checkpoint) -> None:
        """See the port."""
        await self._write((keep(task, checkpoint),))

    async def live_manifests(self) -> Mapping[str, frozenset[str]]:
        """See the port."""
        found: dict[str, set[str]] = {}
        for root, manifest in await self._rows("live_manifests", {}):
            found.setdefault(root, set()).add(manifest)
        return {root: frozenset(manifests) for root, manifests in found.items()}

    async def expire_checkpoints(self, before: float) -> int:
        """See the port."""
        (rows,) = await self._write((Statement("expired_checkpoints", {"before": before}),))
        return len(rows)

    async def drop_oldest_checkpoints(self, spared: Collection[str] = ()) -> str | None:
        """See the port."""
        row = await self._row("oldest_ended_with_checkpoints", {"spared": encode(list(spared))})
        if row is None:
            return None
        await self._write((Statement("drop_checkpoints", {"task": row[0]}),))
        return str(row[0])

    async def begin_restore(self, restore: KeptRestore) -> None:
        """See the port."""
        row = {
            "task": restore.task,
            "token": restore.token,
            "root": restore.root,
            "target": restore.target,
            "safety": restore.safety,
            "about": encode(dict(restore.about)),
            "at": restore.at,
        }
        await self._write((Statement("begin_restore", row),))

    async def end_restore(self, token: str, state: str, report: Mapping[str, Any], now: float) -> None:
        """See the port."""
        await self._write((end_restore(token, state, report, now),))

    async def open_restores(self) -> Sequence[KeptRestore]:
        """See the port."""
        return [_restore(row) for row in await self._rows("open_restores", {})]

    async def restores(self, task: str) -> Sequence[KeptRestore]:
        """See the port."""
        return [_restore(row) for row in await self._rows("restores", {"task": task})]


def keep(task: str, checkpoint: Checkpoint) -> Statement:
    """The row that makes a checkpoint count."""
    row = {
        "task": task,
        "ref": checkpoint.ref,
        "node": checkpoint.node,
        "manifest": checkpoint.manifest,
        "root": checkpoint.root,
        "at": checkpoint.at,
        "why": checkpoint.why,
        "changed": checkpoint.changed,
        "uncovered": checkpoint.uncovered,
    }
    return Statement("keep_checkpoint", row)


def end_restore(token: str, state: str, report: Mapping[str, Any], now: float) -> Statement:
    """A restore is over; for a unit that says more than that."""
    return Statement("end_restore", {"token": token, "state": state, "report": encode(dict(report)), "now": now}, 1)


def _restore(row: Row) -> KeptRestore:
    task, token, root, target, safety, about, at, state, report, ended_at = row
    return KeptRestore(task, token, root, target, safety, json.loads(about), at, state, json.loads(report), ended_at)
