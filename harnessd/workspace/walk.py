"""Walk: what a workspace holds now, by folder handles; what did not change since the last look is not read again.

Nothing of the workspace is followed, run or asked: names come from the folders themselves, contents from descriptors
that were opened without following links and are looked at before they are read. A stat cache in memory says what is
unchanged. It trusts a file only if its change time lies before the kernel's clock at the moment it was read: a later
change within the same tick would leave the same time behind (what git calls racily clean).
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from harnessd.workspace import coverage
from harnessd.workspace.coverage import Limits
from harnessd.workspace.handles import FOLDER, Handles, gone, lstat, parent_of
from harnessd.workspace.manifest import Change, Entry, Tree

_COARSE = 5  # CLOCK_REALTIME_COARSE: the clock that inode times are taken from
TICK_NS = int(time.clock_getres(_COARSE) * 1e9)  # 1 to 10 ms
WHOLE_MAX = 8 << 20  # bytes of a file that is read in one piece
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_STEADY_TRIES = 3


class Keep(Protocol):
    """Where contents go: `Contents`."""

    def put(self, data: bytes) -> bytes:
        """Keep a content; gives its SHA-256."""

    def put_from(self, read: Callable[[int], bytes], most: int) -> tuple[bytes, int] | None:
        """Keep a content piece by piece; its SHA-256 and length, None where it is longer than `most`."""


class Stopped(Exception):  # noqa: N818 - an answer inside the room
    """The walk was told to stop; nothing of it counts."""


class RootGone(OSError):  # noqa: N818 - named as what happened
    """The workspace's own folder is not there, or cannot be read."""


Pattern = re.Pattern[str] | None
# What was seen of a name: change time, modification time, size, inode, and the entry it gave. A time of 0 fits nothing.
Seen = tuple[int, int, int, int, Entry]


@dataclass(slots=True)
class Cache:
    """What the last walk of one workspace saw, and the tree that came out of it."""

    folders: dict[str, dict[str, Seen]] = field(default_factory=dict)
    tree: Tree = field(default_factory=dict)
    inode: tuple[int, int] = (0, 0)  # of the root: another folder under the same path begins anew


