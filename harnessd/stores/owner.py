"""Owner: the lock that keeps a second daemon out, the acknowledged mark beside the database, the files' identities."""

from __future__ import annotations

import fcntl
import os
import zlib
from pathlib import Path

from harnessd.domain.failure import HarnessError, StoreLocked, StoreLost

# A lock on these says nothing about the other machine, and their write order is not ours to know.
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "9p", "fuse.sshfs", "fuse.glusterfs"}
)


def beside(database: Path, ending: str) -> Path:
    """A file beside the database, e.g. `harnessd.db-wal`."""
    return database.with_name(database.name + ending)


class OwnerLock:
    """One daemon for one store: an advisory lock on a file that is never deleted.

    The descriptor is closed on exec: a tool's process that inherited it would keep the restarted daemon out.
    """

    def __init__(self, database: Path) -> None:
        """Take the lock. Raises StoreLocked, HarnessError."""
        path = beside(database, ".lock")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise HarnessError(
                f"The store's lock file {path} cannot be written: {error.strerror}.",
                remedy="Give this user the right to write in that folder, or set store.url to another one.",
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 200, 0).decode("utf-8", "replace").strip() or "unknown"
            os.close(self._file)
            raise StoreLocked(
                f"Another daemon ({holder}) holds the store {database}.",
                remedy="Stop it first, or give this one its own store.url.",
            ) from None

    def sign(self, owner: str) -> None:
        """Leave word for whoever is refused."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{owner}, pid {os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the next one in. The file stays: deleting it would let two in."""
        os.close(self._file)


class AckedMark:
    """The last acknowledged commit in a second file.

    A damaged WAL opens cleanly as a shorter one, and `integrity_check` says ok: only somebody who remembers how far
    the store had got can tell. The mark is written before each answer and synced at most once a second, so after a
    power cut it may lag; it never runs ahead of the store.
    """

    def __init__(self, database: Path) -> None:
        """Open or create the file. Raises HarnessError."""
        self.path = beside(database, ".acked")
        self._synced_at = float("-inf")
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise HarnessError(f"{self.path} cannot be written: {error.strerror}.") from error

    def read(self) -> tuple[str, int] | None:
        """The store's identity and its last acknowledged commit; None for a fresh mark. Raises StoreLost."""
        text = os.pread(self._file, 200, 0)
        if not text:
            return None
        words = text.decode("ascii", "replace").split()
        if len(words) != 3 or words[2] != _checksum(f"{words[0]} {words[1]}"):
            raise StoreLost(
                f"{self.path} is damaged: nobody can tell whether the store holds all it acknowledged.",
                remedy="If you know that it does, delete that file; else run `harnessd restore FILE` with a backup.",
            )
        return words[0], int(words[1])

    def write(self, store: str, commit: int, monotonic: float | None = None) -> None:
        """Remember `commit`; synced when the last sync is a second old, always without `monotonic`."""
        text = f"{store} {commit:020d}"
        os.pwrite(self._file, f"{text} {_checksum(text)}\n".encode("ascii"), 0)
        if monotonic is None or monotonic - self._synced_at >= 1.0:
            os.fdatasync(self._file)
            self._synced_at = monotonic if monotonic is not None else self._synced_at

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._file)


Identities = tuple[tuple[int, int] | None, ...]


def identities(database: Path, count: int = 3) -> Identities:
    """Device and inode of the database, its log and its index, by `stat` alone.

    Nobody in this process may open one of them but SQLite: closing any descriptor of a file drops all POSIX locks
    the process holds on it, and the next reader elsewhere would delete the log under us.
    """
    found: list[tuple[int, int] | None] = []
    for path in (database, beside(database, "-wal"), beside(database, "-shm"))[:count]:
        try:
            status = os.stat(path)  # noqa: PTH116 - three of these before every commit: no objects for them
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return tuple(found)


def check_identities(database: Path, expected: Identities) -> None:
    """Raise StoreLost when one of the expected files is gone or is another one."""
    found = identities(database, len(expected))
    if found == expected:
        return
    endings = ("", "-wal", "-shm")
    changed = [ending for ending, was, now in zip(endings, expected, found, strict=False) if was != now]
    name = beside(database, changed[0])
    raise StoreLost(
        f"{name} was deleted or replaced while the daemon ran.",
        remedy="Put the file back or run `harnessd restore FILE` with a backup; then start the daemon again.",
    )


def check_file_system(folder: Path) -> None:
    """Refuse a folder on a network mount: its locks do not keep another machine out. Raises HarnessError."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    kind = file_system_of(str(folder.resolve()), mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise HarnessError(
            f"{folder} lies on a network file system ({kind}), where locks keep nobody out.",
            remedy="Put the store on a local disk (store.url).",
        )


def file_system_of(folder: str, mountinfo: str) -> str:
    """The type of the mount that `folder` lies on, from the text of `/proc/self/mountinfo`."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4].encode().decode("unicode_escape")
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), after.split(" ")[0]
    return kind


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8')):08x}"
