"""Confine: names are opened beneath the workspace's root by the kernel, never judged as text.

A check of the text and an open that follows are two looks at a tree that somebody else may change in between (measured
elsewhere: a check by realpath lets one read in a hundred out under a swapping race, openat2 none). `openat2` with
RESOLVE_BENEATH refuses, inside the one system call, whatever would leave the root: `..` at the top, an absolute link, a
magic link of /proc. Where the kernel or a system call filter does not offer it, the path is walked by hand: one
directory handle for each component, each opened with O_NOFOLLOW, links read and walked in their turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Self

from harnessd.domain.ports import FileFacts

SYS_OPENAT2 = 437  # one number on every architecture since 5.6, alpha apart
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_BENEATH = 0x08
LINKS_MAX = 40  # what the kernel follows in one path
RACES_MAX = 32  # EAGAIN: a rename crossed the kernel's walk; it cannot tell whether `..` stayed beneath
O_PATH = os.O_PATH | os.O_CLOEXEC
O_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class _How(ctypes.Structure):
    """`struct open_how` of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_LIBC = ctypes.CDLL(None, use_errno=True)
Open = Callable[[int, str, int], int]


def open_beneath(root: int, path: str, flags: int) -> int:
    """Open an existing name beneath a directory handle by `openat2`. Raises OSError as the kernel says."""
    how = _How(flags | os.O_CLOEXEC, 0, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    name = os.fsencode(path)
    for _ in range(RACES_MAX):
        opened = int(_LIBC.syscall(SYS_OPENAT2, root, name, ctypes.byref(how), ctypes.sizeof(how)))
        if opened >= 0:
            return opened
        error = ctypes.get_errno()
        if error not in (errno.EAGAIN, errno.EINTR):
            raise OSError(error, os.strerror(error), path)
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)


def walk_beneath(root: int, path: str, flags: int) -> int:
    """The same by a walk of directory handles, for kernels without `openat2`.

    `..` goes back to the handle that was walked through, so that a folder moved meanwhile leads nowhere else.
    """
    if path.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    parts = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    handles = [os.dup(root)]
    links = 0
    try:
        while parts:
            part = parts.pop()
            if part == "..":
                if len(handles) == 1:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
                os.close(handles.pop())
                continue
            target = _link_at(handles[-1], part)
            if target is None:
                last = not parts
                wanted = flags if last else O_FOLDER
                handles.append(os.open(part, wanted | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handles[-1]))
                continue
            if not parts and flags & os.O_NOFOLLOW:
                handles.append(os.open(part, flags | os.O_CLOEXEC, dir_fd=handles[-1]))
                continue
            links += 1
            if links > LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            parts += [piece for piece in reversed(target.split("/")) if piece not in ("", ".")]
        return _as_wanted(handles.pop(), flags)
    finally:
        for handle in handles:
            os.close(handle)


def _as_wanted(handle: int, flags: int) -> int:
    """A walk that ends at a handle it came through (`.`, `..`) has it as O_PATH only: open it again as asked."""
    try:
        return os.open(".", flags | os.O_CLOEXEC, dir_fd=handle) if _is_bare_folder(handle) else os.dup(handle)
    finally:
        os.close(handle)


def _is_bare_folder(handle: int) -> bool:
    return stat.S_ISDIR(os.fstat(handle).st_mode)


