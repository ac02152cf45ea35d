"""Traps in a workspace: nothing of it is run, followed or opened by a checkpoint or a restore."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harnessd.workspace.checkpoints import Checkpoints
from tests.workspace.trees import look

SECRET = b"the secret that lies outside the workspace"
RUNS = """
import sys
from pathlib import Path
from harnessd.workspace.checkpoints import Checkpoints
root, room = sys.argv[1], Checkpoints(Path(sys.argv[2]))
first = room.take(root)
print(*first.notes, sep="\\n")
for path in Path(root).rglob("a.txt"):
    path.write_text("changed")
(Path(root) / "evil.out").write_text("evil")
later = room.take(root)
room.compare(root, first.manifest, later.manifest)
room.conflicts(root, later.manifest, later.manifest, first.manifest)
assert room.restore(root, first.manifest, later.manifest, "t").state == "done"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    root.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(SECRET)
    return root


def write(root: Path, files: dict[str, str]) -> None:
    """Files of a workspace, by path."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        (root / path).chmod(0o755)


CONFIG = "[core]\n repositoryformatversion = 0\n fsmonitor = {canary}\n hooksPath = {hooks}\n sshCommand = {canary}\n"
CONFIG += '[filter "x"]\n clean = {canary}\n smudge = {canary}\n process = {canary}\n required = true\n'
CONFIG += (
    '[diff "x"]\n command = {canary}\n textconv = {canary}\n[merge "x"]\n driver = {canary}\n[alias]\n st = !{canary}\n'
)
CONFIG += "[include]\n path = {outside}/more\n[pager]\n status = {canary}\n[gpg]\n program = {canary}\n"
TRAPS = {
    "nested fsmonitor": {"sub/.git/config": CONFIG, "sub/.git/HEAD": "ref: refs/heads/main\n", "sub/a.txt": "x\n"},
    "a bare repository in plain sight": {
        "HEAD": "ref: refs/heads/main\n",
        "config": CONFIG.replace("[core]\n", "[core]\n bare = false\n worktree = .\n"),
        "objects/.keep": "",
        "refs/.keep": "",
        "a.txt": "x\n",
    },
    "a whole repository with hooks": {
        ".git/config": CONFIG,
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/objects/.keep": "",
        ".git/refs/.keep": "",
        ".git/hooks/post-checkout": "#!/bin/sh\n{canary}\n",
        ".git/hooks/post-index-change": "#!/bin/sh\n{canary}\n",
        ".git/info/attributes": "* filter=x diff=x\n",
        ".gitattributes": "* filter=x diff=x merge=x working-tree-encoding=UTF-16\n",
        "a.txt": "x\n",
    },
    "programs by the names of ours": dict.fromkeys(("git", "bwrap", "rg", "sh", "a.txt"), "#!/bin/sh\n{canary}\n"),
    "a .git file that points outside": {".git": "gitdir: {outside}/evil/.git\n", "a.txt": "x\n"},
    "ignored by a star": {".gitignore": "*\n", "a.txt": "1\n", "keep.out": "1\n"},
    "python and editor start files": {
        "sitecustomize.py": "import os; os.system('{canary}')\n",
        "usercustomize.py": "import os; os.system('{canary}')\n",
        "harnessd/__init__.py": "import os; os.system('{canary}')\n",
        ".envrc": "{canary}\n",
        "a.txt": "x\n",
    },
}


# S3, R5.3a: 0 over all traps; the kernel counts the programs that are started.
@pytest.mark.parametrize("name", TRAPS)
def test_nothing_of_the_workspace_is_run(tmp_path: Path, root: Path, name: str) -> None:
    # security/git-nested-fsmonitor, security/git-dotgit-file-redirect, security/git-embedded-bare-repo
    # security/git-ignore-hides-files, security/start-before-trust, security/path-lookup-local-git
    canary = tmp_path / "canary.sh"
    canary.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    canary.chmod(0o755)
    outside = tmp_path / "outside"
    write(outside, {"evil/.git/config": f"[core]\n fsmonitor = {canary}\n", "more": f"[core]\n fsmonitor = {canary}\n"})
    words = {"canary": str(canary), "outside": str(outside), "hooks": str(root / ".git/hooks")}
    filled = {path: text.replace("{canary}", words["canary"]) for path, text in TRAPS[name].items()}
    filled = {path: text.replace("{outside}", words["outside"]) for path, text in filled.items()}
    write(root, {path: text.replace("{hooks}", words["hooks"]) for path, text in filled.items()})
    before, beyond = look(root), look(outside)
    command = [sys.executable, "-P", "-c", RUNS, str(root), str(tmp_path / "state")]
    traced = ["strace", "-f", "-e", "trace=execve,execveat", "-o", str(tmp_path / "trace"), *command]
    environment = {"PATH": f":.:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        done = subprocess.run(traced, cwd=root, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
    if (tmp_path / "trace").exists():
        started = [line for line in (tmp_path / "trace").read_text().splitlines() if "execve" in line and "= 0" in line]
        assert len(started) == 1, started
    assert look(root) == before
    assert look(outside) == beyond
    pointed = "points outside the workspace" in done.stdout
    assert pointed == (name == "a .git file that points outside")


# S4: a folder is exchanged for a link while it is looked at and while it is put back.
def test_a_folder_that_turns_into_a_link_leads_nowhere(tmp_path: Path, root: Path) -> None:
    outside = tmp_path / "outside"
    (root / "d").mkdir()
    (root / "d" / "secret").write_text("mine")
    (root / "other").mkdir()
    room = Checkpoints(tmp_path / "state")
    at = room.take(str(root)).manifest
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for make in (lambda: (root / "d").rename(root / "held"), lambda: (root / "d").symlink_to(outside)):
                with contextlib.suppress(OSError):
                    make()
            for undo in ((root / "d").unlink, lambda: (root / "held").rename(root / "d")):
                with contextlib.suppress(OSError):
                    undo()

    beyond = look(outside)
    swapper = threading.Thread(target=swap)
    swapper.start()
    looks, until = 0, time.monotonic() + 4
    try:
        while time.monotonic() < until:
            now = room.take(str(root)).manifest
            room.restore(str(root), at, now, f"t{looks}")
            looks += 1
    finally:
        stop.set()
        swapper.join()
    room.close()
    assert looks > 20
    assert look(outside) == beyond
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").glob("*/*.segment"))
    assert SECRET not in kept


def test_what_is_no_file_is_listed_and_never_opened(tmp_path: Path, root: Path) -> None:
    os.mkfifo(root / "pipe")  # an open without a writer would wait for ever
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(root)  # a socket's path is short
        try:
            server.bind("sock")
        finally:
            os.chdir(here)
        with contextlib.suppress(PermissionError):
            os.mknod(root / "null", 0o020666, os.makedev(1, 3))
        room = Checkpoints(tmp_path / "state")
        first = room.take(str(root))
        found = {one.path: one.why for one in first.uncovered or ()}
        assert found.items() >= {"pipe": "a pipe", "sock": "a socket"}.items()
        assert found.get("null", "a device") == "a device"
        (root / "a").write_text("a")
        later = room.take(str(root)).manifest
        assert room.restore(str(root), first.manifest, later, "t").state == "done"
        assert {path.name for path in root.iterdir()} >= {"pipe", "sock"}
        room.close()


def test_links_are_kept_as_links_and_nothing_behind_them_is_read(tmp_path: Path, root: Path) -> None:
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "secret").symlink_to(tmp_path / "outside" / "secret")
    room = Checkpoints(tmp_path / "state")
    at = room.take(str(root)).manifest
    (root / "out").unlink()
    (root / "out").mkdir()
    (root / "out" / "secret").write_text("in the workspace")
    (root / "secret").unlink()
    (root / "secret").write_text("a file now")
    later = room.take(str(root)).manifest
    assert room.restore(str(root), at, later, "t").state == "done"
    assert (tmp_path / "outside" / "secret").read_bytes() == SECRET
    assert room.restore(str(root), later, at, "u").state == "done"
    assert (tmp_path / "outside" / "secret").read_bytes() == SECRET
    room.close()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").glob("*/*.segment"))
    assert SECRET not in kept


def test_another_file_system_is_not_entered(tmp_path: Path, root: Path) -> None:
    (root / "mnt").mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "none", str(root / "mnt")], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no right to mount")
    try:
        (root / "mnt" / "f").write_text("f")
        room = Checkpoints(tmp_path / "state")
        first = room.take(str(root))
        assert [(one.path, one.why) for one in first.uncovered or ()] == [("mnt", "another file system")]
        (root / "mnt" / "f").write_text("g")
        (root / "a").write_text("a")
        assert room.restore(str(root), first.manifest, room.take(str(root)).manifest, "t").state == "done"
        assert (root / "mnt" / "f").read_text() == "g"
        room.close()
    finally:
        subprocess.run(["umount", str(root / "mnt")], check=True)


# --- without root's rights --------------------------------------------------------------------------------------------

PLAIN = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from harnessd.workspace.checkpoints import Checkpoints
os.setgroups([]); os.setgid(65534); os.setuid(65534)
root, room = Path(sys.argv[1]), Checkpoints(Path(sys.argv[2]))
(root / "ro" / "in").mkdir(parents=True); (root / "ro" / "x").write_text("x")
(root / "ro" / "in" / "y").write_text("y")
(root / "none").write_text("none"); (root / "none").chmod(0)
(root / "shut").mkdir(); (root / "shut" / "z").write_text("z")
(root / "suid").write_text("s"); (root / "suid").chmod(0o4755)
(root / "ro" / "in").chmod(0o555); (root / "ro").chmod(0o500); (root / "shut").chmod(0)
first = room.take(str(root))
print(sorted((one.path, one.why) for one in first.uncovered))
(root / "ro").chmod(0o700); (root / "ro" / "in").chmod(0o700)
(root / "ro" / "x").unlink(); (root / "ro" / "in" / "y").write_text("changed"); (root / "ro" / "new").write_text("n")
(root / "ro" / "in").chmod(0o555); (root / "ro").chmod(0o555); (root / "suid").write_text("t"); root.chmod(0o500)
later = room.take(str(root))
report = room.restore(str(root), first.manifest, later.manifest, "t")
assert report.state == "done", report
modes = [oct(os.lstat(root / name).st_mode & 0o7777) for name in ("ro", "ro/in", "none", "shut", "suid", ".")]
print(modes, (root / "ro" / "x").read_text(), (root / "ro" / "in" / "y").read_text(), (root / "ro" / "new").exists())
report = room.restore(str(root), later.manifest, room.take(str(root)).manifest, "u")
assert report.state == "done", report
print(*(oct(os.lstat(one).st_mode & 0o7777) for one in (root / "ro", root)), (root / "ro" / "new").read_text())
"""


@pytest.fixture
def anybodys() -> Iterator[Path]:
    """A folder that another user may work in."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_plain_user_gets_read_only_folders_back_and_leaves_shut_ones_alone(anybodys: Path) -> None:
    (anybodys / "ws").mkdir()
    (anybodys / "ws").chmod(0o777)
    os.chown(anybodys / "ws", 65534, 65534)
    command = [
        sys.executable,
        "-c",
        PLAIN,
        str(anybodys / "ws"),
        str(anybodys / "state"),
        str(Path(__file__).parents[2]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == "[('none', 'not readable'), ('shut', 'not readable')]"
    assert second == "['0o500', '0o555', '0o0', '0o0', '0o4755', '0o777'] x y False"
    assert third == "0o555 0o500 n"
