"""Nodes: what a store that several daemons share has more: who they are, who drains, whom a task waits for."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from harnessd.domain.durable.node import StoreNode
from harnessd.stores.database import Opened, Statement
from harnessd.stores.postgresql.database import PostgresDatabase
from harnessd.stores.postgresql.keeping import Keeper
from harnessd.stores.postgresql.line import IDLE_S, address_of
from harnessd.stores.queue import Queue


class SharedDatabase(PostgresDatabase):
    """The database with the keeper of its name beside it."""

    heard: Callable[[int], None]
    expired: Callable[[], Awaitable[object]]

    def __init__(
        self, url: str, crashpoint: Callable[[str], None], patience_s: float, identity: Mapping[str, str]
    ) -> None:
        """`identity`: `node`, a name that no other living daemon has; `host`, the machine where folders lie."""
        settings = {f"harnessd.{key}": value for key, value in identity.items()}
        # Who is stopped inside a transaction keeps the others waiting for less time than they have patience.
        settings["idle_in_transaction_session_timeout"] = f"{min(IDLE_S, patience_s / 2) * 1000:.0f}ms"
        super().__init__(address_of(url, settings), crashpoint, patience_s)
        self.node = identity["node"]
        self._keeper: Keeper | None = None

    async def open(self, owner: str) -> Opened:
        """See the port. Raises StoreLocked where a living daemon has this node's name."""
        keeper = Keeper(self.address, self.heard, self.expired)
        try:
            await self.prepare()
            await keeper.begin(self.node)
            opened = await super().open(owner)
        except BaseException:
            await keeper.end()
            await self.close()
            raise
        self._keeper = keeper
        self.committed = keeper.tell
        keeper.watch(opened.epoch, opened.newest_event)
        return opened

    async def close(self) -> None:
        """See the port."""
        await super().close()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.end()


class Nodes(Queue):
    """`NodeStore` of the domain."""

    _database: SharedDatabase

    async def open(self, owner: str) -> None:
        """See the port."""
        self._database.heard, self._database.expired = self._heard, self._expired
        await super().open(owner)

    def _heard(self, newest_event: int) -> None:
        """Another daemon committed, or this one did."""
        if newest_event > self._newest_event:
            self._queued.set()
        self._ring(newest_event)

    async def _expired(self) -> None:
        """A daemon died, or was stopped for longer than its leases last: its tasks are for whoever is up."""
        if self._writer is not None:
            await self.sweep(time.time())

    @property
    def node_name(self) -> str:
        """See the port."""
        return self._database.node

    async def store_nodes(self) -> Sequence[StoreNode]:
        """See the port."""
        return [StoreNode(*row) for row in await self._rows("nodes_of_store", {})]

    async def drain_node(self, node: str, by: str) -> None:
        """See the port."""
        await self._write((Statement("drain_node", {"node": node, "by": by}),))

    async def undrain_node(self, node: str) -> None:
        """See the port."""
        await self._write((Statement("undrain_node", {"node": node}),))
        self._queued.set()

    async def out_of_reach(self, task: str) -> str | None:
        """See the port."""
        row = await self._row("out_of_reach", {"task": task})
        return str(row[0]) if row is not None else None
