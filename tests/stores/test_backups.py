"""Backups with files, restores that are cut off, and what the old store is asked."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from harnessd.domain.durable.backup import Backup, BackupFolder
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import HarnessError, StoreLost
from harnessd.domain.record import PlanEffect
from harnessd.runtime.crashpoints import RESTORING
from harnessd.stores import open_store, restore
from tests.stores.scenes import NOW, draft, effect, opened, running, submitted


def wanted(folder: Path) -> Backup:
    names = ("checkpoints", "artefacts")
    return Backup(NOW, "0", tuple(BackupFolder(name, str(folder / name)) for name in names))


def tasks_of(database: Path) -> set[str]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        return {row[0] for row in store.execute("SELECT id FROM tasks")}


async def test_files_of_any_name_and_size_come_back(tmp_path: Path) -> None:  # J25, R5.3a
    state = tmp_path / "state"
    names = (b"plain.out", b"caf\xc3\xa9", b"not-\xff-utf8", b"new\nline")
    async with opened(state / "harnessd.db") as store:
        task = await submitted(store)
        folder = state / "artefacts" / task.id
        folder.mkdir(parents=True)
        for name in names:
            Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(name * 3)
        (folder / "large").write_bytes(os.urandom(9 << 20))  # more than two pieces
        (folder / "empty").touch()
        (folder / "link").symlink_to("/etc/hostname")
        os.mkfifo(folder / "pipe")
        await store.backup(str(tmp_path / "b"), wanted(state))
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
    shutil.rmtree(state)
    done = restore(tmp_path / "b", state / "harnessd.db")
    assert done.files == len(kept) == len(names) + 2
    assert done.aside == ()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
    with closing(sqlite3.connect(state / "harnessd.db")) as store_file:
        assert store_file.execute("SELECT count(*) FROM sqlite_master WHERE name LIKE 'backup_%'").fetchone() == (0,)
    async with opened(state / "harnessd.db") as store:
        assert (await store.counts())["queued"] == 1


async def test_a_backup_with_a_damaged_file_or_a_name_that_leads_out_is_refused(tmp_path: Path) -> None:
    # security/archive-slip-and-bomb
    state = tmp_path / "state"
    async with opened(state / "harnessd.db") as store:
        task = await submitted(store)
        (state / "artefacts" / task.id).mkdir(parents=True)
        (state / "artefacts" / task.id / "a").write_bytes(b"x" * 1000)
        await store.backup(str(tmp_path / "b"), wanted(state))
    before = (state / "harnessd.db").read_bytes()
    for statement in (
        "UPDATE backup_pieces SET data = zeroblob(1000)",
        "UPDATE backup_files SET path = 'artefacts/../../out'",
        "UPDATE backup_files SET path = 'elsewhere/x'",
    ):
        shutil.copy(tmp_path / "b", tmp_path / "bad")
        with closing(sqlite3.connect(tmp_path / "bad", isolation_level=None)) as bad:
            bad.execute(statement)
        with pytest.raises(HarnessError, match="not a sound backup"):
            restore(tmp_path / "bad", state / "harnessd.db")
        assert not (tmp_path / "out").exists()
        assert (state / "harnessd.db").read_bytes() == before
        assert not [path for path in state.iterdir() if "restoring" in path.name]


async def test_work_goes_on_while_a_backup_is_made(tmp_path: Path) -> None:
    async with opened(tmp_path / "harnessd.db") as store:
        for _ in range(20):
            await submitted(store, "x" * 100_000)
        copying = asyncio.create_task(store.backup(str(tmp_path / "b")))
        written = 0
        while not copying.done():
            await submitted(store)
            written += 1
        assert await copying > 2_000_000
    assert written > 0
    assert len(tasks_of(tmp_path / "b")) >= 20


async def test_a_store_that_is_closed_does_not_wait_for_a_backup(tmp_path: Path) -> None:
    reached, closing = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "J25-before":
            reached.set()
            closing.wait(20)

    store = open_store(tmp_path / "harnessd.db", crashpoint=hold)
    await store.open("a1")
    for _ in range(20):
        await store.submit(draft("x" * 1_000_000), NOW)
    copying = asyncio.create_task(store.backup(str(tmp_path / "b")))
    assert await asyncio.to_thread(reached.wait, 20)
    ending = asyncio.create_task(store.close())
    await asyncio.sleep(0.05)
    closing.set()
    await ending
    with pytest.raises(HarnessError, match="could not be written"):
        await copying
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".b", "b"))]


@pytest.mark.parametrize("point", RESTORING)
async def test_a_restore_that_is_killed_ends_as_one_that_was_not(point: str, tmp_path: Path) -> None:  # J25, I1
    state, backup = tmp_path / "state", tmp_path / "b"
    database = state / "harnessd.db"
    async with opened(database) as store:
        old = await submitted(store)
        (state / "checkpoints").mkdir()
        (state / "checkpoints" / "one").write_bytes(b"1")
        await store.backup(str(backup), wanted(state))
        new = await submitted(store)
    whole = backup.read_bytes()
    words = [sys.executable, "-m", "tests.stores.restoring", str(backup), str(database), point]
    done = await asyncio.to_thread(subprocess.run, words, check=False, timeout=60)
    assert done.returncode == -9
    assert backup.read_bytes() == whole
    if point in ("J25-restore", "J25-replace"):
        assert tasks_of(database) == {old.id, new.id}
    elif point == "J25-aside":  # no daemon starts as if nothing had been there
        with pytest.raises(StoreLost, match="lost work"):
            await open_store(database).open("a1")
    again = restore(backup, database)
    assert tasks_of(database) == {old.id}
    assert again.live == (old.id,)
    assert (state / "checkpoints" / "one").read_bytes() == b"1"
    assert backup.read_bytes() == whole
    assert not [path for path in state.iterdir() if "restoring" in path.name]
    async with opened(database) as store:
        assert (await store.counts())["queued"] == 1


async def test_the_old_store_tells_what_cannot_be_undone_and_was_done_since(tmp_path: Path) -> None:  # R3.13
    database, backup = tmp_path / "harnessd.db", tmp_path / "b"
    async with opened(database) as store:
        task, lease = await running(store)
        other, _ = await running(store)
        await store.backup(str(backup))
        paid = replace(effect("e1"), name="tool/pay", effect_class=EffectClass.IRREVERSIBLE)
        await store.record(lease, [PlanEffect(paid)], NOW)
    done = restore(backup, database)
    assert done.since is not None
    assert [(act.task, act.name, act.state) for act in done.since] == [(task.id, "tool/pay", "intent")]
    assert done.doubted == (task.id,)
    async with opened(database) as store:
        (told,) = (await store.history(task.id)).messages
        assert "tool/pay" in told.text
        assert (await store.history(task.id)).task.counters.doubt
        assert not (await store.history(other.id)).task.counters.doubt
        assert "Nothing that cannot be undone" in (await store.history(other.id)).messages[0].text
    # The second time the history has forked, and the old store no longer knows: nobody is told that all is well.
    async with opened(database) as store:
        await store.release_all(NOW)
        mark = database.with_name("harnessd.db.acked")
    mark.write_text("damaged")
    assert set(restore(backup, database).doubted) == {task.id, other.id}
