"""Checkpoints: a look at a workspace after one change beside `git status`, a dirty list beside a full look, syncs."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.gate import Gate
from harnessd.workspace.checkpoints import Checkpoints

ROUNDS = 7
FILES_IN_FOLDER = 20
TICK_S = 0.02  # longer than a tick of the kernel's clock: what was read a tick ago need not be read again
GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_OPTIONAL_LOCKS": "1"}
SYNCED = """
import sys
from pathlib import Path
from harnessd.workspace.checkpoints import Checkpoints
root, room = Path(sys.argv[1]), Checkpoints(Path(sys.argv[2]))
room.take(str(root))
print("MARK", flush=True)
for step in range(10):
    (root / "folder0" / "file0").write_text(f"step {step}")
    room.take(str(root))
"""


@contextmanager
def workspace(files: int) -> Iterator[Path]:
    """A repository with this many files, all committed, and room for contents beside it."""
    scratch = Path(tempfile.mkdtemp(prefix="hd-bench-"))
    try:
        root = scratch / "ws"
        for number in range(files // FILES_IN_FOLDER):
            folder = root / f"folder{number}"
            folder.mkdir(parents=True)
            for name in range(FILES_IN_FOLDER):
                (folder / f"file{name}").write_bytes(f"{number} {name} some words of a file\n".encode() * 20)
        git(root, "init", "-q")
        git(root, "add", "-A")
        git(root, "-c", "gc.auto=0", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all")
        git(root, "gc", "-q")
        yield root
    finally:
        shutil.rmtree(scratch)


def git(root: Path, *words: str) -> None:
    """Run git there."""
    subprocess.run(["git", *words], cwd=root, env=os.environ | GIT, check=True, stdout=subprocess.DEVNULL)


def spent(work: Callable[[], object], who: int) -> float:
    """CPU seconds of ours, or of the programs that were started."""
    before = resource.getrusage(who)
    work()
    after = resource.getrusage(who)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def one_changed(files: int) -> tuple[float, float, float]:
    """CPU seconds after one change: a full look, a look with a dirty list, `git status`; medians, taking turns."""
    with workspace(files) as root:
        room, rows = Checkpoints(root.parent / "state"), []
        file = root / "folder0" / "file0"
        room.take(str(root))
        git(root, "status")
        for number in range(ROUNDS):
            looks = []
            for place, dirty in enumerate((None, ["folder0/file0"])):
                file.write_text(f"{number} {place}")
                time.sleep(TICK_S)
                looks.append(spent(lambda dirty=dirty: room.take(str(root), dirty), resource.RUSAGE_SELF))  # type: ignore[misc]
            file.write_text(f"{number} git")
            rows.append((*looks, spent(lambda: git(root, "status", "--short"), resource.RUSAGE_CHILDREN)))
        room.close()
        full, listed, status = (statistics.median(values) for values in zip(*rows, strict=True))
        return full, listed, status


def syncs() -> float:
    """Syncs of one checkpoint after one change, as the kernel was asked for them."""
    with workspace(200) as root:
        trace = root.parent / "trace"
        words = ["strace", "-f", "-e", "trace=fsync,fdatasync,syncfs,sync,sync_file_range,write", "-o", str(trace)]
        run = [sys.executable, "-c", SYNCED, str(root), str(root.parent / "state")]
        subprocess.run([*words, *run], check=True, stdout=subprocess.DEVNULL)
        _, _, after = trace.read_text().partition("MARK")
        return sum("sync" in line.partition("(")[0] for line in after.splitlines()) / 10


def gates() -> Iterator[Gate]:
    """The gates on checkpoints."""
    full, _, status = one_changed(10_000)
    yield Gate("checkpoint, 1 of 10,000 changed: CPU", full * 1e3, status * 1e3, 3.0, "at most", "ms", "ms git status")
    full, listed, _ = one_changed(50_000)
    yield Gate(
        "checkpoint, 50,000 files, dirty list: CPU", listed * 1e3, full * 1e3, 0.5, "at most", "ms", "ms full look"
    )
    yield Gate("syncs of a checkpoint", syncs(), None, 1.0, "at most")
