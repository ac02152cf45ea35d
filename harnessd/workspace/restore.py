"""Restore: a plan carried out: everything new is written under a name of our own first, then renamed into its place.

Nothing is written into an existing file, so that a hard link to somewhere else keeps its content. A restore that was
cut off at any point is done again from the start: what is left of it lies in one folder of a known name, everything
else is looked at anew. What a folder's mode forbids its owner is allowed for the moment and put right at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harnessd.domain.failure import StorageFull
from harnessd.workspace.content import Contents
from harnessd.workspace.handles import FOLDER, Handles, lstat, parent_of
from harnessd.workspace.manifest import Entry, Tree
from harnessd.workspace.plan import Plan
from harnessd.workspace.walk import Cache

_SPECIAL = stat.S_ISUID | stat.S_ISGID
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOM = 64 << 20  # bytes that stay free on the workspace's file system
_LIBC = ctypes.CDLL(None, use_errno=True)


class Meddled(OSError):  # noqa: N818 - named as what happened
    """Somebody changed the name since it was captured: it is not overwritten."""


def staging_name(token: str) -> str:
    """The folder in the workspace's root where a restore prepares what it will rename."""
    return f".harnessd-restore-{token}"


def clear_staging(handles: Handles, token: str) -> bool:
    """Take away what a restore that was cut off left behind. Raises OSError."""
    name = staging_name(token)
    found = lstat(handles.root, name)
    if found is None:
        return False
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=handles.root)
        return True
    handle = os.open(name, FOLDER, dir_fd=handles.root)
    try:
        for item in os.listdir(handle):  # noqa: PTH208 - by descriptor
            with contextlib.suppress(FileNotFoundError):
                os.unlink(item, dir_fd=handle)
    finally:
        os.close(handle)
    os.rmdir(name, dir_fd=handles.root)
    return True


