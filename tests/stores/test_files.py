"""The file as a whole: every earlier version is migrated, a newer one refused, a backup is whole and comes back."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from harnessd.domain.failure import HarnessError, StoreLocked, StoreLost, StoreTooNew
from harnessd.domain.record import AppendNode
from harnessd.stores import open_store, restore
from harnessd.stores.database import Migration, migrations, queries
from harnessd.stores.files import APPLICATION_ID, Found, examine, migrate
from tests.stores.scenes import NOW, draft, opened, running, submitted, user

GOLDEN = Path(__file__).parent / "golden"


def test_migrations_are_numbered_without_gaps() -> None:
    steps = migrations()
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert all(step.statements for step in steps)


def test_every_query_can_be_prepared(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as connection:
        connection.create_function("chain", 2, lambda *_: b"")
        migrate(connection, Found(0), lambda _: None)
        for name, text in queries().items():
            nothing = dict.fromkeys(("now", "task", *(word.strip(",()") for word in _parameters(text))))
            connection.execute(f"EXPLAIN {text}", nothing).fetchall()
            assert name


def _parameters(text: str) -> list[str]:
    return [word.split(":")[-1] for word in text.replace("(", " ").replace(")", " ").split() if ":" in word]


@pytest.mark.parametrize("version", range(1, len(migrations()) + 1))
async def test_a_file_of_each_earlier_version_is_brought_to_ours(tmp_path: Path, version: int) -> None:  # J22, G16
    path = tmp_path / "harnessd.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((GOLDEN / f"version_{version}.sql").read_text(encoding="utf-8"))
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    async with opened(path) as store:
        (task,) = await store.claim("a1", 1, NOW, 20)
        assert task.draft.prompt == "Port the importer"
        history = await store.history(task.id)
        assert [node.id for node in history.path] == ["n1", "n2", "n3"]
        assert [effect.id for effect in history.effects] == ["e1", "e2"]
        assert history.task.counters.turns == 1
        assert await store.verify(task.id) is None
        assert len(await store.decisions(task.id)) == 1
        await submitted(store)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(migrations()),)


async def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "harnessd.db"
    async with opened(path) as store:
        await submitted(store)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {len(migrations()) + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreTooNew) as caught:
        await open_store(path).open("a1")
    assert caught.value.exit_code == 78
    assert "newer harnessd" in caught.value.remedy
    assert path.read_bytes() == before


def test_a_step_that_fails_leaves_the_version_before_it(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as connection:
        migrate(connection, Found(0), lambda _: None)
        found = examine(connection, tmp_path / "x.db")
        bad = Migration(len(migrations()) + 1, "bad", ("CREATE TABLE extra (a)", "INSERT INTO nowhere VALUES (1)"))
        with pytest.raises(sqlite3.OperationalError):
            migrate(connection, found, lambda _: None, (*migrations(), bad))
        assert examine(connection, tmp_path / "x.db") == found
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchone() == (0,)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


# --- backup and restore -----------------------------------------------------------------------------------------------


async def test_a_backup_made_at_work_is_whole(tmp_path: Path) -> None:  # J25
    target = tmp_path / "backups" / "b.db"
    target.parent.mkdir()
    target.write_text("yesterday's")
    async with opened(tmp_path / "harnessd.db") as store:
        task, lease = await running(store)
        await store.record(lease, [AppendNode(user("n1", None))], NOW)
        work = [asyncio.create_task(store.submit(draft(), NOW)) for _ in range(50)]
        await store.backup(str(target))
        await asyncio.gather(*work)
    assert {path.name for path in target.parent.iterdir()} == {"b.db"}
    assert target.stat().st_mode & 0o777 == 0o600
    async with opened(target) as store:
        assert [node.id for node in (await store.history(task.id)).path] == ["n1"]


async def test_a_backup_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    async with opened(tmp_path / "harnessd.db") as store:
        with pytest.raises(HarnessError, match="could not be written"):
            await store.backup(str(tmp_path / "nowhere" / "b.db"))
        for own in ("harnessd.db", "harnessd.db-wal", "harnessd.db.acked", "../" + tmp_path.name + "/harnessd.db"):
            with pytest.raises(HarnessError, match="is the store itself"):
                await store.backup(str(tmp_path / own))
        await submitted(store)


async def test_a_restored_backup_is_the_store_again(tmp_path: Path) -> None:
    path, backup = tmp_path / "harnessd.db", tmp_path / "b.db"
    async with opened(path) as store:
        kept = await submitted(store, key="k")
        await store.backup(str(backup))
        lost = await submitted(store)
        with pytest.raises(StoreLocked):
            restore(backup, path)
    shutil.copy(backup, tmp_path / "plain.db")
    path.unlink()
    shutil.copy(backup, path)  # by hand: the loss is noticed
    with pytest.raises(StoreLost):
        await open_store(path).open("a1")
    done = restore(backup, f"sqlite:{path}")  # by the command: it is accepted
    async with opened(path) as store:
        assert (await store.counts())["queued"] == 1
        assert not isinstance(await store.find(kept.id), str)
        new = await submitted(store)
        assert new.id >= lost.id
    assert done.commit > 0
    assert done.live == (kept.id,)
    replaced = [one for one in tmp_path.iterdir() if ".replaced-" in one.name]
    # The old file was moved aside with its log, not deleted.
    assert {one.name.partition(".replaced-")[0] for one in replaced} == {"harnessd.db"}
    assert backup.read_bytes() == (tmp_path / "plain.db").read_bytes()


async def test_a_bad_backup_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "harnessd.db"
    async with opened(path) as store:
        for _ in range(50):
            await submitted(store, "x" * 1000)
        await store.backup(str(tmp_path / "b.db"))
    before = path.read_bytes()
    torn = tmp_path / "torn.db"
    torn.write_bytes((tmp_path / "b.db").read_bytes()[:-20_000])
    empty = tmp_path / "empty.db"
    empty.write_bytes(b"")
    text = tmp_path / "text.db"
    text.write_text("not a database" * 1000)
    for bad in (torn, empty, text, tmp_path / "nowhere.db", path):
        with pytest.raises(HarnessError) as caught:
            restore(bad, path)
        assert caught.value.remedy
    assert path.read_bytes() == before
    async with opened(path) as store:
        assert (await store.counts())["queued"] == 50
