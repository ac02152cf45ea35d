"""Manifest: what a workspace held at one moment: path, kind, mode, owner, digest or link target; whole or as a delta.

The bytes are our own and are read back strictly: a manifest that was damaged, or that names a path which could lead out
of a workspace, is refused as a whole. A delta names the manifest it goes on from; every `FULL_EVERY`-th is whole, so
that a chain stays short.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Mapping
from typing import Literal, NamedTuple

from harnessd.domain.failure import HarnessError

Kind = Literal["file", "folder", "link", "uncovered"]
KINDS: tuple[Kind, ...] = ("file", "folder", "link", "uncovered")
FULL_EVERY = 32
_MAGIC = b"harnessd manifest 1\n"
_HEAD = struct.Struct(">B32sHII")  # whole or delta, what it goes on from, place in the chain, entries, removed
_ENTRY = struct.Struct(">BHIIQII")  # kind, mode, uid, gid, size, bytes of the path, bytes of what it holds
_REMOVED = struct.Struct(">I")
_NOTHING = bytes(32)


class Entry(NamedTuple):
    """One name. `holds`: a file's SHA-256, a link's target, or why it is not covered; `size` of a file in bytes."""

    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    holds: bytes


# By path from the root (itself the empty path), `/` between names, lone surrogates for bytes that are no UTF-8.
Tree = dict[str, Entry]


class DamagedContent(HarnessError):  # noqa: N818 - named as the state it is
    """What a checkpoint holds was damaged on disk; nothing was restored from it."""


class Change(NamedTuple):
    """What differs between two trees: entries that are new or other, and paths that are gone."""

    entries: Tree
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.entries or self.removed)


class Manifest(NamedTuple):
    """One manifest as it is stored. `parent` is empty where it is whole; `place` counts the deltas since then."""

    parent: bytes
    place: int
    change: Change


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest; the same manifest gives the same bytes."""
    entries, removed = manifest.change
    parts = [
        _MAGIC,
        _HEAD.pack(bool(manifest.parent), manifest.parent or _NOTHING, manifest.place, len(entries), len(removed)),
    ]
    for path in sorted(entries):
        one, name = entries[path], os.fsencode(path)
        numbers = (KINDS.index(one.kind), one.mode, one.uid, one.gid, one.size, len(name), len(one.holds))
        parts += (_ENTRY.pack(*numbers), name, one.holds)
    for path in sorted(removed):
        name = os.fsencode(path)
        parts += (_REMOVED.pack(len(name)), name)
    return b"".join(parts)


def decode(data: bytes) -> Manifest:
    """A manifest from its bytes. Raises DamagedContent."""
    try:
        return _decode(data)
    except (struct.error, IndexError, ValueError) as error:
        raise DamagedContent(f"A manifest cannot be read: {error}.") from error


def _decode(data: bytes) -> Manifest:
    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin as one")
    at = len(_MAGIC)
    delta, parent, place, entries, removed = _HEAD.unpack_from(data, at)
    at += _HEAD.size
    tree: Tree = {}
    for _ in range(entries):
        kind, mode, uid, gid, size, name_length, holds_length = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        path = _path(data[at : at + name_length], name_length)
        at += name_length
        holds = data[at : at + holds_length]
        if len(holds) != holds_length:
            raise ValueError("it ends too early")
        at += holds_length
        tree[path] = Entry(KINDS[kind], mode, uid, gid, size, holds)
    paths = []
    for _ in range(removed):
        (length,) = _REMOVED.unpack_from(data, at)
        at += _REMOVED.size
        paths.append(_path(data[at : at + length], length))
        at += length
    if at != len(data):
        raise ValueError("bytes are left over")
    return Manifest(parent if delta else b"", place, Change(tree, tuple(paths)))


def _path(raw: bytes, length: int) -> str:
    if len(raw) != length or b"\0" in raw:
        raise ValueError("a path is not whole")
    if raw and any(part in (b"", b".", b"..") for part in raw.split(b"/")):
        raise ValueError("a path leads out of the workspace")
    return os.fsdecode(raw)


def tree_of(digest: bytes, read: Callable[[bytes], bytes]) -> tuple[Tree, int]:
    """The whole tree behind a manifest's digest, and its place in the chain. `read` gives a content by its digest.

    Raises DamagedContent.
    """
    chain: list[Manifest] = []
    wanted = digest
    while True:
        manifest = decode(read(wanted))
        chain.append(manifest)
        if not manifest.parent:
            break
        if len(chain) > FULL_EVERY:
            raise DamagedContent("A chain of manifests has no beginning.")
        wanted = manifest.parent
    tree: Tree = {}
    for one in reversed(chain):
        apply(tree, one.change)
    return tree, chain[0].place


def needed_by(live: Collection[bytes], read: Callable[[bytes], bytes]) -> set[bytes]:
    """Every content that live manifests need: theirs, those they go on from, the files of their own trees.

    Raises DamagedContent.
    """
    known: dict[bytes, Manifest] = {}
    for digest in live:
        while digest and digest not in known:
            known[digest] = decode(read(digest))
            digest = known[digest].parent  # noqa: PLW2901 - the way to the whole one
    needed, wanted = set(known), set(live)
    after: dict[bytes, list[bytes]] = {}
    for digest, manifest in known.items():
        after.setdefault(manifest.parent, []).append(digest)
    # Down each chain with one tree: what a live one shares with the live one before it is counted already.
    todo: list[tuple[bytes, Tree, set[str] | None]] = [(digest, {}, None) for digest in after.get(b"", ())]
    while todo:
        digest, tree, changed = todo.pop()
        apply(tree, known[digest].change)
        changed = None if changed is None else changed | known[digest].change.entries.keys()
        if digest in wanted:
            entries = tree.values() if changed is None else (tree[path] for path in changed if path in tree)
            needed.update(entry.holds for entry in entries if entry.kind == "file")
            changed = set()
        below = after.get(digest, [])
        for place, one in enumerate(below):
            alone = place == len(below) - 1
            todo.append((one, tree if alone else dict(tree), changed if alone or changed is None else set(changed)))
    return needed


def apply(tree: Tree, change: Change) -> None:
    """Make a change in a tree."""
    for path in change.removed:
        tree.pop(path, None)
    tree.update(change.entries)


def difference(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> Change:
    """What turns one tree into the other."""
    entries = {path: entry for path, entry in new.items() if old.get(path) != entry}
    return Change(entries, tuple(sorted(path for path in old if path not in new)))
