"""Batch: many units of work in one SQLite transaction; a member that fails, fails alone. Runs on SQLite's thread."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harnessd.domain.failure import HarnessError, StorageFull, StoreLocked, StoreLost
from harnessd.stores.database import Conflict, Missed, Row, Rows, Statement, Unit
from harnessd.stores.files import beside

Crashpoint = Callable[[str], None]
Answer = list[Rows] | Exception

ROOM_LEFT_BYTES = 1 << 20  # under this an I/O error is taken for a full disk
PRIMARY_CODE = 0xFF  # the low byte of an extended result code (sqlite.org/rescode.html)


class Unwritten(Exception):  # noqa: N818 - an answer inside the store
    """Nothing of this transaction was written; `error` says why."""

    def __init__(self, error: Exception) -> None:
        """Keep what the members are told."""
        self.error = error
        super().__init__(str(error))


class CommitUnknown(Exception):  # noqa: N818 - an answer inside the store
    """COMMIT failed, which is not a no: whether `commit` became durable is seen after reopening."""

    def __init__(self, commit: int, answers: Sequence[Answer], newest_event: int, cause: sqlite3.Error) -> None:
        """Keep what the answers are, should it have become durable."""
        self.commit, self.answers, self.newest_event, self.cause = commit, answers, newest_event, cause
        super().__init__(str(cause))


class BatchRunner:
    """Runs batches on one connection."""

    def __init__(self, database: Path, texts: Mapping[str, str], epoch: int, crashpoint: Crashpoint) -> None:
        """Keep what every transaction needs: the queries' texts and our owner epoch."""
        self._database = database
        self._texts = texts
        self._epoch = {"epoch": epoch}
        self._crashpoint = crashpoint

    def run(self, connection: sqlite3.Connection, units: Sequence[Unit]) -> tuple[list[Answer], int, int]:
        """Give the answers, the number of this commit and the newest event, after the commit.

        Where nothing was changed (a claim with nothing queued) there is nothing to sync: no commit, number 0.
        Raises Unwritten, CommitUnknown, StoreLost.
        """
        self._crashpoint("J27-begin")  # nothing of the batch exists
        cursor = connection.cursor()
        try:
            # IMMEDIATE: a transaction that reads first and then wants to write is refused at once, not made to wait.
            cursor.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise Unwritten(self.explain(error)) from error
        try:
            changes = connection.total_changes
            answers = self._members(cursor, units)
            if connection.total_changes == changes:
                _roll_back(connection)
                return answers, 0, 0
            marked = cursor.execute(self._texts["mark_commit"], self._epoch).fetchall()
            newest_event = cursor.execute(self._texts["newest_event"]).fetchone()[0]
        except sqlite3.Error as error:
            _roll_back(connection)
            raise Unwritten(self.explain(error)) from error
        if not marked:
            _roll_back(connection)
            raise StoreLost(
                "Another daemon has taken this store over.", remedy="Stop one of the two daemons; nothing was mixed up."
            )
        self._crashpoint("J27-before")  # written, not durable: after a crash nothing of the batch is there
        try:
            cursor.execute("COMMIT")
        except sqlite3.Error as error:
            raise CommitUnknown(marked[0][0], answers, newest_event, error) from error
        self._crashpoint("J27-after")  # durable, nobody told: after a crash all of the batch is there
        return answers, marked[0][0], newest_event

    def _members(self, cursor: sqlite3.Cursor, units: Sequence[Unit]) -> list[Answer]:
        """All units; the first pass does without savepoints, which copy every page that a member touches.

        Where one unit fails, all is rolled back and done again with a savepoint for each.
        """
        try:
            return [self._rows(cursor, unit) for unit in units]
        except (Missed, sqlite3.Error, ValueError, OverflowError) as error:
            if isinstance(error, sqlite3.Error) and isinstance(self._refusal(error), StorageFull | StoreLost):
                raise
        _roll_back(cursor.connection)
        cursor.execute("BEGIN IMMEDIATE")
        return [self._member(cursor, unit) for unit in units]

    def _member(self, cursor: sqlite3.Cursor, unit: Unit) -> Answer:
        cursor.execute("SAVEPOINT member")
        try:
            answer: Answer = self._rows(cursor, unit)
        except (Missed, sqlite3.Error, ValueError, OverflowError) as error:
            words = error if isinstance(error, Missed) else self._refusal(error)
            if isinstance(words, StoreLost) or not cursor.connection.in_transaction:
                # A broken store takes nobody's work; and out of space SQLite may have rolled all of it back.
                raise
            cursor.execute("ROLLBACK TO member")
            cursor.execute("RELEASE member")
            return words
        cursor.execute("RELEASE member")
        return answer

    def _rows(self, cursor: sqlite3.Cursor, unit: Unit) -> list[Rows]:
        answer: list[Rows] = []
        for statement in unit:
            rows, touched = execute(cursor, self._texts[statement.name], statement)
            if statement.must_touch is not None and touched != statement.must_touch:
                raise Missed(statement.name)
            answer.append(rows)
            if statement.or_stop and touched == 0:
                break
        return answer

    def _refusal(self, error: Exception) -> Exception:
        return Conflict(str(error)) if isinstance(error, sqlite3.IntegrityError) else self.explain(error)

    def explain(self, error: Exception) -> HarnessError:
        """Our words for what SQLite says."""
        code = getattr(error, "sqlite_errorcode", None) or 0
        name = getattr(error, "sqlite_errorname", None) or type(error).__name__
        primary = code & PRIMARY_CODE
        if primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and self._no_room()):
            return no_room(self._database, name)
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreLocked(
                f"Another program holds a lock on {self._database}; nothing of this step was written.",
                remedy="Close whatever has the file open for writing.",
            )
        if primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY):
            # A file system that goes away shows up as a corrupt file: nothing is ever rebuilt or deleted on this.
            return StoreLost(
                f"The store {self._database} cannot be used: {error} ({name}).",
                remedy="Check the disk and start the daemon again; if it stays so, run `harnessd restore FILE`.",
            )
        return HarnessError(f"The store refused a step: {error} ({name}).")

    def _no_room(self) -> bool:
        # A limit on file sizes (RLIMIT_FSIZE) shows up as an I/O error, and so does a quota of some file systems.
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            status = os.statvfs(self._database.parent)
            log = beside(self._database, "-wal").stat().st_size
        except OSError:
            return False
        return status.f_bavail * status.f_frsize < ROOM_LEFT_BYTES or (
            limit != resource.RLIM_INFINITY and limit - log < ROOM_LEFT_BYTES
        )


def no_room(database: Path, why: str) -> StorageFull:
    """The words for a full disk."""
    return StorageFull(
        f"There is no room left for the store {database} ({why}); nothing of this step was written.",
        remedy="Free space on that disk; the daemon goes on by itself.",
    )


def execute(cursor: sqlite3.Cursor, text: str, statement: Statement) -> tuple[Rows, int]:
    """Run one statement; give its rows, and how many rows it changed or returned."""
    cursor.execute(text, statement.params)
    if cursor.description is None:
        return [], cursor.rowcount
    rows: list[Row] = cursor.fetchall()
    return rows, len(rows)


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
