"""One owner: the lock, the epoch, places where a lock means nothing, files that cannot be used."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from harnessd.domain.durable.file_systems import file_system_of
from harnessd.domain.failure import ConfigError, HarnessError, StoreLocked, StoreLost
from harnessd.stores import database_path, open_store
from tests.stores.scenes import NOW, draft, opened, submitted

HOLD = """
import asyncio, sys
from pathlib import Path
from harnessd.stores import open_store
async def main():
    await open_store(Path(sys.argv[1])).open("first")
    print("held", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""

LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


async def test_a_second_daemon_is_refused_and_the_next_gets_it_after_a_kill(tmp_path: Path) -> None:  # F14, I11
    path = tmp_path / "harnessd.db"
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    try:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked) as caught:
            await open_store(path).open("second")
        assert caught.value.exit_code == 75
        assert f"first, pid {first.pid}" in caught.value.sentence
        assert caught.value.remedy
    finally:
        first.kill()
        first.communicate()
    async with opened(path, "second") as store:
        assert store.epoch == 2


async def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:  # F14
    async with opened(tmp_path / "harnessd.db"):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        async with opened(tmp_path / "harnessd.db") as store:
            assert store.epoch == 2
    finally:
        child.kill()
        child.wait()


async def test_an_owner_whose_epoch_was_raised_writes_no_more(tmp_path: Path) -> None:  # F15, I11
    path = tmp_path / "harnessd.db"
    async with opened(path, "first") as first:
        await submitted(first)
        path.with_name("harnessd.db.lock").unlink()  # somebody tidied up
        async with opened(path, "second") as second:
            await submitted(second)
            with pytest.raises(StoreLost, match="taken this store over"):
                await first.submit(draft(), NOW)
            assert (await second.counts())["queued"] == 2


async def test_a_lock_by_another_program_is_waited_for_and_then_told(tmp_path: Path) -> None:  # F13
    path = tmp_path / "harnessd.db"
    async with opened(path, pragmas=("PRAGMA busy_timeout = 50",)) as store:
        holder = subprocess.Popen(
            [sys.executable, "-c", LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked, match="Another program"):
            await store.submit(draft(), NOW)
        holder.communicate()
        await submitted(store)
        assert (await store.counts())["queued"] == 1


async def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:  # I10
    (tmp_path / "file").write_text("")
    with pytest.raises(HarnessError) as caught:
        await open_store(tmp_path / "file" / "harnessd.db").open("a1")
    assert "store.url" in caught.value.remedy
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(HarnessError, match="cannot be opened"):
        await open_store(tmp_path / "folder.db").open("a1")
    async with opened(tmp_path / "harnessd.db"):  # nothing of the failures is left over
        pass


async def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("This is not a database at all, but long enough to have a header." * 40)
    before = text.read_bytes()
    with pytest.raises(StoreLost, match="not a sound database"):
        await open_store(text).open("a1")
    assert text.read_bytes() == before
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE t (a)")
    with pytest.raises(HarnessError, match="another program"):
        await open_store(foreign).open("a1")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:/var/lib/h.db", "/var/lib/h.db"),
        ("sqlite:///var/lib/h.db", "/var/lib/h.db"),
        ("sqlite:state/h.db", f"{Path.cwd()}/state/h.db"),
        ("state/h.db", f"{Path.cwd()}/state/h.db"),
        ("/var/lib/a:b.db", "/var/lib/a:b.db"),
    ],
)
def test_a_url_names_a_file(url: str, path: str) -> None:
    assert str(database_path(url)) == path


@pytest.mark.parametrize("url", ["mysql:x", "sqlite:", "sqlite:///"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="sqlite:PATH"):
        open_store(url)


async def test_odd_characters_in_the_path_are_just_characters(tmp_path: Path) -> None:
    path = tmp_path / "a b?mode=memory#%41é" / "harnessd.db"
    async with opened(path) as store:
        await submitted(store)
    assert path.is_file()


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:41 / /srv rw shared:1 - nfs4 host:/srv rw
31 22 0:42 / /srv/with\\040space rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/home/a", "ext4"), ("/srv/x", "nfs4"), ("/srv", "nfs4"), ("/srvx", "ext4"), ("/srv/with space/a", "tmpfs")],
)
def test_the_file_system_of_a_folder_is_found(folder: str, kind: str) -> None:  # F15
    assert file_system_of(folder, MOUNTS) == kind
