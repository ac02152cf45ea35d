"""Trees for the tests of checkpoints: made at random, changed at random, and told apart by an oracle of their own.

The oracle shares no code with the room: it reads the tree by byte paths, as `find` would.
"""

# Paths are bytes here, and pathlib knows text alone.
# ruff: noqa: PTH101, PTH102, PTH106, PTH108, PTH112, PTH114, PTH115, PTH118, PTH208, PTH211

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

# Memory where there is any: thousands of trees wait for no disk, and a file system's sync waits for nobody else's data.
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() and os.access("/dev/shm", os.W_OK) else None
Known = dict[bytes, tuple[Any, ...]]


def look(root: Path | str, *, leave: tuple[bytes, ...] = ()) -> Known:
    """Every name with type, mode and bytes (or link target); `leave` are paths that do not count."""
    base = os.fsencode(root)
    found: Known = {b".": ("folder", stat.S_IMODE(os.lstat(base).st_mode))}
    todo = [b""]
    while todo:
        folder = todo.pop()
        for name in os.listdir(os.path.join(base, folder)):
            path = os.path.join(folder, name)
            if path in leave:
                continue
            whole = os.path.join(base, path)
            facts = os.lstat(whole)
            mode = stat.S_IMODE(facts.st_mode)
            if stat.S_ISDIR(facts.st_mode):
                found[path] = ("folder", mode)
                todo.append(path)
            elif stat.S_ISLNK(facts.st_mode):
                found[path] = ("link", os.readlink(whole))
            elif stat.S_ISREG(facts.st_mode):
                found[path] = ("file", mode, Path(os.fsdecode(whole)).read_bytes())
            else:
                found[path] = ("special", stat.S_IFMT(facts.st_mode))
    return found


# --- random trees ---------------------------------------------------------------------------------------------------

_ODD = [
    *(
        b"a",
        b"A",
        b"b",
        b"B",
        b"aa",
        b"\xff\xfe",
        b"new\nline",
        b" ",
        b"-rf",
        b"*",
        b"\xc3\xa9",
        b"e\xcc\x81",
        b"a.",
        b".a",
    ),
    *(b".gitignore", b".gitattributes", b".git", b"sub", b"HEAD", b"objects", b"refs", b"config", b"\x01\x1b[31m"),
    *(b"x" * 255, b".harnessd-restore-x", b"~", b"a\\b", b"'", b'"'),
]
names = st.one_of(
    st.sampled_from(_ODD),
    st.binary(min_size=1, max_size=8).map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_")),
).filter(lambda name: name not in (b".", b".."))
_TEXTS = [
    b"", b"\n", b"* text=auto eol=crlf\n*.id ident\n", b"*\n", b"a\r\nb\n", b"$Id$\n", b"\xff\xfe\x00", b"x" * 5000,
    b"ref: refs/heads/main\n", b"[core]\n\tfsmonitor = /bin/false\n\thooksPath = hooks\n", b"gitdir: ../elsewhere\n",
]  # fmt: skip
contents = st.one_of(st.sampled_from(_TEXTS), st.binary(max_size=64))
file_modes = st.sampled_from([0o644, 0o600, 0o755, 0o400, 0o444, 0o000, 0o4755, 0o2755, 0o666, 0o111])
folder_modes = st.sampled_from([0o755, 0o700, 0o555, 0o1777, 0o2775, 0o750])
targets = st.sampled_from([b"a", b"..", b"/etc/passwd", b"../../x", b"\xff", b"nowhere/at all", b".", b"sub"])


def nodes(depth: int) -> st.SearchStrategy[Any]:
    """What stands under a name: a file, a link, a folder with more, or a repository."""
    file = st.tuples(st.just("file"), contents, file_modes)
    link = st.tuples(st.just("link"), targets)
    if depth == 0:
        return st.one_of(file, file, link)
    below = st.dictionaries(names, nodes(depth - 1), max_size=depth + 1)
    folder = st.tuples(st.just("folder"), below, folder_modes)
    repository = below.map(lambda rest: ("folder", {**rest, b".git": _dot_git(rest)}, 0o755))
    return st.one_of(file, file, link, folder, folder, repository)


def _dot_git(rest: dict[bytes, Any]) -> tuple[Any, ...]:
    inner: dict[bytes, Any] = {
        b"HEAD": ("file", b"ref: refs/heads/main\n", 0o644),
        b"config": ("file", b"[core]\n\tfsmonitor = ./run-me\n", 0o644),
        b"objects": ("folder", {b"pack": ("folder", {}, 0o755)}, 0o755),
        b"refs": ("folder", {b"heads": ("folder", {}, 0o755)}, 0o755),
        b"hooks": ("folder", {b"post-checkout": ("file", b"#!/bin/sh\ntouch ran\n", 0o755)}, 0o755),
    }
    if rest:
        inner[b"index"] = ("file", b"DIRC" + bytes(len(rest)), 0o644)
    return ("folder", inner, 0o755)


def trees(*, large: bool) -> st.SearchStrategy[dict[bytes, Any]]:
    """Whole trees; large ones are three folders deep."""
    return st.dictionaries(names, nodes(3 if large else 2), max_size=6 if large else 4)


def make(root: Path | str, tree: dict[bytes, Any]) -> None:
    """Put a tree on the disk."""
    _make(os.fsencode(root), tree)


def _make(folder: bytes, tree: dict[bytes, Any]) -> None:
    for name, node in tree.items():
        path = os.path.join(folder, name)
        match node:
            case ("file", data, mode):
                Path(os.fsdecode(path)).write_bytes(data)
                os.chmod(path, mode)
            case ("link", target):
                os.symlink(target, path)
            case _:
                os.mkdir(path)
                _make(path, node[1])
                os.chmod(path, node[2])


def clear(root: Path | str) -> None:
    """Take everything out of a folder."""
    base = os.fsencode(root)
    for name in os.listdir(base):
        path = os.path.join(base, name)
        if os.path.isdir(path) and not os.path.islink(path):
            for folder, _, _ in os.walk(path):
                os.chmod(folder, 0o700)
            shutil.rmtree(path)
        else:
            os.unlink(path)


def turn_into(root: Path | str, wanted: dict[bytes, Any]) -> None:
    """Change what is there into another tree; what both have is not touched."""
    _turn(os.fsencode(root), wanted)


def _turn(folder: bytes, wanted: dict[bytes, Any]) -> None:
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        node = wanted.get(name)
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        if node is not None and is_folder and node[0] == "folder":
            os.chmod(path, 0o700)
            _turn(path, node[1])
            os.chmod(path, node[2])
        elif is_folder:
            os.chmod(path, 0o700)
            clear(os.fsdecode(path))
            os.rmdir(path)
        elif node is None or node[0] != "file" or os.path.islink(path):
            os.unlink(path)
        else:
            os.chmod(path, 0o600)
            Path(os.fsdecode(path)).write_bytes(node[1])
            os.chmod(path, node[2])
    there = set(os.listdir(folder))
    _make(folder, {name: node for name, node in wanted.items() if name not in there})
