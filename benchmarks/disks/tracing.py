"""Tracing: what a program asked of the disk, in order, read from the log of `strace`: names, bytes, syncs, answers.

The kernel keeps what was written in memory until a sync; a power cut forgets any part of the rest. So each operation
is kept with two line numbers: where it was begun, and where a sync that began after its end came back. Between the two
it may or may not be on the disk. Names are held to the letter of POSIX: they are durable once their folder is synced.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CALLS = (
    "openat,close,dup,lseek,write,pwrite64,ftruncate,fsync,fdatasync,"
    "rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat"
)
NEVER = 1 << 60
LONGEST = 8 << 20  # bytes of one write that are read back

_WHOLE = re.compile(r"^(\d+) +(\w+)\((.*)\) += +(-?\d+)")
_BEGUN = re.compile(r"^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_CAME_BACK = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)\) += +(-?\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_HANDLE = re.compile(r"^(\d+)")
_FOLDER = re.compile(r"(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>")


@dataclass(slots=True)
class Operation:
    """One change: bytes of a file, its length, or a name in a folder.

    Attributes:
        kind: "write", "cut" (to `at` bytes), "name" (`name` in folder `file` is now `target`; -1: nothing).
        file: number of the file or folder that must be synced for it.
        begun, durable: lines of the log, see above.
    """

    kind: str
    file: int
    begun: int
    ended: int
    at: int = 0
    data: bytes = b""
    name: str = ""
    target: int = -1
    durable: int = NEVER


@dataclass(slots=True)
class Recording:
    """All that a program did to one folder, and what it said meanwhile."""

    operations: list[Operation] = field(default_factory=list)
    acks: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    lines: int = 0
    folders: set[int] = field(default_factory=lambda: {0})


@dataclass(slots=True)
class _Call:
    name: str
    words: str
    result: int
    begun: int
    ended: int


def record(command: Sequence[str], folder: Path, log: Path, cwd: Path) -> Recording:
    """Run a program to its end under `strace`; `folder` must be empty when it begins. Raises RuntimeError."""
    tool = shutil.which("strace")
    if tool is None:
        raise RuntimeError("strace is not installed: apt-get install strace")
    traced = [tool, "-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", str(LONGEST), "-e", f"trace={CALLS}", "-o"]
    done = subprocess.run(
        [*traced, str(log), *command],
        cwd=cwd,
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    with log.open(encoding="ascii", errors="replace") as lines:
        return _Reader(os.path.realpath(folder)).read(lines)


def _calls(lines: Iterator[str]) -> Iterator[_Call]:
    """Whole calls in the order in which they came back; two threads' calls may overlap."""
    open_: dict[str, tuple[str, str, int]] = {}
    for number, line in enumerate(lines, start=1):
        if found := _WHOLE.match(line):
            yield _Call(found[2], found[3], int(found[4]), number, number)
        elif found := _BEGUN.match(line.rstrip("\n")):
            open_[found[1]] = (found[2], found[3], number)
        elif (found := _CAME_BACK.match(line)) and found[1] in open_:
            name, words, begun = open_.pop(found[1])
            yield _Call(name, words + found[3], int(found[4]), begun, number)


