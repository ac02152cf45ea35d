"""Bugs: each of `seeded.py` is put into a scratch copy of this repository, and its tests must fail there (G20).

    python benchmarks/proofs/bugs.py [--cheap] [--only WORDS]

The work tree is not touched. The copy has a Python of its own (a virtual environment that sees the same libraries), so
that daemons which tests start run the copy's code as well. First all those tests run without a bug: there they pass.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import site
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.proofs.seeded import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
NOT_COPIED = (".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "state", "*.db")
TESTS_FAILED = 1  # pytest's exit status: tests ran, and some failed
LIMIT_S = 600.0


class Stale(Exception):  # noqa: N818 - it is what a person is told
    """A substitution does not fit the code any more."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The scratch copy and its Python."""

    folder: Path
    python: Path

    @contextlib.contextmanager
    def with_(self, bug: Bug) -> Iterator[None]:
        """The copy has the bug until the end of the block. Raises Stale."""
        file = self.folder / bug.file
        text = file.read_text()
        if text.count(bug.old) != 1:
            raise Stale(f"{bug.name}: {bug.file} holds its place {text.count(bug.old)} times, not once")
        file.write_text(text.replace(bug.old, bug.new))
        try:
            yield
        finally:
            file.write_text(text)

    def tests(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run pytest up to the first failure."""
        # What was compiled for one bug serves the next one: most of the code is the same.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        words = [str(self.python), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
        return subprocess.run(
            [*words, *arguments],
            cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip


@contextlib.contextmanager
def scratch() -> Iterator[Copy]:
    """A copy of the repository as it lies here."""
    with tempfile.TemporaryDirectory(prefix="bugs-") as name:
        folder = Path(name) / "copy"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
        environment = Path(name) / "python"
        venv.EnvBuilder(symlinks=True, with_pip=False).create(environment)
        python = environment / "bin" / "python"
        found = subprocess.run(
            [python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True
        )
        # The copy first; then the libraries, by path alone, so that the repository's own .pth files say nothing here.
        lines = [str(folder), *site.getsitepackages()]
        Path(found.stdout.strip(), "copy.pth").write_text("\n".join(lines) + "\n")
        yield Copy(folder, python)


def stale(bugs: Sequence[Bug] = BUGS) -> list[str]:
    """The bugs that do not fit the code any more."""
    counts = [(bug, (ROOT / bug.file).read_text().count(bug.old)) for bug in bugs]
    return [f"{bug.name}: {bug.file} holds its place {count} times, not once" for bug, count in counts if count != 1]


def hunt(copy: Copy, bug: Bug) -> str:
    """The first test that sees the bug; empty where none does."""
    with copy.with_(bug):
        done = copy.tests(bug.caught_by)
    if done.returncode not in (0, TESTS_FAILED):
        raise AssertionError(f"{bug.name}: pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" - ")[0] if done.returncode == TESTS_FAILED else ""


def main() -> int:
    """Run the hunt and print who was caught by what."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cheap", action="store_true", help="only CI's share")
    parser.add_argument("--only", default="", help="bugs whose name holds these words")
    parser.add_argument("--no-control", action="store_true", help="do not run the tests without a bug first")
    asked = parser.parse_args()
    bugs = [bug for bug in BUGS if asked.only in bug.name and (bug.cheap or not asked.cheap)]
    missed = []
    with scratch() as copy:
        if not asked.no_control:
            for words in sorted({bug.caught_by for bug in bugs}):
                done = copy.tests(words)
                assert done.returncode == 0, (
                    f"without a bug {words} ends with {done.returncode}:\n{done.stdout[-3000:]}"
                )
            print("without a bug all of the tests pass", flush=True)
        for bug in bugs:
            begun = time.monotonic()
            by = hunt(copy, bug)
            missed += [] if by else [bug.name]
            print(f"{time.monotonic() - begun:5.1f} s  {bug.name:52} {by or 'NOT CAUGHT'}", flush=True)
    print(
        f"{len(bugs)} bugs, {len(bugs) - len(missed)} caught" + (f"; not caught: {'; '.join(missed)}" if missed else "")
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
