"""Node: one daemon among several on one store: where it is, whether it lives, whether it drains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoreNode:
    """A daemon by its node name, as its newest start is known.

    Attributes:
        state: `up`; `dead`, not heard for 20 s by the store's clock; `stopped`, ended in order.
        heartbeat, now: seconds since 1970 by the store's clock.
        tasks: that run under its leases.
        draining: since when it takes no new tasks; None: it takes them.
    """

    node: str
    host: str
    state: str
    started_at: float
    heartbeat: float
    now: float
    tasks: int
    draining: float | None
    version: str


class NodeStore(Protocol):
    """What a store has more that several daemons share. A store with one owner has none of it."""

    @property
    def node_name(self) -> str:
        """This daemon's own."""

    async def store_nodes(self) -> Sequence[StoreNode]:
        """Every node that is known, by name."""

    async def drain_node(self, node: str, by: str) -> None:
        """It takes no new tasks until `undrain_node`, over restarts too."""

    async def undrain_node(self, node: str) -> None:
        """It takes tasks again."""

    async def out_of_reach(self, task: str) -> str | None:
        """The machine a queued task waits for: its folder lies there, and no daemon of that machine lives."""
