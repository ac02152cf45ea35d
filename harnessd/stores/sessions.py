"""Sessions: the append-only tree of each task and the hash chain that holds it together."""

from __future__ import annotations

from collections.abc import Sequence

from harnessd.domain.session import Node
from harnessd.domain.transfer.chain import CHAIN_START, chain_hash, digest
from harnessd.stores.database import Row, Statement
from harnessd.stores.kernel import Kernel
from harnessd.stores.rows import node_from


class Sessions(Kernel):
    """`SessionStore` of the domain's ports."""

    async def nodes(self, task: str) -> Sequence[Node]:
        """See the port."""
        return [node_from(row) for row in await self._rows("nodes", {"task": task})]

    async def verify(self, task: str) -> str | None:
        """See the port."""
        params = {"task": task}
        session, rows = await self._database.fetch((Statement("session", params), Statement("nodes", params)))
        if not session:
            return f"Task {task} has no session."
        return misfit(session[0], rows)


def misfit(session: Row, rows: Sequence[Row]) -> str | None:
    """The first thing that does not fit in a session (pointer, count, chain) and its nodes, as a sentence."""
    pointer, count, chain = session
    seen: set[str] = set()
    before = CHAIN_START
    for id_, parent, kind, payload, at, stored in rows:
        if parent is not None and parent not in seen:
            return f"Node {id_} has the parent {parent}, which is not there."
        before = chain_hash(before, digest(id_, parent, kind, at, payload))
        if before != stored:
            return f"Node {id_} is not what was written: its hash does not fit the chain."
        seen.add(id_)
    if len(rows) != count or before != chain:
        last = rows[-1][0] if rows else "the root"
        return f"The session ends at {last} with {len(rows)} nodes; {count} were written."
    if pointer is not None and pointer not in seen:
        return f"The pointer names node {pointer}, which is not there."
    return None
