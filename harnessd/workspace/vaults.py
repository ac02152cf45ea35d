"""Vaults: for each workspace a folder of contents outside of it, and what the last walk of it saw; a few stay warm."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from harnessd.workspace.content import SEGMENT_MAX, Contents
from harnessd.workspace.manifest import Tree, tree_of
from harnessd.workspace.walk import Cache

WARM_MAX = 8  # workspaces whose stat cache stays in memory while nobody uses them,
WARM_NAMES_MAX = 200_000  # and the names that they may hold together (about 1 KiB each)
_ROOT = "workspace"  # the file in a vault that says whose it is


@dataclass(slots=True)
class Vault:
    """One workspace's contents and what the last walk of it saw."""

    root: str
    contents: Contents
    cache: Cache = field(default_factory=Cache)
    last: bytes = b""  # digest of the manifest of `cache.tree`
    place: int = 0
    grown: int = 0  # entries written as deltas since the last whole manifest
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0  # calls that hold it or wait for it
    used: float = 0.0

    def fresh(self) -> None:
        """Forget what was seen: it is not known to be what is stored."""
        self.cache, self.last, self.place, self.grown = Cache(), b"", 0, 0

    def tree(self, manifest: str) -> Tree:
        """The tree of a checkpoint. Raises DamagedContent."""
        digest = bytes.fromhex(manifest)
        if digest == self.last:
            return dict(self.cache.tree)
        return tree_of(digest, self.contents.get)[0]


class Vaults:
    """All of them, each for one call at a time."""

    def __init__(self, folder: Path, segment_max: int = SEGMENT_MAX) -> None:
        """`folder` is made when it is first needed; `segment_max` as for `Contents`."""
        self.folder = folder
        self._segment_max = segment_max
        self._open: dict[str, Vault] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Give all descriptors back."""
        with self._lock:
            for vault in self._open.values():
                with vault.lock:
                    vault.contents.close()
            self._open.clear()

    @contextmanager
    def of(self, root: str, *, resolve: bool = True) -> Iterator[Vault]:
        """The vault of a workspace, for this call alone. A path that was resolved before is not resolved again."""
        real = os.path.realpath(root) if resolve else root
        with self._lock:
            vault = self._open.get(real)
            if vault is None:
                vault = self._open[real] = self._opened(real)
            vault.users += 1
            vault.used = time.monotonic()
            self._cool()
        try:
            with vault.lock:
                yield vault
        finally:
            with self._lock:
                vault.users -= 1

    def forget(self, root: str, *, contents: bool = False) -> None:
        """Give back the memory of a vault that nobody uses now; with `contents` its files too."""
        real = root if root in self._open else os.path.realpath(root)
        with self._lock:
            vault = self._open.get(real)
            if vault is None or vault.users:
                return
            del self._open[real]
            vault.contents.close()
            if contents:
                home = self.home(real)
                for file in home.iterdir():
                    file.unlink()
                home.rmdir()

    def home(self, root: str) -> Path:
        """The folder of a workspace's contents, by its resolved path."""
        return self.folder / sha256(os.fsencode(root)).hexdigest()[:32]

    def roots(self) -> list[str]:
        """The workspaces that have one, by what their folders say."""
        if not self.folder.is_dir():
            return []
        return [os.fsdecode(name.read_bytes()) for name in sorted(self.folder.glob(f"*/{_ROOT}"))]

    def size(self) -> int:
        """Bytes of all contents."""
        return sum(file.stat().st_size for file in self.folder.glob("*/*.segment"))

    def _opened(self, root: str) -> Vault:
        home, name = self.home(root), os.fsencode(root)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (home / _ROOT).exists() or (home / _ROOT).read_bytes() != name:  # new, or cut short by a power failure
            (home / _ROOT).write_bytes(name)
            for path in (home / _ROOT, self.folder, self.folder.parent):
                _sync(path)  # contents are lost with the name of the folder that they lie in
        return Vault(root, Contents(home, self._segment_max))

    def _cool(self) -> None:
        """The ones that were used longest ago are forgotten."""
        idle = sorted((vault for vault in self._open.values() if not vault.users), key=lambda vault: -vault.used)
        names = 0
        for place, vault in enumerate(idle):
            names += len(vault.cache.tree)
            if place >= WARM_MAX or names > WARM_NAMES_MAX:
                del self._open[vault.root]
                vault.contents.close()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
