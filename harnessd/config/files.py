"""Files: the policy folder read once, as bytes with a content hash; what is ignored, what is refused."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from harnessd.config.strict_yaml import LARGEST_BYTES
from harnessd.policy.language.source import BUILTIN, Problem

_LEAVINGS = ("~", ".swp", ".orig")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: the name that messages use, and its bytes."""

    shown: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A folder as it was when it was read. `there` is False where there is no folder."""

    files: tuple[SourceFile, ...]
    problems: tuple[Problem, ...] = ()
    there: bool = True

    @property
    def hash(self) -> str:
        """SHA-256 over names, contents and problems: equal snapshots mean the same."""
        digest = hashlib.sha256(b"there" if self.there else b"not there")
        for file in self.files:
            digest.update(b"%d:%d:" % (len(file.shown.encode()), len(file.data)))
            digest.update(file.shown.encode() + b"\0" + file.data)
        for problem in self.problems:
            digest.update(str(problem).encode("utf-8", "replace"))
        return digest.hexdigest()


def read_folder(folder: Path, shown: str) -> Snapshot:
    """All policy files of a folder, in order of name. Never raises for what is in it."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return Snapshot((), there=False)
    except OSError as error:
        problem = Problem(shown, 0, 0, f"the folder cannot be read: {error.strerror}", "make it a readable folder")
        return Snapshot((), (problem,))
    files: list[SourceFile] = []
    problems: list[Problem] = []
    for entry in entries:
        name = entry.name
        if name.startswith(".") or name.endswith(_LEAVINGS):
            continue
        path = Path(entry.path)
        seen = name if name.isprintable() else ascii(name)  # any bytes may stand in a name, but not in a message
        label = f"{shown}/{seen}" if shown else seen
        if _is_folder(entry):
            if name != "tests":
                remedy = "move its files here; only tests/ is a folder of its own"
                problems.append(Problem(label, 1, 1, "not read, and refused so that it is noticed", remedy))
        elif name.endswith(".yml"):
            remedy = f"name it {seen.replace('.yml', '.yaml')}"
            problems.append(Problem(label, 1, 1, "not read, and refused so that it is noticed", remedy))
        elif name.endswith(".yaml"):
            try:
                files.append(SourceFile(label, read_bytes(path)))
            except OSError as error:
                problems.append(Problem(label, 1, 1, f"cannot be read: {error.strerror or error}", "mend or delete it"))
    return Snapshot(tuple(files), tuple(problems))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def read_bytes(path: Path) -> bytes:
    """A regular file's bytes, at most one more than the largest allowed: a pipe or a huge file cannot hold us up."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file")
        return file.read(LARGEST_BYTES + 1)


def builtin_folder() -> Path:
    """Where the shipped policies lie: inside an installed wheel, or the repository's own `policies/`."""
    package = Path(__file__).resolve().parent.parent
    packed = package / "_builtin" / "policies"
    return packed if packed.is_dir() else package.parent / "policies"


def read_builtin() -> Snapshot:
    """The shipped policies; their files are named `builtin retry.yaml`."""
    snapshot = read_folder(builtin_folder(), "")
    files = tuple(SourceFile(BUILTIN + file.shown, file.data) for file in snapshot.files)
    return Snapshot(files, snapshot.problems, snapshot.there)
