"""Control: group commit on SQLite with nothing around it, the least a durable step on this machine can cost."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from pathlib import Path

BATCH_MAX = 1024


class RawGroupCommit:
    """One thread, one connection, WAL and FULL; whatever waits goes into one transaction."""

    def __init__(self, folder: Path) -> None:
        """Nothing is opened yet."""
        self._path = folder / "raw.db"
        self._waiting: queue.SimpleQueue[tuple[str, int, bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, daemon=True)

    async def open(self, sessions: int) -> None:
        """Make the table; the sessions need none."""
        del sessions
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def step(self, session: int, number: int, payload: bytes) -> None:
        """Append one event and return once it is durable."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._waiting.put((f"s{session}", number, payload, done))
        await done

    async def close(self) -> None:
        """Write what waits, then end."""
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join)

    def _write(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, session TEXT, number INTEGER, payload BLOB)"
        )
        while (first := self._waiting.get()) is not None:
            batch = [first]
            while len(batch) < BATCH_MAX and not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    self._waiting.put(None)
                    break
                batch.append(more)
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO events (session, number, payload) VALUES (?, ?, ?)", [row[:3] for row in batch]
            )
            connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(resolve, [row[3] for row in batch])
        connection.close()


def resolve(futures: list[asyncio.Future[None]]) -> None:
    """Answer everybody of one batch in one hop to the loop."""
    for future in futures:
        if not future.done():
            future.set_result(None)
