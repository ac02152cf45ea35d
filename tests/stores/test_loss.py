"""Silent loss becomes an alarm: files swapped under the daemon, a log that lost its end, a changed history."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from harnessd.domain.failure import HarnessError, StoreLost
from harnessd.domain.record import AppendNode
from harnessd.stores import open_store
from tests.stores.scenes import NOW, assistant, draft, opened, running, submitted, user

NAMES = ("harnessd.db", "harnessd.db-wal", "harnessd.db-shm", "harnessd.db.acked")


def deleted(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(b"")
    copy.replace(path)


def moved_away(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


# In a child, always: a copy made by this process would drop the store's locks (closing any descriptor does).
def copied(here: Path, there: Path) -> None:
    there.mkdir()
    subprocess.run(["cp", *(str(here / name) for name in NAMES), str(there)], check=True)


@pytest.mark.parametrize("name", NAMES[:3])
@pytest.mark.parametrize("fault", [deleted, replaced, moved_away])
async def test_a_file_gone_under_the_daemon_is_seen_before_the_next_answer(
    tmp_path: Path, name: str, fault: Callable[[Path], None]
) -> None:  # F12, G17
    store = open_store(tmp_path / "harnessd.db")
    await store.open("a1")
    try:
        await submitted(store)
        fault(tmp_path / name)
        answers = await asyncio.gather(*(store.submit(draft(), NOW) for _ in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreLost] * 3
        assert str(tmp_path / name) in str(answers[0])
        with pytest.raises(StoreLost):  # and it stays so: fail-stop
            await store.submit(draft(), NOW)
    finally:
        await store.close()


async def test_a_file_that_goes_during_the_commit_is_seen_too(tmp_path: Path) -> None:  # F12
    path = tmp_path / "harnessd.db"

    def fault(name: str) -> None:
        if name == "J27-before" and armed:
            path.with_name("harnessd.db-wal").unlink()

    armed: list[bool] = []
    store = open_store(path, crashpoint=fault)
    await store.open("a1")
    try:
        await submitted(store)
        armed.append(True)
        with pytest.raises(StoreLost):
            await store.submit(draft(), NOW)
    finally:
        await store.close()


async def live_copy(tmp_path: Path) -> Path:
    """A store as a crash leaves it: 20 acknowledged commits, most of them in the log."""
    here, there = tmp_path / "live", tmp_path / "crashed"
    async with opened(here / "harnessd.db") as store:
        for _ in range(20):
            await submitted(store)
        copied(here, there)
    return there / "harnessd.db"


async def test_a_crashed_store_opens_with_all_it_acknowledged(tmp_path: Path) -> None:
    path = await live_copy(tmp_path)
    async with opened(path) as store:
        assert (await store.counts())["queued"] == 20
        assert store.epoch == 2


@pytest.mark.parametrize("share", [0.999, 0.9, 0.5, 0.1, 0.0])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
async def test_a_log_that_lost_its_end_raises_the_alarm(tmp_path: Path, damage: str, share: float) -> None:  # F11, G17
    path = await live_copy(tmp_path)
    log = path.with_name("harnessd.db-wal")
    content = bytearray(log.read_bytes())
    place = int(len(content) * share)
    if damage == "cut":
        del content[place:]
    else:
        content[place] ^= 0x10
    log.write_bytes(content)
    # What SQLite itself makes of it: a sound file.
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    shutil.copy(log, path.with_name("copy.db-wal"))
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with pytest.raises(StoreLost) as caught:
        await open_store(path).open("a1")
    assert "harnessd restore FILE" in caught.value.remedy
    with pytest.raises(StoreLost):  # it is not forgotten by trying again
        await open_store(path).open("a1")


async def test_a_store_swapped_for_another_raises_the_alarm(tmp_path: Path) -> None:
    async with opened(tmp_path / "a" / "harnessd.db") as store:
        await submitted(store)
    async with opened(tmp_path / "b" / "harnessd.db") as store:
        for _ in range(9):
            await submitted(store)
    shutil.copy(tmp_path / "b" / "harnessd.db", tmp_path / "a" / "harnessd.db")
    with pytest.raises(StoreLost):
        await open_store(tmp_path / "a" / "harnessd.db").open("a1")


async def test_a_store_deleted_between_two_starts_raises_the_alarm(tmp_path: Path) -> None:
    async with opened(tmp_path / "harnessd.db") as store:
        await submitted(store)
    (tmp_path / "harnessd.db").unlink()
    with pytest.raises(StoreLost):
        await open_store(tmp_path / "harnessd.db").open("a1")
    assert not (tmp_path / "harnessd.db").exists()  # nothing is rebuilt


async def test_a_damaged_mark_is_no_quiet_yes(tmp_path: Path) -> None:
    async with opened(tmp_path / "harnessd.db") as store:
        await submitted(store)
    mark = tmp_path / "harnessd.db.acked"
    text = mark.read_text()
    mark.write_text(text.replace(text.split()[0], "0" * 16))
    with pytest.raises(StoreLost, match="damaged"):
        await open_store(tmp_path / "harnessd.db").open("a1")
    mark.unlink()  # the operator's own word
    async with opened(tmp_path / "harnessd.db") as store:
        assert (await store.counts())["queued"] == 1


async def test_a_zeroed_page_is_told_and_the_rest_stays_readable(tmp_path: Path) -> None:  # e04
    path = tmp_path / "harnessd.db"
    async with opened(path) as store:
        good, lease = await running(store)
        await store.record(lease, [AppendNode(user("n1", None))], NOW)
        bad, lease = await running(store)
        nodes, parent = [], None
        for n in range(40):
            nodes.append(AppendNode(user(f"n{n}", parent, "y" * 3000)))
            parent = f"n{n}"
        await store.record(lease, nodes, NOW)
    content = bytearray(path.read_bytes())
    page = content.index(b"y" * 2000) // 4096 + 5
    content[page * 4096 : (page + 1) * 4096] = bytes(4096)
    path.write_bytes(content)
    async with opened(path) as store:
        with pytest.raises(HarnessError):
            await store.history(bad.id)
        assert [node.id for node in (await store.history(good.id)).path] == ["n1"]
        assert await store.verify(good.id) is None
        assert path.stat().st_size == len(content)  # nothing was rebuilt


CHANGES = {
    "UPDATE nodes SET payload = replace(payload, 'one', 'two') WHERE id = 'n2'": "n2",
    "UPDATE nodes SET parent = NULL WHERE id = 'n2'": "n2",
    "UPDATE nodes SET at = at + 1 WHERE id = 'n3'": "n3",
    "UPDATE nodes SET chain = zeroblob(32) WHERE id = 'n1'": "n1",
    "DELETE FROM nodes WHERE id = 'n2'": "n3",
    "DELETE FROM nodes WHERE id = 'n3'": "n2",
    "DELETE FROM nodes": "root",
    "UPDATE sessions SET pointer = 'n9'": "n9",
    "UPDATE nodes SET seq = seq + 9 WHERE id = 'n1'": "n2",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_history_does_not_fit_its_chain(tmp_path: Path, change: str) -> None:  # I5, e04
    path = tmp_path / "harnessd.db"
    async with opened(path) as store:
        task, lease = await running(store)
        nodes = (user("n1", None), assistant("n2", "n1", "one"), user("n3", "n2"))
        await store.record(lease, [AppendNode(node) for node in nodes], NOW)
        assert await store.verify(task.id) is None
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    async with opened(path) as store:
        sentence = await store.verify(task.id)
        assert sentence is not None
        assert CHANGES[change] in sentence
        if "pointer" in change or "DELETE" in change:
            with pytest.raises(HarnessError, match="damaged"):
                await store.history(task.id)
