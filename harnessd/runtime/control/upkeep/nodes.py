"""Handlers of nodes: the daemons that share this one's store."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from harnessd.domain.durable.node import NodeStore
from harnessd.domain.ports import Clock, Store
from harnessd.runtime.control.answers import Json


class NodeHandlers:
    """The route /v1/nodes."""

    _store: Store
    _clock: Clock

    async def store_nodes(self, _: Request) -> Response:
        """Every daemon that shares the store; a store in a file has this one alone."""
        nodes = shared(self._store)
        if nodes is not None:
            return Json({"shared": True, "nodes": [asdict(node) for node in await nodes.store_nodes()]})
        now, name = self._clock.now(), socket.gethostname()
        running = (await self._store.counts()).get("running", 0)
        alone: dict[str, Any] = {"node": name, "host": name, "state": "up", "started_at": None, "heartbeat": now}
        alone |= {"now": now, "tasks": running, "draining": None, "version": "", "pid": os.getpid()}
        return Json({"shared": False, "nodes": [alone]})


def shared(store: object) -> NodeStore | None:
    """The store as one that several daemons share; None where it has one owner."""
    return cast("NodeStore", store) if hasattr(store, "store_nodes") else None


async def machine_waited_for(store: object, task: str) -> str | None:
    """The machine whose daemon has to come back before this queued task can run."""
    nodes = shared(store)
    return await nodes.out_of_reach(task) if nodes is not None else None
