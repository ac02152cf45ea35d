"""Others: a drain of another daemon on the same store: it takes no new tasks, and ends what it has in its own time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from harnessd.domain.durable.node import NodeStore
from harnessd.domain.ports import Refused, Store


class Others:
    """Carries the wish through the store: the other daemon's claims are refused there, over restarts too."""

    def __init__(self, store: Store) -> None:
        """A store with one owner knows no others."""
        self._nodes = cast("NodeStore", store) if hasattr(store, "store_nodes") else None

    async def carry(self, node: str, wish: Mapping[str, Any]) -> Mapping[str, Any] | Refused:
        """Give `node`, `draining`, and how many `tasks` run there still."""
        known = {} if self._nodes is None else {one.node: one for one in await self._nodes.store_nodes()}
        if self._nodes is None or node not in known:
            hint = "`harnessctl nodes` lists them." if known else "This daemon is the only one of its store."
            return Refused("not_found", f'There is no node "{node}".', hint)
        cancel = bool(wish.get("cancel"))
        if cancel:
            await self._nodes.undrain_node(node)
        else:
            await self._nodes.drain_node(node, str(wish.get("by", "")))
        return {"node": node, "draining": not cancel, "tasks": known[node].tasks}
