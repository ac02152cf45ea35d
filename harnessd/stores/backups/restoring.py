"""Restoring: a backup becomes the store; what was there is kept aside, and who may have gone on since is told so."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from harnessd.domain.durable.backup import StoreRestored
from harnessd.domain.failure import HarnessError
from harnessd.stores.backups.doubting import acts_since, tell_tasks
from harnessd.stores.backups.writing import ABOUT, FILES, PIECES
from harnessd.stores.files import AckedMark, Found, OwnerLock, beside, examine, migrate, sync

FOLDERS = ("checkpoints", "artefacts")  # beside the database; what a backup may bring


@dataclass(frozen=True, slots=True)
class _Source:
    """What a sound backup says of itself."""

    path: Path
    found: Found
    at: float
    files: int  # -1: rows alone, nothing is said of files


def restore(source: Path, database: Path, crashpoint: Callable[[str], None] = lambda _: None) -> StoreRestored:
    """Make the backup `source` the store.

    Everything is made ready beside the old one first. Then the old files are moved aside (`.replaced-<time>`, never
    deleted), the new ones into their place, and last the acknowledged mark is set back: this is the one place where
    losing what was acknowledged is somebody's decision. Cut off in the middle it leaves the old store, or one that a
    daemon refuses to start on until the restore is run again. Raises StoreLocked while a daemon runs, StoreTooNew,
    HarnessError.
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
        return _replace(source, database, crashpoint)
    except (OSError, sqlite3.Error) as error:
        raise HarnessError(
            f"The store {database} could not be replaced: {error}.",
            remedy="Check that folder's rights and space, then run `harnessd restore` again.",
        ) from error
    finally:
        lock.release()


def _replace(source: Path, database: Path, crashpoint: Callable[[str], None]) -> StoreRestored:
    fresh = beside(database, ".restoring")
    _clear(fresh)
    try:
        return _made_ready(source, database, fresh, crashpoint)
    finally:
        _clear(fresh)


def _made_ready(source: Path, database: Path, fresh: Path, crashpoint: Callable[[str], None]) -> StoreRestored:
    crashpoint("J25-restore")
    with closing(_opened(source)) as backup:
        known = _examined(backup, source)
        _copy_rows(backup, known.found, fresh)
        _unpack(backup, known, database.parent)
    since = acts_since(database, fresh)
    now = time.time()
    live, doubted = tell_tasks(fresh, known.at or source.stat().st_mtime, now, since)
    with closing(sqlite3.connect(fresh, isolation_level=None)) as copy:
        commits = examine(copy, fresh).commits
    fresh.chmod(0o600)
    sync(fresh)
    crashpoint("J25-replace")
    aside = _swap(database, fresh, int(now), with_files=known.files >= 0, crashpoint=crashpoint)
    beside(database, ".acked").unlink(missing_ok=True)  # it may be what is damaged
    mark = AckedMark(database)
    mark.write(known.found.store, commits)
    mark.close()
    crashpoint("J25-restored")
    return StoreRestored(commits, known.at, max(0, known.files), aside, live, doubted, since)


# --- what a backup holds --------------------------------------------------------------------------------------------


def _opened(source: Path) -> sqlite3.Connection:
    try:
        return sqlite3.connect(f"file:{quote(os.fspath(source))}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise _unsound(source, str(error)) from error


def _unsound(source: Path, why: str) -> HarnessError:
    return HarnessError(f"{source} is not a sound backup: {why}.", remedy="Take another backup.")


def _examined(backup: sqlite3.Connection, source: Path) -> _Source:
    try:
        found = examine(backup, source)
        if found.version == 0:
            raise _unsound(source, "it is empty")
        problems = [row[0] for row in backup.execute("PRAGMA integrity_check(3)")]
        if problems != ["ok"]:
            raise _unsound(source, problems[0])
        if backup.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (ABOUT,)).fetchone()[0] == 0:
            return _Source(source, found, 0.0, -1)
        (at,) = backup.execute(f"SELECT at FROM {ABOUT}").fetchone()  # noqa: S608 - our own names, here and below
        (count,) = backup.execute(f"SELECT count(*) FROM {FILES}").fetchone()  # noqa: S608
    except sqlite3.Error as error:
        raise _unsound(source, str(error)) from error
    return _Source(source, found, at, count)


