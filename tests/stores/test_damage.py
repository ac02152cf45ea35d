"""Damaged files of a crashed store: the share of `make damage` that every run of the tests takes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.disks.damage import damaged
from harnessd.domain.failure import HarnessError
from harnessd.stores import open_store
from tests.stores.scenes import opened, submitted


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_what_600_damages_drop_is_never_dropped_in_silence() -> None:  # G17, F11
    seen = await damaged(600, seed=7)
    assert seen.silent == []
    assert seen.alarmed >= 100
    assert seen.told > 10


async def test_a_start_that_fails_on_a_damaged_page_gives_the_lock_back(tmp_path: Path) -> None:
    path = tmp_path / "harnessd.db"
    async with opened(path) as store:
        await submitted(store)
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_tasks_1'"
        ).fetchone()
    content = bytearray(path.read_bytes())
    content[(root - 1) * 4096 : root * 4096] = bytes(4096)
    path.write_bytes(content)
    for _ in range(2):  # not refused for the lock the second time
        with pytest.raises(HarnessError, match="malformed"):
            await open_store(path).open("a1")