def _text(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


class _Reader:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._names: dict[str, int] = {folder: 0}  # every name that is there now
        self._handles: dict[int, list[int]] = {}  # descriptor: number of the file, place
        self._files = 0
        self._pending: dict[int, list[Operation]] = {}
        self._said = b""
        self.recording = Recording()

    def read(self, lines: Iterator[str]) -> Recording:
        for call in _calls(lines):
            self.recording.lines = call.ended
            if call.result >= 0:
                getattr(self, f"_{_SORTS.get(call.name, call.name)}")(call)
        self.recording.operations.sort(key=lambda operation: operation.begun)
        return self.recording

    def _path(self, words: str, place: int = 0) -> str:
        """The `place`-th name of a call, made absolute by the folder's descriptor before it."""
        names = [(found.start(), _text(found[1]).decode("utf-8", "surrogateescape")) for found in _TEXT.finditer(words)]
        start, name = names[place]
        if name.startswith("/"):
            return os.path.normpath(name)
        folders = [found for found in _FOLDER.finditer(words) if found.start() < start]
        at = _text(folders[-1][1]).decode("utf-8", "surrogateescape") if folders else ""
        return os.path.normpath(f"{at}/{name}")

    def _ours(self, path: str) -> bool:
        return path.startswith(self._folder + "/")

    def _handle(self, call: _Call) -> list[int] | None:
        found = _HANDLE.match(call.words)
        return self._handles.get(int(found[1])) if found else None

    def _add(self, operation: Operation) -> None:
        self.recording.operations.append(operation)
        self._pending.setdefault(operation.file, []).append(operation)

    def _named(self, call: _Call, path: str, target: int) -> None:
        above, name = os.path.split(path)
        if target < 0:
            self._names.pop(path, None)
        else:
            self._names[path] = target
        self._add(Operation("name", self._names[above], call.begun, call.ended, name=name, target=target))

    def _openat(self, call: _Call) -> None:
        path = self._path(call.words)
        if path == self._folder or self._ours(path):
            number = self._names.get(path)
            if number is None:
                if "O_CREAT" not in call.words:
                    return
                self._files += 1
                number = self._files
                self._named(call, path, number)
            elif "O_TRUNC" in call.words:
                self._add(Operation("cut", number, call.begun, call.ended))
            self._handles[call.result] = [number, 0]
        else:
            self._handles.pop(call.result, None)

    def _dup(self, call: _Call) -> None:
        if found := self._handle(call):
            self._handles[call.result] = found

    def _close(self, call: _Call) -> None:
        found = _HANDLE.match(call.words)
        if found:
            self._handles.pop(int(found[1]), None)

    def _lseek(self, call: _Call) -> None:
        if found := self._handle(call):
            found[1] = call.result

    def _write(self, call: _Call) -> None:
        data = _text(found[1])[: call.result] if (found := _TEXT.search(call.words)) else b""
        handle = self._handle(call)
        if handle is not None:
            at = int(call.words.rpartition(", ")[2]) if call.name == "pwrite64" else handle[1]
            if call.name == "write":
                handle[1] += len(data)
            self._add(Operation("write", handle[0], call.begun, call.ended, at, data))
        elif call.words.startswith("1<"):
            *whole, self._said = (self._said + data).split(b"\n")
            self.recording.acks += [(call.ended, json.loads(line)) for line in whole if line]

    def _ftruncate(self, call: _Call) -> None:
        if handle := self._handle(call):
            at = int(call.words.rpartition(", ")[2])
            self._add(Operation("cut", handle[0], call.begun, call.ended, at))

    def _sync(self, call: _Call) -> None:
        handle = self._handle(call)
        if handle is None:
            return
        later = []
        for operation in self._pending.get(handle[0], ()):
            if operation.ended < call.begun:
                operation.durable = call.ended
            else:
                later.append(operation)
        self._pending[handle[0]] = later

    def _mkdir(self, call: _Call) -> None:
        path = self._path(call.words)
        if self._ours(path):
            self._files += 1
            self.recording.folders.add(self._files)
            self._named(call, path, self._files)

    def _unlink(self, call: _Call) -> None:
        path = self._path(call.words)
        if self._ours(path):
            self._named(call, path, -1)

    def _rename(self, call: _Call) -> None:
        before, after = self._path(call.words), self._path(call.words, 1)
        if not self._ours(before) or not self._ours(after):
            return
        number = self._names[before]
        # One step: the file system keeps both halves of it or none, so both are durable with the folder of the new one.
        self._named(call, after, number)
        self._named(call, before, -1)
        for path in [path for path in self._names if path.startswith(before + "/")]:
            self._names[after + path[len(before) :]] = self._names.pop(path)


_SORTS = {
    "pwrite64": "write",
    "fsync": "sync",
    "fdatasync": "sync",
    "unlinkat": "unlink",
    "rmdir": "unlink",
    "mkdirat": "mkdir",
    "renameat": "rename",
    "renameat2": "rename",
}
