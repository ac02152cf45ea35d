"""Handles: folders beneath a workspace's root, each opened from the one above it; no link is ever followed.

Names are `str` with lone surrogates for bytes that are no UTF-8 (PEP 383), so that any name a file can have survives.
Because every folder is opened by its handle with O_NOFOLLOW, whoever swaps a folder for a link meanwhile gets an error
(ELOOP, ENOTDIR), never a look at what lies outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Self

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
HELD_MAX = 48  # open folders of one chain; what lies deeper is reached from the root again
_DUPLICATE = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Handles:
    """The chain of open folders from the root to where the last question was. For one thread."""

    def __init__(self, root: str | int) -> None:
        """Hold a root by path, or by another descriptor of it. Raises OSError where there is no such folder."""
        # The root itself may be a link: it is the operator's word, checked at submit.
        self._root = os.open(".", FOLDER, dir_fd=root) if isinstance(root, int) else os.open(root, _DUPLICATE)
        self._names: list[str] = []
        self._held: list[int] = []

    def close(self) -> None:
        """Give all descriptors back."""
        self._keep(0)
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def root(self) -> int:
        """The root's own descriptor."""
        return self._root

    def folder(self, path: str) -> int:
        """A descriptor of a folder (empty = the root), valid until the next question. Raises OSError."""
        if not path:
            return self._root
        names = path.split("/")
        same = 0
        for mine, wanted in zip(self._names, names, strict=False):
            if mine != wanted:
                break
            same += 1
        self._keep(same)
        if len(names) > HELD_MAX:
            return self._deep(names)
        for name in names[same:]:
            above = self._held[-1] if self._held else self._root
            self._held.append(os.open(name, FOLDER, dir_fd=above))
            self._names.append(name)
        return self._held[-1]

    def forget(self) -> None:
        """Close what is held of the chain: a folder in it was renamed or replaced by us."""
        self._keep(0)

    def _deep(self, names: list[str]) -> int:
        """Beyond HELD_MAX only the two newest handles of the way are open at a time."""
        self._keep(HELD_MAX - 1)
        while len(self._held) < HELD_MAX - 1:
            name = names[len(self._held)]
            self._held.append(os.open(name, FOLDER, dir_fd=self._held[-1] if self._held else self._root))
            self._names.append(name)
        handle = os.dup(self._held[-1])
        for name in names[HELD_MAX - 1 :]:
            above, handle = handle, -1
            try:
                handle = os.open(name, FOLDER, dir_fd=above)
            finally:
                os.close(above)
        # Held under a name that no file can have: the next question closes it.
        self._held.append(handle)
        self._names.append("")
        return handle

    def _keep(self, count: int) -> None:
        while len(self._held) > count:
            os.close(self._held.pop())
            self._names.pop()


def parent_of(path: str) -> tuple[str, str]:
    """A path's folder and its own name."""
    above, _, name = path.rpartition("/")
    return above, name


def lstat(folder: int, name: str) -> os.stat_result | None:
    """What a name in a folder is, no link followed; None where nothing is."""
    # No file's name holds a NUL, or what no encoding takes: Python refuses to ask (ValueError).
    with contextlib.suppress(FileNotFoundError, ValueError):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    return None


def gone(error: OSError) -> bool:
    """The error says that a name vanished, or became something else, since it was looked at."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ESTALE)