@dataclass(slots=True)
class Restore:
    """One plan, one workspace. Use once."""

    handles: Handles
    contents: Contents
    cache: Cache  # of the walk that the plan was made from
    target: Tree
    plan: Plan
    token: str
    step: Callable[[str], None] = lambda _: None  # called before each change, with its path: crash points hang here
    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    stripped: list[str] = field(default_factory=list)  # set-id bits that would have come to another owner
    _staged: dict[str, str] = field(default_factory=dict)
    _staging: int = -1
    _opened: dict[str, int] = field(default_factory=dict)  # folders whose mode was widened, with the mode they had

    def check(self) -> None:
        """Read everything that will be needed, and look for room. Nothing was touched when this raises.

        Raises DamagedContent, StorageFull.
        """
        wanted = [self.target[path] for path in (*self.plan.put, *filter(self._shared, self.plan.modes))]
        files = [entry for entry in wanted if entry.kind == "file"]
        for digest in {entry.holds for entry in files}:
            self.contents.verify(digest)
        need = sum(entry.size for entry in files)
        free = os.fstatvfs(self.handles.root)
        if need and need + _ROOM > free.f_bavail * free.f_frsize:
            raise StorageFull(
                f"A restore needs {need >> 20} MiB more than the workspace's file system has room for; "
                "nothing was changed.",
                remedy="Free some disk space and try again.",
            )

    def _shared(self, path: str) -> bool:
        """A file with more names than this one: it will be written anew, so that the others keep their mode."""
        above, name = parent_of(path)
        try:
            found = lstat(self.handles.folder(above), name) if name else None
        except OSError:
            return False
        return found is not None and stat.S_ISREG(found.st_mode) and found.st_nlink > 1

    def run(self) -> None:
        """Do it. What could not be done stands in `failed`, by path; the rest was done all the same."""
        self._widen("")
        try:
            self._stage()
            self._apply()
        finally:
            if self._staging >= 0:
                os.close(self._staging)
            with contextlib.suppress(OSError):
                clear_staging(self.handles, self.token)
            self._narrow()
        if "" in self.plan.modes:  # the root last of all: until here it had to be open
            self._do("", self._folder_mode)
        sync(self.handles.root)

    # --- stage --------------------------------------------------------------------------------------------------------

    def _stage(self) -> None:
        if not self.plan.put:
            return
        name = staging_name(self.token)
        os.mkdir(name, 0o700, dir_fd=self.handles.root)
        self._staging = os.open(name, FOLDER, dir_fd=self.handles.root)
        for number, path in enumerate(self.plan.put):
            self.step(path)
            entry = self.target[path]
            try:
                if entry.kind == "link":
                    os.symlink(entry.holds, str(number), dir_fd=self._staging)
                    self._own_link(str(number), entry)
                else:
                    self._write(str(number), path, entry)
            except OSError as error:
                self._fail(path, error)
                continue
            self._staged[path] = str(number)

    def _write(self, name: str, path: str, entry: Entry) -> None:
        file = os.open(name, _NEW, 0o600, dir_fd=self._staging)
        try:
            for piece in self.contents.pieces(entry.holds):
                view = memoryview(piece)
                while view:
                    view = view[os.write(file, view) :]
            self._dress(file, path, entry)
        finally:
            os.close(file)

    def _own_link(self, name: str, entry: Entry) -> None:
        found = os.stat(name, dir_fd=self._staging, follow_symlinks=False)
        if (found.st_uid, found.st_gid) != (entry.uid, entry.gid):
            with contextlib.suppress(PermissionError):
                os.chown(name, entry.uid, entry.gid, dir_fd=self._staging, follow_symlinks=False)

    def _dress(self, file: int, path: str, entry: Entry) -> None:
        """Owner and mode by descriptor. Set-id bits are for the owner they were given by, and for nobody else."""
        found = os.fstat(file)
        mode = entry.mode
        if (found.st_uid, found.st_gid) != (entry.uid, entry.gid):
            try:
                _chown(file, entry.uid, entry.gid)
            except PermissionError:
                with contextlib.suppress(PermissionError):
                    _chown(file, -1, entry.gid)
                now = os.fstat(file)
                lost = (now.st_uid != entry.uid and mode & stat.S_ISUID) or (
                    now.st_gid != entry.gid and mode & stat.S_ISGID and stat.S_ISREG(now.st_mode)
                )
                if lost:
                    mode &= ~_SPECIAL
                    self.stripped.append(path)
        # chown clears set-id bits, so the mode comes last. By /proc, because an O_PATH handle knows no fchmod.
        if stat.S_IMODE(os.fstat(file).st_mode) != mode:
            Path(f"/proc/self/fd/{file}").chmod(mode)

    # --- apply --------------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        for path in self.plan.remove:
            self._do(path, self._remove)
        for path in self.plan.make:
            self._do(path, self._make)
        for path in self.plan.put:
            if path in self._staged:
                self._do(path, self._rename)
        for path in self.plan.modes:
            if self.target[path].kind != "folder":
                self._do(path, self._mode)
        for one in self.plan.rescued:
            self._do(one.path, self._rescue)
        # The inner ones first: a folder that its owner may not enter is closed last.
        for path in sorted([*self.plan.make, *self.plan.modes], reverse=True):
            if path and self.target[path].kind == "folder" and path not in self.failed:
                self._do(path, self._folder_mode)

    def _do(self, path: str, work: Callable[[str], None]) -> None:
        self.step(path)
        try:
            work(path)
        except OSError as error:
            self._fail(path, error)
        else:
            self.done += 1

    def _fail(self, path: str, error: OSError) -> None:
        self.failed[path] = str(error) if isinstance(error, Meddled) else error.strerror or str(error)

    def _remove(self, path: str) -> None:
        above, name = parent_of(path)
        handle = self._at(above)
        found = lstat(handle, name)
        if found is None:
            return
        self._unmeddled(path, found)
        if stat.S_ISDIR(found.st_mode):
            self.handles.forget()
            handle = self._at(above)
            os.rmdir(name, dir_fd=handle)
            self._opened.pop(path, None)
        else:
            os.unlink(name, dir_fd=handle)

    def _make(self, path: str) -> None:
        above, name = parent_of(path)
        handle = self._at(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=handle)
        if not stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
            raise Meddled("something else was put in its place meanwhile")

    def _rename(self, path: str) -> None:
        above, name = parent_of(path)
        handle = self._at(above)
        found = lstat(handle, name)
        if found is not None:
            self._unmeddled(path, found)
        os.rename(self._staged[path], name, src_dir_fd=self._staging, dst_dir_fd=handle)

    def _mode(self, path: str) -> None:
        """Another mode or owner, same content. A file with more names is left to the other ones: it is written anew."""
        above, name = parent_of(path)
        file = os.open(name, _PATH, dir_fd=self._at(above))
        try:
            found = os.fstat(file)
            self._unmeddled(path, found)
            if not stat.S_ISREG(found.st_mode):
                raise Meddled("something else was put in its place meanwhile")
            if found.st_nlink == 1:
                self._dress(file, path, self.target[path])
                return
        finally:
            os.close(file)
        self._anew(path)

    def _anew(self, path: str) -> None:
        if self._staging < 0:
            name = staging_name(self.token)
            os.mkdir(name, 0o700, dir_fd=self.handles.root)
            self._staging = os.open(name, FOLDER, dir_fd=self.handles.root)
        number = f"m{self.done}"
        self._write(number, path, self.target[path])
        self._staged[path] = number
        self._rename(path)

    def _folder_mode(self, path: str) -> None:
        self._opened.pop(path, None)
        above, name = parent_of(path)
        handle = os.open(name or ".", _PATH | os.O_DIRECTORY, dir_fd=self._at(above))
        try:
            self._dress(handle, path, self.target[path])
        finally:
            os.close(handle)

    def _rescue(self, path: str) -> None:
        above, commit = parent_of(path)  # the file is named by the commit it keeps
        names = above.split("/")
        for count in range(1, len(names) + 1):
            handle = self._at("/".join(names[: count - 1]))
            with contextlib.suppress(FileExistsError):
                os.mkdir(names[count - 1], 0o755, dir_fd=handle)
        with contextlib.suppress(FileExistsError):
            file = os.open(commit, _NEW, 0o644, dir_fd=self._at(above))
            try:
                os.write(file, f"{commit}\n".encode())
            finally:
                os.close(file)

    def _unmeddled(self, path: str, found: os.stat_result) -> None:
        """The name is still what the walk captured; else somebody wrote to it since, and it is theirs."""
        above, name = parent_of(path)
        seen = self.cache.folders.get(above, {}).get(name)
        if seen is None:
            raise Meddled("it was made while the restore ran")
        if seen[4].kind == "folder" or stat.S_ISDIR(found.st_mode):
            if seen[4].kind != "folder" or not stat.S_ISDIR(found.st_mode):
                raise Meddled("something else was put in its place while the restore ran")
            return
        # Not the change time: where two names share a file, what we do to one moves it for the other.
        if seen[4].kind != "uncovered" and seen[1:4] != (found.st_mtime_ns, found.st_size, found.st_ino):
            raise Meddled("it was changed while the restore ran")

    # --- folders that their owner may not write ---------------------------------------------------------------------

    def _at(self, folder: str) -> int:
        try:
            handle = self.handles.folder(folder)
        except PermissionError:
            self._widen_all(folder)
            handle = self.handles.folder(folder)
        if os.geteuid() != 0 and _closed_to_owner(os.fstat(handle)):
            # A handle is valid until the next question, and to widen a folder is to ask for the one above it.
            self._widen(folder)
            handle = self.handles.folder(folder)
        return handle

    def _widen_all(self, folder: str) -> None:
        names = folder.split("/")
        for count in range(len(names) + 1):
            self._widen("/".join(names[:count]))

    def _widen(self, folder: str) -> None:
        """Let the owner work in a folder for the moment. Root needs none of it."""
        if folder in self._opened or os.geteuid() == 0:
            return
        above, name = parent_of(folder)
        at = self.handles.root if not above else self.handles.folder(above)
        handle = os.open(name or ".", _PATH | os.O_DIRECTORY, dir_fd=at)
        try:
            found = os.fstat(handle)
            if _closed_to_owner(found):
                mode = stat.S_IMODE(found.st_mode)
                Path(f"/proc/self/fd/{handle}").chmod(mode | stat.S_IRWXU)
                self._opened[folder] = mode
        finally:
            os.close(handle)

    def _narrow(self) -> None:
        for folder in sorted(self._opened, reverse=True):
            mode = self._opened[folder]
            above, name = parent_of(folder)
            with contextlib.suppress(OSError):
                at = self.handles.root if not above else self.handles.folder(above)
                handle = os.open(name or ".", _PATH | os.O_DIRECTORY, dir_fd=at)
                try:
                    Path(f"/proc/self/fd/{handle}").chmod(mode)
                finally:
                    os.close(handle)


def _closed_to_owner(folder: os.stat_result) -> bool:
    return stat.S_IMODE(folder.st_mode) & stat.S_IRWXU != stat.S_IRWXU


def sync(folder: int) -> None:
    """Everything on the folder's file system is on disk when this returns. Raises OSError."""
    if _LIBC.syncfs(folder) != 0:
        error = ctypes.get_errno()
        if error != errno.ENOSYS:
            raise OSError(error, os.strerror(error))
        os.sync()


def _chown(handle: int, uid: int, gid: int) -> None:
    # By /proc, because an O_PATH handle knows no fchown.
    os.chown(f"/proc/self/fd/{handle}", uid, gid)
