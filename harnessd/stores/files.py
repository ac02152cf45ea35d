"""Files: what a store is on a disk: its lock, its acknowledged mark, its version and the way to ours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from harnessd.domain.durable.file_systems import NETWORK_FILE_SYSTEMS, file_system_of
from harnessd.domain.failure import HarnessError, StoreLocked, StoreLost, StoreTooNew
from harnessd.stores.database import Migration, migrations, queries

COMPANIONS = ("", "-wal", "-shm", ".lock", ".acked")
APPLICATION_ID = 0x68726E64  # "hrnd", in the file's header (sqlite.org/pragma.html#pragma_application_id)


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


@lru_cache(maxsize=16)
def _places(database: Path) -> tuple[str, ...]:
    return (str(database), str(beside(database, "-wal")), str(beside(database, "-shm")))


def identities(database: Path, count: int = 3) -> Identities:
    """Device and inode of the database, its log and its index, by `stat` alone.

    Nobody in this process may open one of them but SQLite: closing any descriptor of a file drops all POSIX locks
    the process holds on it, and the next reader elsewhere would delete the log under us.
    """
    found: list[tuple[int, int] | None] = []
    for path in _places(database)[:count]:
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


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8')):08x}"


# --- the schema -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """What a file says of itself; version 0 is an empty one."""

    version: int
    store: str = ""
    commits: int = 0


def examine(connection: sqlite3.Connection, path: Path) -> Found:
    """Read the version without changing anything. Raises StoreTooNew, HarnessError for a file that is not ours."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if version == 0 and application == 0 and empty:
        return Found(0)
    if application != APPLICATION_ID:
        raise HarnessError(
            f"{path} is a database of another program.", remedy="Set store.url to a file that harnessd may own."
        )
    newest = migrations()[-1].number
    if version > newest:
        raise StoreTooNew(
            f"The store {path} has version {version}; this harnessd knows versions up to {newest}.",
            remedy="Start the newer harnessd that wrote it, or run `harnessd restore FILE` with an older backup.",
        )
    store, _, commits = connection.execute(queries()["meta"]).fetchone()
    return Found(version, store, commits)


def migrate(
    connection: sqlite3.Connection,
    found: Found,
    crashpoint: Callable[[str], None],
    steps: Sequence[Migration] | None = None,
) -> None:
    """Take the missing steps, each in one transaction with its number: the old or the new schema, nothing between."""
    for step in steps if steps is not None else migrations():
        if step.number <= found.version:
            continue
        crashpoint("J22-before")
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in step.statements:
                connection.execute(statement)
            if step.number == 1:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(queries()["create_meta"], {"store": secrets.token_hex(8)})
            connection.execute(f"PRAGMA user_version = {step.number}")
            crashpoint("J22-commit")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        crashpoint("J22-after")


def make_folder(folder: Path) -> None:
    """Make it with those above it, their names durable: what is synced in a folder without a name is lost with it."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for one in missing:
        with contextlib.suppress(PermissionError):  # a folder that we may write in, not read
            sync(one.parent)


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