@dataclass(slots=True)
class Walk:
    """One look at a workspace. Use once."""

    handles: Handles
    limits: Limits
    cache: Cache
    keep: Keep
    stop: Callable[[], bool] = lambda: False
    read_files: int = 0
    read_bytes: int = 0
    _entries: Tree = field(default_factory=dict)
    _removed: list[str] = field(default_factory=list)
    _device: int = 0

    def whole(self) -> Change:
        """Look at everything; the cache is brought up to date, and what differs from its old tree is given back.

        Raises RootGone, Stopped, StorageFull; the cache is then to be thrown away.
        """
        self._begin()
        return self._rest()

    def _rest(self) -> Change:
        excluded = self.limits.excluded()
        todo = [""]
        while todo:
            path = todo.pop()
            if self.stop():
                raise Stopped
            try:
                handle = self.handles.folder(path)
            except OSError as error:
                if not path:
                    raise RootGone(*error.args) from error
                self._closed(path, error)
                continue
            below = self._folder(handle, path, excluded)
            todo += reversed(below)
        return self._done()

    def only(self, paths: Iterable[str]) -> Change:
        """Look at these paths, and at what lies below them; all else counts as unchanged."""
        self._begin()
        excluded = self.limits.excluded()
        ways = {self._known_way(path) for path in paths}
        if None in ways or not self.cache.folders:
            return self._rest()
        for path in sorted(way for way in ways if way is not None):
            self._one(path, excluded)
        return self._done()

    def _known_way(self, path: str) -> str | None:
        """The path, or the folder on the way to it that is new; None where a link leads somewhere else."""
        names = path.split("/")
        if any(name in ("", ".", "..") for name in names):
            return None
        for count in range(len(names)):
            known = self.cache.folders.get("/".join(names[:count]))
            if known is None:
                return "/".join(names[:count])
            seen = known.get(names[count])
            if seen is not None and seen[4].kind == "link":
                return None
        return path

    # --- the parts --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        try:
            found = os.fstat(self.handles.root)
            os.close(os.open(".", FOLDER, dir_fd=self.handles.root))
        except OSError as error:
            raise RootGone(*error.args) from error
        self._device = found.st_dev
        if self.cache.inode != (found.st_dev, found.st_ino):
            self.cache.folders.clear()
            self.cache.inode = (found.st_dev, found.st_ino)
            self._removed += self.cache.tree
        root = _folder_entry(found)
        if self.cache.tree.get("") != root:
            self._entries[""] = root

    def _done(self) -> Change:
        tree = self.cache.tree
        for path in self._removed:
            if path not in self._entries:
                tree.pop(path, None)
        tree.update(self._entries)
        removed = tuple(path for path in dict.fromkeys(self._removed) if path not in self._entries)
        return Change(self._entries, removed)

    def _folder(self, handle: int, path: str, excluded: Pattern) -> list[str]:
        """Everything in one folder; gives the folders below it that are to be looked at."""
        before = self.cache.folders.get(path, {})
        now: dict[str, Seen] = {}
        below: list[str] = []
        prefix = f"{path}/" if path else ""
        directory = stat.S_IFDIR
        with os.scandir(handle) as names:
            for item in names:
                name = item.name
                try:
                    found = item.stat(follow_symlinks=False)
                except OSError:
                    continue  # gone since it was listed
                old = before.get(name)
                if (
                    old is not None
                    and old[0] == found.st_ctime_ns
                    and old[1] == found.st_mtime_ns
                    and old[2] == found.st_size
                    and old[3] == found.st_ino
                ):
                    now[name] = old
                    continue
                seen = self._look(handle, name, found, prefix + name, excluded)
                if seen is None:
                    continue
                now[name] = seen
                self._note(prefix + name, old, seen)
                if found.st_mode & 0o170000 == directory and seen[4].kind == "folder":
                    below.append(prefix + name)
        if len(now) < len(before) or before.keys() - now.keys():
            for name in before.keys() - now.keys():
                self._gone(prefix + name)
        self.cache.folders[path] = now
        return below

    def _note(self, path: str, old: Seen | None, seen: Seen) -> None:
        entry = seen[4]
        if old is not None and old[4].kind == "folder" and entry.kind != "folder":
            self._forget_below(path)
        if self.cache.tree.get(path) != entry:
            self._entries[path] = entry

    def _gone(self, path: str) -> None:
        self._forget_below(path)
        self._removed.append(path)

    def _forget_below(self, path: str) -> None:
        """A folder is no more: neither is anything that was in it."""
        todo = [path]
        while todo:
            folder = todo.pop()
            for name, seen in self.cache.folders.pop(folder, {}).items():
                child = f"{folder}/{name}"
                self._removed.append(child)
                if seen[4].kind == "folder":
                    todo.append(child)

    def _closed(self, path: str, error: OSError) -> None:
        """A folder that cannot be entered: gone, or not ours to read. What is known of it is not deleted by us."""
        above, name = parent_of(path)
        old = self.cache.folders.get(above, {}).pop(name, None)
        self._forget_below(path)
        if gone(error) or old is None:
            self._entries.pop(path, None)
            self._removed.append(path)
            return
        entry = old[4]._replace(kind="uncovered", size=0, holds=coverage.UNREADABLE)
        self._entries[path] = entry
        self.cache.folders.setdefault(above, {})[name] = (0, 0, 0, 0, entry)

    def _one(self, path: str, excluded: Pattern) -> None:
        """One path of a dirty list."""
        above, name = parent_of(path)
        known = self.cache.folders[above]
        try:
            handle = self.handles.folder(above)
            found = lstat(handle, name)
        except OSError:
            found = None
        old = known.pop(name, None)
        if found is None:
            if old is not None:
                self._gone(path)
            return
        seen = self._look(handle, name, found, path, excluded)
        if seen is None:
            if old is not None:
                self._gone(path)
            return
        known[name] = seen
        self._note(path, old, seen)
        todo = [path] if seen[4].kind == "folder" else []
        while todo:
            folder = todo.pop()
            try:
                handle = self.handles.folder(folder)
            except OSError as error:
                self._closed(folder, error)
                continue
            todo += self._folder(handle, folder, excluded)

    # --- one name ---------------------------------------------------------------------------------------------------

    def _look(self, handle: int, name: str, found: os.stat_result, path: str, excluded: Pattern) -> Seen | None:
        """What a name is now; None where it is gone again."""
        kind = stat.S_IFMT(found.st_mode)
        reason = b""
        if excluded is not None and excluded.match(path):
            reason = coverage.EXCLUDED
        elif kind == stat.S_IFDIR:
            # Times and size of a folder change with every name in it and are not covered: it is looked at each time.
            if found.st_dev != self._device:
                return (0, 0, 0, 0, _uncovered(found, coverage.OTHER_FILE_SYSTEM))
            return (0, 0, 0, 0, _folder_entry(found))
        elif kind == stat.S_IFLNK:
            return self._link(handle, name, found)
        elif kind != stat.S_IFREG:
            reason = coverage.special(found.st_mode)
        elif found.st_size > self.limits.max_file:
            reason = coverage.TOO_LARGE
        if reason:
            entry = _uncovered(found, reason)
            return (found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino, entry)
        return self._file(handle, name)

    def _link(self, handle: int, name: str, found: os.stat_result) -> Seen | None:
        try:
            target = os.fsencode(os.readlink(name, dir_fd=handle))
        except OSError:
            return None
        # A link's mode is always 0777 on Linux and cannot be changed.
        entry = Entry("link", 0o777, found.st_uid, found.st_gid, 0, target)
        return (found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino, entry)

    def _file(self, handle: int, name: str) -> Seen | None:
        for _ in range(_STEADY_TRIES):
            if self.stop():
                raise Stopped
            try:
                file = _open(handle, name)
            except OSError as error:
                found = None if gone(error) else lstat(handle, name)
                return None if found is None else (0, 0, 0, 0, _uncovered(found, coverage.UNREADABLE))
            try:
                seen = self._read(file)
            except OSError:
                found = os.fstat(file)
                return (0, 0, 0, 0, _uncovered(found, coverage.UNREADABLE))
            finally:
                os.close(file)
            if seen is not None:
                return seen
        return self._moving(handle, name)

    def _read(self, file: int, *, steady: bool = True) -> Seen | None:
        """A file's content; None where it changed while it was read."""
        clock = time.clock_gettime_ns(_COARSE)
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            return (0, 0, 0, 0, _uncovered(before, coverage.special(before.st_mode)))
        large, kept = before.st_size > WHOLE_MAX, None
        if large:
            kept, data = self.keep.put_from(lambda count: self._piece(file, count), self.limits.max_file), b""
        else:
            data = _contents(file, before.st_size, self.limits.max_file)
        after = os.fstat(file)
        if (large and kept is None) or len(data) > self.limits.max_file:
            return (0, 0, 0, 0, _uncovered(after, coverage.TOO_LARGE))
        length = len(data) if kept is None else kept[1]
        same = (before.st_ctime_ns, before.st_size, length) == (after.st_ctime_ns, after.st_size, after.st_size)
        if steady and not same and not large:
            return None
        digest = self.keep.put(data) if kept is None else kept[0]
        self.read_files += 1
        self.read_bytes += length
        entry = Entry("file", stat.S_IMODE(after.st_mode), after.st_uid, after.st_gid, length, digest)
        newest = max(after.st_ctime_ns, after.st_mtime_ns)
        if not same or newest >= clock - TICK_NS:
            # Racily clean: a change that follows within the same tick would leave no trace.
            return (0, 0, 0, 0, entry)
        changed = after.st_ctime_ns
        modified = changed if after.st_mtime_ns == changed else after.st_mtime_ns
        return (changed, modified, after.st_size, after.st_ino, entry)

    def _piece(self, file: int, count: int) -> bytes:
        if self.stop():
            raise Stopped
        return os.read(file, count)

    def _moving(self, handle: int, name: str) -> Seen | None:
        """A file that somebody keeps writing is kept as it was met, and read again next time."""
        try:
            file = _open(handle, name)
        except OSError:
            return None
        try:
            return self._read(file, steady=False)
        finally:
            os.close(file)


def _open(handle: int, name: str) -> int:
    try:
        return os.open(name, _READ | os.O_NOATIME, dir_fd=handle)
    except PermissionError:
        # Not the owner: a look then counts as an access, as any look does.
        return os.open(name, _READ, dir_fd=handle)


def _contents(file: int, size: int, most: int) -> bytes:
    """The whole file, but never much more than `most`: somebody may be writing to it."""
    data = os.read(file, size + 1)
    if len(data) == size or not data:
        return data
    parts = [data]
    length = len(data)
    while length <= most:
        more = os.read(file, min(1 << 20, most + 1 - length))
        if not more:
            break
        parts.append(more)
        length += len(more)
    return b"".join(parts)


def _folder_entry(found: os.stat_result) -> Entry:
    return Entry("folder", stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, 0, b"")


def _uncovered(found: os.stat_result, reason: bytes) -> Entry:
    # Neither size nor mode: a growing log that nobody covers is no change of the workspace.
    del found
    return Entry("uncovered", 0, 0, 0, 0, reason)
