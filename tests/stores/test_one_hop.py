"""The one place that reaches into aiosqlite: held to the version it was written for."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from importlib.metadata import version

import pytest

from harnessd.stores.sqlite import OneHopConnection


async def test_a_batch_crosses_to_the_thread_once_and_in_turn() -> None:
    assert version("aiosqlite") == "0.22.1"
    connection = OneHopConnection(lambda: sqlite3.connect(":memory:", isolation_level=None))
    await connection
    try:
        threads: list[int] = []

        def work(inner: sqlite3.Connection) -> int:
            threads.append(threading.get_ident())
            inner.execute("CREATE TABLE t (n)")
            inner.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(1000)])
            return int(inner.execute("SELECT count(*) FROM t").fetchone()[0])

        hop = asyncio.create_task(connection.hop(work))
        await asyncio.sleep(0)
        rows = await connection.execute_fetchall("SELECT sum(n) FROM t")  # queued behind it
        assert await hop == 1000
        assert list(rows) == [(499_500,)]
        assert threads != [threading.get_ident()]
        assert connection._thread.daemon
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await connection.hop(lambda inner: inner.execute("SELECT * FROM nowhere"))
        assert await connection.hop(lambda inner: inner.execute("SELECT 7").fetchone()) == (7,)
    finally:
        await connection.close()
    with pytest.raises(ValueError, match="no active connection"):
        await connection.hop(lambda inner: inner)
