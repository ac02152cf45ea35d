"""Scenes of rollbacks that went wrong elsewhere: the shell scripts are run for real, the workspace is taken back."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from harnessd.domain.workspace import Restored
from harnessd.workspace.checkpoints import Checkpoints, Limits
from tests.workspace.trees import Known, look

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


@dataclass
class Scene:
    """A workspace `ws` in an empty folder, and its checkpoints beside it."""

    folder: Path
    room: Checkpoints
    kept: list[str]

    @property
    def root(self) -> Path:
        return self.folder / "ws"

    def sh(self, script: str, *, fails: bool = False) -> str:
        """A part of the scene, begun in `ws`."""
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.root, env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert fails or done.returncode == 0, done.stderr
        return done.stdout + (done.stderr if fails else "")

    def take(self) -> str:
        """A checkpoint."""
        self.kept.append(self.room.take(str(self.root)).manifest)
        return self.kept[-1]

    def back(self, to: int = 0, **choice: tuple[str, ...]) -> Restored:
        """Rolled back to a checkpoint, with the safety snapshot first."""
        safety = self.take()
        return self.room.restore(str(self.root), self.kept[to], safety, f"t{len(self.kept)}", **choice)

    def look(self) -> Known:
        return look(self.root)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    (tmp_path / "ws").mkdir()
    room = Checkpoints(tmp_path / "state", Limits(max_file=1 << 20, exclude=("*.cache", "build/")))
    yield Scene(tmp_path, room, [])
    room.close()


SCENES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "rollbacks.yaml").read_text(encoding="utf-8"))


# R5.3: every one of them comes back byte for byte, and forth again (f02 f04 f08 f09 f18 f21 and their kin).
@pytest.mark.parametrize("name", SCENES)
def test_a_scene_comes_back_and_forth(scene: Scene, name: str) -> None:
    scene.sh(SCENES[name]["setup"])
    first = scene.look()
    scene.take()
    scene.sh(SCENES[name]["agent_does"])
    second = scene.look()
    assert second != first, "the scene does something"
    assert scene.back().state == "done"
    assert scene.look() == first
    assert scene.back(1).state == "done"  # the state before the rollback is itself a checkpoint
    assert scene.look() == second
    assert scene.back().state == "done"
    assert scene.look() == first


# f13: neither opened nor hashed nor deleted, told by name.
def test_what_is_too_large_is_left_as_it_is(scene: Scene) -> None:
    scene.sh("truncate -s 3G big.bin; echo a>a; mkfifo pipe; mkdir build; echo o>build/o; echo c>x.cache")
    began = time.monotonic()
    first = scene.room.take(str(scene.root))
    scene.kept.append(first.manifest)
    assert time.monotonic() - began < 10
    assert first.read_files == 1
    assert [(one.path, one.why) for one in first.uncovered or ()] == [
        ("big.bin", "larger than max_file"),
        ("build", "excluded"),
        ("pipe", "a pipe"),
        ("x.cache", "excluded"),
    ]
    scene.sh(
        "echo b>a; printf z | dd of=big.bin conv=notrunc bs=1 seek=10 2>/dev/null; echo 2 > build/o; rm x.cache pipe"
    )
    scene.sh("truncate -s 2G new.bin; mkdir n; truncate -s 2G n/big; mkfifo n/pipe")
    report = scene.back()
    assert report.state == "done"
    assert scene.sh("cat a") == "a\n"
    assert (scene.root / "big.bin").stat().st_size == 3 << 30
    assert scene.sh("head -c 11 big.bin | tail -c 1; cat build/o") == "z2\n"
    # What the agent made and no checkpoint holds is not deleted either, and neither is the folder around it.
    assert (scene.root / "new.bin").exists()
    assert (scene.root / "n" / "big").exists()
    assert set(report.left) == {"new.bin", "n", "n/big", "n/pipe", "x.cache", "pipe"}


def test_what_no_checkpoint_holds_is_not_replaced_without_a_word(scene: Scene) -> None:
    scene.sh("echo log>log; mkdir d; echo x>d/x; echo a>a")
    scene.take()
    scene.sh("truncate -s 2M log; rm -r d; truncate -s 3M d; echo b>a")
    before = scene.look()
    report = scene.back()
    assert report.state == "refused"
    assert set(report.blocked) == {"log", "d"}
    assert scene.look() == before, "nothing was touched"
    kept = scene.back(keep=("log", "d"))
    assert kept.state == "done"
    assert scene.sh("cat a; stat -c %s log d") == "a\n2097152\n3145728\n"
    assert scene.back(overwrite=("log", "d")).state == "done"
    assert scene.sh("cat a log d/x") == "a\nlog\nx\n"


# f19: half way is taken back, the files are named.
@pytest.mark.parametrize("hinder", ["mount --bind b b", "chattr +i b"])
def test_a_restore_that_cannot_be_done_whole_is_taken_back(scene: Scene, hinder: str) -> None:
    scene.sh("echo a>a; echo b>b; echo c>c")
    scene.take()
    scene.sh("echo 2>a; echo 2>b; rm c; echo n>n")
    if subprocess.run(["bash", "-c", hinder], cwd=scene.root, capture_output=True, check=False).returncode:
        pytest.skip(f"no right to {hinder}")
    try:
        before = scene.look()
        report = scene.back()
        assert report.state == "reverted"
        assert list(report.failed) == ["b"]
        assert scene.look() == before
    finally:
        subprocess.run(["bash", "-c", "umount b || chattr -i b"], cwd=scene.root, capture_output=True, check=False)
    assert scene.back().state == "done"
    assert scene.sh("cat a b c; ls") == "a\nb\nc\na\nb\nc\n"


# f17: who goes on writing is named; with the processes ended it is exact.
def test_a_process_that_goes_on_writing_is_noticed(scene: Scene) -> None:
    scene.sh("echo a>a")
    scene.take()
    writer = subprocess.Popen(
        ["bash", "-c", "i=0; while :; do i=$((i+1)); echo $i > a; echo $i > made_$i; done"],
        cwd=scene.root,
        start_new_session=True,
    )
    try:
        time.sleep(0.3)
        assert scene.back().state in ("disturbed", "reverted", "stuck")
    finally:
        os.killpg(writer.pid, signal.SIGKILL)
        writer.wait()
    assert scene.back().state == "done"
    assert scene.sh("cat a; ls") == "a\na\n"


# --- the person's own version control ---------------------------------------------------------------------------------


# f16: files, index and HEAD as then; what was committed since can be reached, and is named.
def test_commits_made_since_are_kept_and_named(scene: Scene) -> None:
    scene.sh("git init -q -b main; echo a>a; git add a; git commit -qm 1")
    scene.take()
    scene.sh("echo b>a; git commit -qam 2; git checkout -q -b topic; echo c>a; git commit -qam 3; git gc -q")
    two, three = (scene.sh(f"git rev-parse {name}").strip() for name in ("main", "topic"))
    before = scene.look()
    report = scene.back()
    assert report.state == "done"
    assert scene.sh("cat a; git branch --format '%(refname:short)'; git status --short") == "a\nmain\n"
    assert scene.sh("git log --oneline --all --format=%s | sort") == "1\n2\n3\n"
    assert dict(report.rescued) == {two: "refs/heads/main", three: "refs/heads/topic"}
    scene.sh("git fsck --strict")
    assert scene.back(1).state == "done"
    after = scene.look()
    # Objects stay whenever they were written; all else is as it was.
    assert {path: what for path, what in after.items() if b"/objects/" not in path} == {
        path: what for path, what in before.items() if b"/objects/" not in path
    }
    assert before.items() <= after.items()
    assert scene.sh("git rev-parse --abbrev-ref HEAD; cat a") == "topic\nc\n"


@pytest.mark.parametrize(
    "agent",
    [
        "git commit -q --allow-empty -m x; git reset -q --hard HEAD~1",
        "git stash -q; git stash drop -q",
        "git branch -D side -q; git tag t; git pack-refs --all; git gc -q --prune=now",
        "git config user.name evil; echo exit > .git/hooks/post-checkout; chmod 755 .git/hooks/post-checkout",
        "rm -rf .git",
        "echo garbage > .git/HEAD; rm -rf .git/refs",
        "rm -rf .git; git init -q; git commit -q --allow-empty -m other",
        "rm -rf .git/objects",
        "git rm -q --cached a; git add -A; git commit -qm y; git checkout -q --detach HEAD~1",
    ],
)
def test_a_repository_that_an_agent_spoiled_is_whole_again(scene: Scene, agent: str) -> None:
    scene.sh("git init -q -b main; echo a>a; git add a; git commit -qm 1; git branch side; echo w>>a; echo u>u")
    scene.sh("git stash -q -u; git stash apply -q")
    state = "git log --all --format=%H; git branch; git stash list; git status --short; cat .git/config .git/HEAD"
    state += "; git fsck --no-dangling"
    before = scene.sh(state)
    scene.take()
    scene.sh(agent)
    assert scene.back().state == "done"
    after = scene.sh(state)
    kept = set(before.splitlines())
    assert kept <= set(after.splitlines())
    # Beyond that only commits that would be lost otherwise.
    assert all(len(line) == 40 for line in set(after.splitlines()) - kept)


# f23: nothing of the person's configuration runs, and git's own state stays byte for byte.
def test_hooks_filters_and_signing_take_no_part(scene: Scene) -> None:
    scene.sh(
        "git init -q -b main; echo a>a; git add a; git commit -qm 1; git branch side; echo b>a; git stash -q; "
        "mkdir ../hooks; for h in pre-commit post-checkout reference-transaction post-index-change fsmonitor; do "
        "printf '#!/bin/sh\\ntouch '$PWD'/../hook-ran\\n' > ../hooks/$h; chmod 755 ../hooks/$h; done; "
        "git config core.hooksPath $PWD/../hooks; git config filter.bad.clean false; "
        "git config filter.bad.required true; "
        "git config core.fsmonitor $PWD/../hooks/fsmonitor; git config commit.gpgsign true; "
        "git config init.templateDir /nonexistent; echo '* filter=bad' > .gitattributes"
    )
    shutil.rmtree(scene.folder / "hook-ran", ignore_errors=True)
    (scene.folder / "hook-ran").unlink(missing_ok=True)
    before = look(scene.root / ".git")
    scene.take()
    assert look(scene.root / ".git") == before
    scene.sh("echo c>a; echo n>n")
    assert scene.back().state == "done"
    assert look(scene.root / ".git") == before
    assert not (scene.folder / "hook-ran").exists()


def test_a_submodule_keeps_its_history_too(scene: Scene) -> None:
    scene.sh("git init -q -b main ../lib; cd ../lib; echo l>l; git add l; git commit -qm lib")
    scene.sh(
        "git init -q -b main; git -c protocol.file.allow=always submodule --quiet add ../lib lib; git commit -qm 1"
    )
    first = scene.look()
    scene.take()
    scene.sh("cd lib; echo m>l; git commit -qam m; cd ..; git commit -qam 2")
    commit = scene.sh("git -C lib rev-parse HEAD").strip()
    report = scene.back()
    assert report.state == "done"
    assert scene.sh("cat lib/l; git status --short; git -C lib status --short") == "l\n"
    assert commit in report.rescued
    assert scene.sh(f"git -C lib log -1 --format=%s {commit}") == "m\n"
    assert {path for path in scene.look() if path not in first} <= {
        path for path in scene.look() if b"/objects/" in path or b"/refs/harnessd" in path or path.endswith(b"/logs")
    } | {b".git/COMMIT_EDITMSG"}


# --- what others did since --------------------------------------------------------------------------------------------


def test_edits_of_others_are_conflicts_and_what_git_does_by_itself_is_none(scene: Scene) -> None:
    scene.sh("git init -q; echo a>a; echo b>b; echo c>c; git add .; git commit -qm 1")
    target = scene.take()
    scene.sh("echo agent>a; echo agent>n")
    last = scene.take()
    scene.sh("echo person>a; echo person>b; echo person>n; echo mine>mine; git status >/dev/null; sleep 0.01; touch c")
    now = scene.take()
    # b was changed by a person alone: back at the target it would be lost as well.
    assert scene.room.conflicts(str(scene.root), last, now, target) == ("a", "b", "mine", "n")
    assert scene.room.conflicts(str(scene.root), now, now, target) == ()


def test_a_plan_touches_nothing(scene: Scene) -> None:
    scene.sh("echo a>a; echo b>b; chmod 600 b")
    target = scene.take()
    scene.sh("echo 2>a; chmod 644 b; echo n>n")
    now = scene.take()
    before = scene.look()
    planned = scene.room.plan(str(scene.root), now, target)
    assert (planned.state, planned.removed, planned.written, planned.modes) == ("planned", ("n",), ("a",), ("b",))
    assert scene.look() == before


def test_lines_are_counted(scene: Scene) -> None:
    scene.sh("seq 5 > a; seq 3 > gone; head -c 10 /dev/zero > bin; echo m > m; ln -s a l")
    old = scene.take()
    scene.sh(
        "printf '1\\n2\\nx\\n4\\n5\\n6\\n' > a; rm gone; seq 2 > new; echo 1 > bin; chmod 600 m; ln -sfn b l; mkdir d"
    )
    new = scene.take()
    found = {one.path: (one.what, one.plus, one.minus) for one in scene.room.compare(str(scene.root), old, new)}
    assert found == {
        "a": ("changed", 2, 1),
        "gone": ("deleted", 0, 3),
        "new": ("added", 2, 0),
        "bin": ("changed", None, None),
        "m": ("mode", None, None),
        "l": ("changed", None, None),
        "d": ("added", None, None),
    }


def test_a_hard_link_to_a_place_outside_keeps_its_content(scene: Scene) -> None:
    (scene.folder / "outside").write_text("precious\n")
    scene.sh("echo a>a; chmod 644 a")
    scene.take()
    scene.sh("ln -f ../outside a")
    (scene.folder / "outside").chmod(0o600)
    assert scene.back().state == "done"
    assert (scene.folder / "outside").read_text() == "precious\n"
    assert stat.S_IMODE((scene.folder / "outside").stat().st_mode) == 0o600
    assert scene.sh("cat a; stat -c %a a") == "a\n644\n"


def test_a_mode_is_not_given_to_the_other_names_of_a_file(scene: Scene) -> None:
    scene.sh("echo a>a; chmod 755 a")
    scene.take()
    scene.sh("chmod 600 a; ln a ../outside")
    assert scene.back().state == "done"
    assert stat.S_IMODE((scene.folder / "outside").stat().st_mode) == 0o600
    assert scene.sh("stat -c %a a") == "755\n"
