"""A server process that does not answer keeps no write for ever. It is stopped here; a cut network looks the same."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from harnessd.domain.ports import Submitted
from tests.stores.postgres_server import new_store, shared_server
from tests.stores.scenes import NOW, draft, opened

PATIENCE_S = 4.0


@contextlib.contextmanager
def stopped_backends(database: str) -> Iterator[list[int]]:
    """The server's processes for this database, stopped until the end of the block."""
    told = shared_server().ask(f"SELECT pid FROM pg_stat_activity WHERE datname = '{database}'")
    pids = [int(line) for line in told.split()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield pids
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def test_a_write_goes_on_where_its_connection_does_not_answer() -> None:  # F31, I4
    url = new_store()
    async with opened(url, patience_s=PATIENCE_S) as store:
        assert isinstance(await store.submit(draft("before", key="k1"), NOW), Submitted)
        with stopped_backends(url.rpartition("/")[2]) as pids:
            assert pids
            # The server's other processes answer: within its patience the store has found one.
            answer = await store.submit(draft("meanwhile", key="k2"), NOW)
            assert isinstance(answer, Submitted)
            assert await store.find(answer.task.id) is not None
        again = await store.submit(draft("meanwhile", key="k2"), NOW)
        assert isinstance(again, Submitted)
        assert again.task.id == answer.task.id