def _link_at(folder: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.EINVAL:  # not a link
            return None
        raise


def kernel_offers_openat2() -> bool:
    """Whether `openat2` works here: the kernel knows it (5.6) and no system call filter refuses it."""
    root = os.open("/", O_FOLDER)
    try:
        os.close(open_beneath(root, ".", O_FOLDER))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


class Confined:
    """One workspace, held by a descriptor of its root: the `Confinement` port."""

    def __init__(self, root: str, open_: Open | None = None) -> None:
        """Hold `root`. `open_`: `open_beneath` or `walk_beneath`; by default the strongest that works here."""
        self.root = os.path.abspath(root)  # noqa: PTH100 - text for `relative`, nothing is resolved by it
        self._handle = os.open(root, O_FOLDER)
        self._real = os.path.realpath(root)
        self._open = open_ or (open_beneath if kernel_offers_openat2() else walk_beneath)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def relative(self, path: str) -> str:
        if "\0" in path:
            raise OSError(errno.EINVAL, "the path holds a NUL", path.replace("\0", "\ufffd"))
        if not path.startswith("/"):
            return _tidy(path)
        parts = [part for part in path.split("/") if part not in ("", ".")]
        for root in (self.root, self._real):
            above = [part for part in root.split("/") if part]
            if parts[: len(above)] == above:
                return "/".join(parts[len(above) :]) or "."
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)

    def open_read(self, path: str) -> int:
        name = self.relative(path)
        # Opening a device may already act on it, so the name is looked at first; O_NONBLOCK is for the race in between.
        with self._at(name, O_PATH) as handle:
            _insist_on_file(os.fstat(handle), name)
        opened = self._open(self._handle, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            _insist_on_file(os.fstat(opened), name)
        except OSError:
            os.close(opened)
            raise
        return opened

    def write(self, path: str, content: bytes) -> bool:
        name = self.relative(path)
        for _ in range(LINKS_MAX):
            folder, base = os.path.split(name.rstrip("/"))
            if base in ("", ".", ".."):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), name)
            with self._made(folder or ".") as handle:
                target = _link_or_nothing(handle, base)
                if target is None:
                    return _replace(handle, base, content, name)
            # The link's own target is resolved beneath the root again, from the folder that holds the link.
            name = target if target.startswith("/") else os.path.join(folder, target)  # noqa: PTH118
            if target.startswith("/"):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def facts(self, path: str) -> FileFacts:
        with self._at(self.relative(path), O_PATH) as handle:
            return _facts(os.fstat(handle))

    def entries(self, path: str) -> Sequence[tuple[str, FileFacts]]:
        with self._at(self.relative(path), os.O_RDONLY | os.O_DIRECTORY) as handle:
            names = sorted(os.listdir(handle))  # noqa: PTH208 - pathlib lists no descriptors
            return [(name, facts) for name in names if (facts := _entry(handle, name))]

    @contextlib.contextmanager
    def _at(self, name: str, flags: int) -> Iterator[int]:
        handle = self._open(self._handle, name, flags)
        try:
            yield handle
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _made(self, folder: str) -> Iterator[int]:
        """A handle of a folder, missing parts made one by one, each beneath the root."""
        parts = [part for part in folder.split("/") if part not in ("", ".")]
        # Through `..` nothing is made: what it would lead to is not known before the parts in front of it exist.
        for count in range(1, len(parts) + 1) if ".." not in parts else ():
            above = "/".join(parts[: count - 1]) or "."
            with self._at(above, O_FOLDER) as parent, contextlib.suppress(FileExistsError):
                os.mkdir(parts[count - 1], dir_fd=parent)
        with self._at(folder, O_FOLDER) as handle:
            yield handle


def confine(root: str) -> Confined:
    """The confinement of a workspace. Raises OSError where there is no such folder."""
    return Confined(root)


def _tidy(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", ".")) or "."


def _insist_on_file(found: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.ENXIO, "not a regular file", name)


def _link_or_nothing(folder: int, name: str) -> str | None:
    """Where a link points; None for anything else, a missing name included."""
    try:
        return _link_at(folder, name)
    except FileNotFoundError:
        return None


def _replace(folder: int, base: str, content: bytes, name: str) -> bool:
    """Write a temporary name beside the target and rename it over: readers see the old file or the new one."""
    try:
        old = os.stat(base, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        old = None
    if old is not None:
        _insist_on_file(old, name)
    # Short and of our own making, so that a target with a name of the greatest length still has room.
    temporary = f".harnessd-{secrets.token_hex(6)}"
    handle = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder
    )
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if old is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
        os.rename(temporary, base, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    return old is None


def _entry(folder: int, name: str) -> FileFacts | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return _facts(found, os.readlink(name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else "")
    except FileNotFoundError:  # gone since it was listed
        return None


def _facts(found: os.stat_result, link: str = "") -> FileFacts:
    kind: Literal["file", "folder", "link", "other"] = "other"
    if stat.S_ISREG(found.st_mode):
        kind = "file"
    elif stat.S_ISDIR(found.st_mode):
        kind = "folder"
    elif stat.S_ISLNK(found.st_mode):
        kind = "link"
    return FileFacts(kind, found.st_size, stat.S_IMODE(found.st_mode), link)
