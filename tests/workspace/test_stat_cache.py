"""The stat cache: what did not change is not read again, and every change is seen all the same."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harnessd.workspace.checkpoints import Checkpoints


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    root.mkdir()
    for number in range(6):
        (root / f"f{number}").write_bytes(f"content {number}\n".encode() * 100)
    return root


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Checkpoints]:
    room = Checkpoints(tmp_path / "state")
    yield room
    room.close()


def test_what_did_not_change_is_not_read_again(root: Path, room: Checkpoints) -> None:
    time.sleep(0.05)
    assert room.take(str(root)).read_files == 6
    assert room.take(str(root)).read_files == 0
    (root / "f2").write_text("x")
    assert room.take(str(root)).read_files == 1


# git calls it racily clean: the same size, and a time that tells nothing.
def test_an_edit_within_the_same_tick_is_seen(root: Path, room: Checkpoints) -> None:
    seen = []
    for step in range(200):
        (root / "f0").write_bytes(b"%05d" % step)
        manifest = room.take(str(root)).manifest
        seen.append(room.read(str(root), manifest, "f0"))
    assert seen == [b"%05d" % step for step in range(200)]


def test_an_edit_with_the_old_time_put_back_is_seen(root: Path, room: Checkpoints) -> None:
    time.sleep(0.05)
    room.take(str(root))
    facts = (root / "f0").stat()
    (root / "f0").write_bytes(b"CONTENT 0\n" * 100)
    os.utime(root / "f0", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    manifest = room.take(str(root)).manifest
    assert room.read(str(root), manifest, "f0") == b"CONTENT 0\n" * 100


def test_a_dirty_list_sees_its_paths_and_what_is_new_around_them(root: Path, room: Checkpoints) -> None:
    room.take(str(root))
    (root / "new" / "deep").mkdir(parents=True)
    (root / "new" / "deep" / "x").write_text("x")
    (root / "f0").unlink()
    (root / "f1").write_text("not on the list")
    manifest = room.take(str(root), ["new/deep/x", "f0"]).manifest
    assert room.read(str(root), manifest, "new/deep/x") == b"x"
    assert room.read(str(root), manifest, "f0") is None
    assert room.read(str(root), manifest, "f1") == b"content 1\n" * 100
    # A link on the way leads elsewhere: then everything is looked at.
    (root / "link").symlink_to("new")
    room.take(str(root), ["link"])
    (root / "new" / "deep" / "x").write_text("through the link")
    manifest = room.take(str(root), ["link/deep/x"]).manifest
    assert room.read(str(root), manifest, "new/deep/x") == b"through the link"
    assert room.read(str(root), manifest, "f1") == b"not on the list"


def test_the_same_path_as_another_folder_is_looked_at_anew(tmp_path: Path, root: Path, room: Checkpoints) -> None:
    room.take(str(root))
    root.rename(tmp_path / "old")
    root.mkdir()
    (root / "f0").write_text("other")
    manifest = room.take(str(root), ["f0"]).manifest
    assert room.read(str(root), manifest, "f0") == b"other"
    assert room.read(str(root), manifest, "f1") is None
