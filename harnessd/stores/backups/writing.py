"""Writing: a copy of all rows, and beside them in one file the contents of checkpoints and the artefacts they name.

A backup is a SQLite file: whoever has lost everything else can read it with what is on every machine. The rows are
copied first and the files after them: what a row names was durable before the row was.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

from harnessd.domain.durable.backup import Backup, BackupFolder
from harnessd.domain.failure import HarnessError
from harnessd.stores.backups.aside import Aside
from harnessd.stores.files import COMPANIONS, beside, sync

PIECE_BYTES = 4 << 20  # far below SQLite's limit on one value (sqlite.org/limits.html, 1e9 bytes)
ABOUT, FILES, PIECES = "backup_about", "backup_files", "backup_pieces"
TABLES = (
    f"CREATE TABLE {ABOUT} (one INTEGER PRIMARY KEY CHECK (one = 1), at REAL NOT NULL, program TEXT NOT NULL)",
    f"CREATE TABLE {FILES} (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, bytes INTEGER, sha256 TEXT)",
    f"CREATE TABLE {PIECES} (file INTEGER, part INTEGER, data BLOB NOT NULL, PRIMARY KEY (file, part)) WITHOUT ROWID",
)


def write(aside: Aside, target: Path, wanted: Backup, crashpoint: Callable[[str], None]) -> int:
    """Write a whole copy to `target`: beside it first, renamed once it is durable; gives its size in bytes.

    Raises HarnessError.
    """
    if target.resolve() in {beside(aside.database, ending).resolve() for ending in COMPANIONS}:
        raise HarnessError(f"{target} is the store itself.", remedy="Name another file for the backup.")
    part = target.with_name(f".{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        crashpoint("J25-before")
        aside.read(lambda reader: reader.execute("VACUUM INTO ?", (os.fspath(part),)).fetchall())
        part.chmod(0o600)
        _add_files(part, wanted)
        sync(part)
        crashpoint("J25-rename")
        size = part.stat().st_size
        part.replace(target)
        sync(target.parent)
        crashpoint("J25-after")
    except (sqlite3.Error, OSError) as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise HarnessError(
            f"The backup {target} could not be written: {error}.", remedy="Check that folder's rights and space."
        ) from error
    return size


def _add_files(part: Path, wanted: Backup) -> None:
    with closing(sqlite3.connect(part, isolation_level=None)) as copy:
        # Nobody reads this file before it is whole and synced: a journal of it would only be written for nothing.
        copy.execute("PRAGMA journal_mode = OFF").fetchall()
        copy.execute("PRAGMA synchronous = OFF").fetchall()
        for statement in TABLES:
            copy.execute(statement)
        copy.execute("BEGIN")
        copy.execute(f"INSERT INTO {ABOUT} VALUES (1, ?, ?)", (wanted.at, wanted.program))  # noqa: S608 - our own name
        for folder in wanted.folders:
            for path, name in _files(folder):
                _add_file(copy, path, f"{folder.name}/{name}")
        copy.execute("COMMIT")


def _files(folder: BackupFolder) -> Iterator[tuple[Path, str]]:
    """Regular files alone: what an agent's program may have laid there as a link or a pipe is not followed."""
    for above, folders, names in os.walk(folder.path):
        folders.sort()
        for name in sorted(names):
            path = Path(above, name)
            if path.is_file() and not path.is_symlink():
                yield path, os.fsencode(path.relative_to(folder.path)).decode("utf-8", "surrogateescape")


def _add_file(copy: sqlite3.Connection, path: Path, name: str) -> None:
    """One file as it is now, up to the length it has now: outputs of running jobs grow on."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return  # given back meanwhile: no row of the copy needs it
    try:
        left, part, seen = os.fstat(file).st_size, 0, sha256()
        stored = os.fsencode(name).hex() if not name.isprintable() or not _encodable(name) else name
        if stored != name:
            stored = f"hex:{stored}"
        found = copy.execute(f"INSERT INTO {FILES} (path) VALUES (?) RETURNING id", (stored,)).fetchone()  # noqa: S608
        whole = 0
        while left > 0 and (piece := os.read(file, min(PIECE_BYTES, left))):
            copy.execute(f"INSERT INTO {PIECES} VALUES (?, ?, ?)", (found[0], part, piece))  # noqa: S608
            seen.update(piece)
            left, part, whole = left - len(piece), part + 1, whole + len(piece)
        told = (whole, seen.hexdigest(), found[0])
        copy.execute(f"UPDATE {FILES} SET bytes = ?, sha256 = ? WHERE id = ?", told)  # noqa: S608
    finally:
        os.close(file)


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
