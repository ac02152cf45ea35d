"""Peer: LangGraph's asynchronous SQLite saver, one `aput` a step, which runs at synchronous=FULL as we do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver


class LangGraphSaver:
    """One thread id a session; each step puts a checkpoint with about as much state as one of our nodes has."""

    def __init__(self, folder: Path) -> None:
        """Nothing is opened yet."""
        self._context = AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.db"))
        self._configs: dict[int, Any] = {}

    async def open(self, sessions: int) -> None:
        """Open the saver and give each session its thread."""
        self._saver = await self._context.__aenter__()
        await self._saver.setup()
        for session in range(sessions):
            self._configs[session] = {"configurable": {"thread_id": f"s{session}", "checkpoint_ns": ""}}

    async def step(self, session: int, number: int, payload: bytes) -> None:
        """Put one checkpoint on top of the session's last."""
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"state": payload.decode()}
        metadata: CheckpointMetadata = {"source": "loop", "step": number, "parents": {}}
        self._configs[session] = await self._saver.aput(self._configs[session], checkpoint, metadata, {})

    async def close(self) -> None:
        """Close the connection."""
        await self._context.__aexit__(None, None, None)
