"""Files: a store's file as a whole: its version and the way to ours, a backup of it, and back from one."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from harnessd.domain.failure import HarnessError, StoreTooNew
from harnessd.stores.database import Migration, migrations, queries
from harnessd.stores.owner import AckedMark, OwnerLock, beside

COMPANIONS = ("", "-wal", "-shm", ".lock", ".acked")
APPLICATION_ID = 0x68726E64  # "hrnd", in the file's header (sqlite.org/pragma.html#pragma_application_id)


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


def copy_out(connection: sqlite3.Connection, database: Path, target: Path, crashpoint: Callable[[str], None]) -> None:
    """Write a whole copy to `target`: beside it first, renamed once it is durable. Raises HarnessError."""
    if target.resolve() in {beside(database, ending).resolve() for ending in COMPANIONS}:
        raise HarnessError(f"{target} is the store itself.", remedy="Name another file for the backup.")
    part = target.with_name(f".{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        crashpoint("J25-before")
        connection.execute("VACUUM INTO ?", (str(part),))
        part.chmod(0o600)
        sync(part)
        crashpoint("J25-rename")
        part.replace(target)
        sync(target.parent)
        crashpoint("J25-after")
    except (sqlite3.Error, OSError) as error:
        part.unlink(missing_ok=True)
        raise HarnessError(
            f"The backup {target} could not be written: {error}.", remedy="Check that folder's rights and space."
        ) from error


def restore(source: Path, database: Path) -> int:
    """Make the backup `source` the store; give the commit at which it stands.

    The old files are moved aside (`.replaced-<time>`), never deleted. The acknowledged mark is set back: this is the
    one place where losing what was acknowledged is somebody's decision. Raises StoreLocked while a daemon runs,
    StoreTooNew, HarnessError.
    """
    if not source.is_file():
        raise HarnessError(f"There is no file {source}.", remedy="Name a file that `harnessctl backup` wrote.")
    if source.resolve() == database.resolve():
        raise HarnessError(f"{source} is the store itself.", remedy="Name a backup of it.")
    try:
        database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise HarnessError(f"The store's folder {database.parent} cannot be made: {error.strerror}.") from error
    lock = OwnerLock(database)
    try:
        fresh = beside(database, ".restoring")
        found = _checked_copy(source, fresh)
        stamp = int(time.time())
        for ending in ("-shm", "-wal", ""):
            old = beside(database, ending)
            if old.exists():
                old.rename(beside(database, f".replaced-{stamp}{ending}"))
        fresh.replace(database)
        sync(database.parent)
        mark = AckedMark(database)
        mark.write(found.store, found.commits)
        mark.close()
    except OSError as error:
        raise HarnessError(f"The store {database} could not be replaced: {error}.") from error
    finally:
        lock.release()
    return found.commits


def _checked_copy(source: Path, fresh: Path) -> Found:
    fresh.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True, isolation_level=None)) as backup:
            found = examine(backup, source)
            problems = [row[0] for row in backup.execute("PRAGMA integrity_check(3)")]
            if found.version == 0 or problems != ["ok"]:
                words = "it is empty" if found.version == 0 else problems[0]
                raise HarnessError(f"{source} is not a sound backup: {words}.", remedy="Take another backup.")
            backup.execute("VACUUM INTO ?", (str(fresh),))
    except sqlite3.Error as error:
        raise HarnessError(f"{source} is not a sound backup: {error}.", remedy="Take another backup.") from error
    fresh.chmod(0o600)
    sync(fresh)
    return found


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
