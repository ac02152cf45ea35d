"""Revisions: the policy sets that were, each with its contents; one is in force."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.domain.durable.revision import Revision, RevisionDraft, RevisionState
from harnessd.domain.failure import HarnessError
from harnessd.stores.database import Row, Statement
from harnessd.stores.kernel import Kernel
from harnessd.stores.rows import encode, plain


class Revisions(Kernel):
    """`RevisionStore` of the domain."""

    async def add_revision(self, draft: RevisionDraft, now: float, *, hold: bool = False) -> int:
        """See the port."""
        comes = draft.state is RevisionState.IN_FORCE
        insert = Statement(
            "insert_revision",
            {
                "hash": draft.hash,
                "at": now,
                "state": draft.state.value,
                "source": draft.source,
                "by": plain(draft.by),
                "note": plain(draft.note),
                "what": plain(draft.what),
                "program": draft.program,
            },
        )
        unit = [insert]
        if comes:
            unit.insert(0, Statement("leave_revisions", {"overtaken": 1}))
        if draft.content is not None:
            unit.append(Statement("keep_set", {"hash": draft.hash, "content": encode(draft.content)}))
        if comes:
            unit.append(Statement("mark_in_force", {"hold": int(hold)}))
        answers = await self._write(tuple(unit))
        number: int = answers[unit.index(insert)][0][0]
        return number

    async def put_in_force(self, number: int, *, hold: bool) -> None:
        """See the port."""
        await self._write(
            (
                Statement("leave_revisions", {"overtaken": 0}),
                Statement("put_in_force", {"number": number}, must_touch=1),
                Statement("mark_in_force", {"hold": int(hold)}),
            )
        )

    async def revisions(self, limit: int = 100) -> Sequence[Revision]:
        """See the port."""
        return [_revision(row) for row in await self._rows("revisions", {"limit": limit})]

    async def revision(self, number: int) -> tuple[Revision, Mapping[str, Any] | None] | None:
        """See the port."""
        row = await self._row("revision", {"number": number})
        if row is None:
            return None
        revision = _revision(row)
        content = await self._row("policy_set", {"hash": revision.hash})
        try:
            return revision, json.loads(content[0]) if content is not None else None
        except ValueError:
            sentence = f"The record of policy revision r{revision.number} is damaged in the store."
            raise HarnessError(sentence, remedy="Restore a backup: harnessd restore FILE") from None

    async def policy_state(self) -> tuple[int, bool]:
        """See the port."""
        row = await self._row("policy_state", {})
        return (row[0], bool(row[1])) if row is not None else (0, False)


def _revision(row: Row) -> Revision:
    number, hash_, at, state, source, by, note, what, program = row
    return Revision(number, hash_, at, RevisionState(state), source, by, note, what, program)
