"""kill -9 at any moment of a checkpoint or a restore: in the end the workspace is exactly A or exactly B."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harnessd.workspace.checkpoints import Checkpoints
from tests.workspace.trees import SCRATCH, Known, look

KILLS = int(os.environ.get("HARNESSD_KILLS", "12"))
ROOT = Path(__file__).parents[2]


@pytest.fixture
def scratch() -> Iterator[Path]:
    with TemporaryDirectory(dir=SCRATCH) as folder:
        yield Path(folder)


class Scene:
    """Two states of one workspace, both captured, and processes that are killed."""

    def __init__(self, scratch: Path) -> None:
        self.root, self.state = scratch / "ws", scratch / "state"
        self.root.mkdir()
        self._first()
        self.a = look(self.root)
        room = Checkpoints(self.state)
        self.at_a = room.take(str(self.root)).manifest
        self._second()
        self.b = look(self.root)
        self.at_b = room.take(str(self.root)).manifest
        room.close()

    def _first(self) -> None:
        for number in range(12):
            (self.root / f"file{number}").write_bytes(f"first {number}\n".encode() * 50)
        (self.root / "gone").mkdir()
        (self.root / "gone" / "inner").write_text("inner")
        (self.root / "locked").mkdir()
        (self.root / "locked" / "kept").write_text("kept")
        (self.root / "locked").chmod(0o555)
        (self.root / "shape").mkdir()
        (self.root / "shape" / "x").write_text("x")
        (self.root / "link").symlink_to("file1")
        os.link(self.root / "file2", self.root / "twin2")
        git = self.root / "sub" / ".git"
        for folder in ("objects", "refs/heads"):
            (git / folder).mkdir(parents=True)
        (git / "HEAD").write_text("ref: refs/heads/main\n")

    def _second(self) -> None:
        for number in range(0, 12, 2):
            (self.root / f"file{number}").write_bytes(f"second {number}\n".encode() * 60)
        (self.root / "file1").unlink()
        (self.root / "file3").chmod(0o600)
        shutil.rmtree(self.root / "gone")
        (self.root / "locked").chmod(0o755)
        (self.root / "locked" / "kept").unlink()
        (self.root / "locked").chmod(0o500)
        shutil.rmtree(self.root / "shape")
        (self.root / "shape").write_text("a file now")
        (self.root / "file5").unlink()
        (self.root / "file5").mkdir()
        (self.root / "file5" / "below").write_text("below")
        (self.root / "link").unlink()
        (self.root / "link").symlink_to("file7")
        (self.root / "new").mkdir()
        (self.root / "new" / "made").write_text("made")

    def start(self, what: str, point: str, *rest: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "tests.workspace.cut_off", what, str(self.root), str(self.state), point, *rest]
        return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def run(self, what: str, point: str, *rest: str) -> int:
        process = self.start(what, point, *rest)
        process.communicate(timeout=60)
        return process.returncode


def ended(scene: Scene, target: str, safety: str) -> Known:
    """The same call again, as the record asks for: it ends what was begun."""
    room = Checkpoints(scene.state)
    try:
        assert room.restore(str(scene.root), target, safety, "cut").state == "done"
    finally:
        room.close()
    return look(scene.root)


# R5.3, I6: J16 at each file of a restore.
@pytest.mark.parametrize("hit", [1, 2, 7, 15, 22, 30, 38])
def test_a_restore_that_is_cut_off_at_a_file_ends_as_it_was_meant(scratch: Path, hit: int) -> None:
    scene = Scene(scratch)
    killed = scene.run("restore", f"J16-file:{hit}", scene.at_a, scene.at_b, "cut") == -9
    assert killed or hit > 30
    assert ended(scene, scene.at_a, scene.at_b) == scene.a
    # and whoever would rather have the other one gets that, exactly
    assert ended(scene, scene.at_b, scene.at_a) == scene.b


# R5.3, I6: at random moments, again and again, in either direction.
def test_random_kills_leave_exactly_one_of_two_states(scratch: Path) -> None:
    luck = random.Random(5)
    scene = Scene(scratch)
    began = time.monotonic()
    assert scene.run("restore", "any:0", scene.at_a, scene.at_b, "cut") == 0
    whole_s = time.monotonic() - began
    target, safety = scene.at_b, scene.at_a
    cut = 0
    for _ in range(KILLS):
        process = scene.start("restore", "any:0", target, safety, "cut")
        time.sleep(luck.uniform(0.3, 1.0) * whole_s)
        process.kill()
        cut += process.wait() == -9
        process.communicate()
        if luck.random() < 0.3:
            target, safety = safety, target  # a person changes their mind; both are still whole
        assert ended(scene, target, safety) == (scene.a if target == scene.at_a else scene.b)
        target, safety = safety, target
    assert cut


# J15: contents without a row are rubbish that does no harm.
@pytest.mark.parametrize("point", ["J15-before:1", "J15:1"])
def test_a_checkpoint_that_is_cut_off_changes_nothing(scratch: Path, point: str) -> None:
    scene = Scene(scratch)
    (scene.root / "later").write_text("later")
    before = look(scene.root)
    assert scene.run("take", point) == -9
    assert look(scene.root) == before
    room = Checkpoints(scene.state)
    try:
        later = room.take(str(scene.root)).manifest
        assert room.restore(str(scene.root), scene.at_a, later, "t").state == "done"
        assert look(scene.root) == scene.a
        assert room.restore(str(scene.root), later, scene.at_a, "t").state == "done"
        assert look(scene.root) == before
    finally:
        room.close()


def test_kills_while_contents_are_written(scratch: Path) -> None:
    scene = Scene(scratch)
    luck = random.Random(9)
    for round_ in range(max(3, KILLS // 3)):
        for number in range(40):
            (scene.root / f"large{number}").write_bytes(luck.randbytes(200_000))
        process = scene.start("take", "any:0")
        time.sleep(luck.uniform(0.05, 0.4))
        process.kill()
        process.communicate()
        room = Checkpoints(scene.state)
        try:
            here, known = room.take(str(scene.root)).manifest, look(scene.root)
            assert room.restore(str(scene.root), scene.at_a, here, f"r{round_}").state == "done"
            assert look(scene.root) == scene.a
            assert room.restore(str(scene.root), here, scene.at_a, f"r{round_}").state == "done"
            assert look(scene.root) == known
        finally:
            room.close()