def _copy_rows(backup: sqlite3.Connection, found: Found, fresh: Path) -> None:
    """The store's own tables, without the files that travelled beside them: they may be a hundred times as large."""
    tables, others, counted = _schema(backup)
    with closing(sqlite3.connect(fresh, isolation_level=None)) as copy:
        fresh.chmod(0o600)
        copy.execute("PRAGMA journal_mode = OFF").fetchall()
        copy.execute("PRAGMA synchronous = OFF").fetchall()
        (application,) = backup.execute("PRAGMA application_id").fetchone()
        copy.execute(f"PRAGMA application_id = {int(application)}")
        copy.execute(f"PRAGMA user_version = {found.version}")
        copy.execute("BEGIN")
        for name, statement in tables:
            copy.execute(statement)
            _copy_table(backup, copy, name)
        if counted:
            copy.execute("DELETE FROM sqlite_sequence")
            _copy_table(backup, copy, "sqlite_sequence")
        for statement in others:
            copy.execute(statement)
        copy.execute("COMMIT")
        migrate(copy, found, lambda _: None)


def _schema(backup: sqlite3.Connection) -> tuple[list[tuple[str, str]], list[str], bool]:
    """Tables with what makes them, then indices; and whether numbers were given that are never given again."""
    rows = backup.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").fetchall()
    own = [row for row in rows if row[1] not in (ABOUT, FILES, PIECES)]
    tables = [(name, sql) for kind, name, sql in own if kind == "table" and not name.startswith("sqlite_")]
    others = [sql for kind, _, sql in own if kind != "table"]
    return tables, others, any(name == "sqlite_sequence" for _, name, _ in own)


def _copy_table(backup: sqlite3.Connection, copy: sqlite3.Connection, name: str) -> None:
    rows = backup.execute(f'SELECT * FROM "{name}"')  # noqa: S608 - a name of the schema that was just read
    places = ", ".join("?" for _ in rows.description)
    copy.executemany(f'INSERT INTO "{name}" VALUES ({places})', rows)  # noqa: S608


def _unpack(backup: sqlite3.Connection, known: _Source, folder: Path) -> None:
    """The files, each compared with what it was, into folders beside those they shall replace; all of it durable."""
    for name in FOLDERS:
        shutil.rmtree(_coming(folder, name), ignore_errors=True)
        if known.files >= 0:
            _coming(folder, name).mkdir(mode=0o700)
    if known.files < 0:
        return
    made: set[Path] = set()
    rows = backup.execute(f"SELECT id, path, bytes, sha256 FROM {FILES} ORDER BY id").fetchall()  # noqa: S608
    for number, stored, size, digest in rows:
        path = _place(known.path, folder, stored)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made.update((path.parent, path.parent.parent))
        pieces = backup.execute(f"SELECT data FROM {PIECES} WHERE file = ? ORDER BY part", (number,))  # noqa: S608
        if _written(path, (row[0] for row in pieces)) != (size, digest):
            raise _unsound(known.path, f"the file {stored} in it is not what it was")
    for one in made:
        sync(one)


def _place(source: Path, folder: Path, stored: str) -> Path:
    """Where a file of the backup goes. A backup comes from anywhere: no name in it leads out of its folder."""
    name = bytes.fromhex(stored[4:]) if stored.startswith("hex:") else os.fsencode(stored)
    first, *rest = os.fsdecode(name).split("/")
    if first not in FOLDERS or not rest or any(part in ("", ".", "..") or "\0" in part for part in rest):
        raise _unsound(source, f"it holds a file that no backup holds: {stored}")
    return _coming(folder, first).joinpath(*rest)


def _written(path: Path, pieces: Iterator[bytes]) -> tuple[int, str]:
    seen, size = sha256(), 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[os.write(file, view) :]
            seen.update(piece)
            size += len(piece)
        os.fsync(file)
    finally:
        os.close(file)
    return size, seen.hexdigest()


# --- the exchange ---------------------------------------------------------------------------------------------------


def _swap(
    database: Path, fresh: Path, stamp: int, *, with_files: bool, crashpoint: Callable[[str], None]
) -> tuple[str, ...]:
    """The log goes before its database: a log without one is nothing, but a log beside another's is read into it."""
    aside: list[str] = []

    def put_aside(old: Path, to: Path) -> None:
        if old.exists():
            old.rename(to)
            aside.append(to.name)

    while any(beside(database, f".replaced-{stamp}{ending}").exists() for ending in ("", "-wal")):
        stamp += 1
    for ending in ("-shm", "-wal", ""):
        put_aside(beside(database, ending), beside(database, f".replaced-{stamp}{ending}"))
    sync(database.parent)
    crashpoint("J25-aside")
    for name in FOLDERS if with_files else ():
        put_aside(database.parent / name, database.parent / f"{name}.replaced-{stamp}")
        _coming(database.parent, name).rename(database.parent / name)
    fresh.replace(database)
    sync(database.parent)
    return tuple(sorted(aside))


def _coming(folder: Path, name: str) -> Path:
    return folder / f"{name}.restoring"


def _clear(fresh: Path) -> None:
    for ending in ("", "-journal", "-wal", "-shm"):
        beside(fresh, ending).unlink(missing_ok=True)
    for name in FOLDERS:
        shutil.rmtree(_coming(fresh.parent, name), ignore_errors=True)
