"""SQLite: the default dialect: one writing connection, readers that cannot write, one hop to the thread for a batch."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import aiosqlite

from harnessd.domain.durable.backup import Backup
from harnessd.domain.failure import HarnessError, OutcomeUnknown, StorageFull, StoreLost
from harnessd.domain.transfer.chain import chain_hash
from harnessd.stores import files
from harnessd.stores.backups.aside import Aside
from harnessd.stores.backups.writing import write
from harnessd.stores.batch import Answer, BatchRunner, CommitUnknown, Crashpoint, Unwritten, execute, no_room
from harnessd.stores.database import Batch, Opened, Rows, Statement, Unit, queries
from harnessd.stores.files import (
    AckedMark,
    Identities,
    OwnerLock,
    check_file_system,
    check_identities,
    identities,
)

Result = TypeVar("Result")

READERS = 2  # one long read does not keep the short ones waiting
BUSY_S = 5.0
FULL_TRIES = 8  # in a row, before the rest of a batch is told that the disk is full
WAL_LIMIT_BYTES = 64 << 20
OLDEST_SQLITE = (3, 35, 0)  # RETURNING (sqlite.org/lang_returning.html)


class OneHopConnection(aiosqlite.Connection):
    """aiosqlite awaits each statement; a batch must cross to the thread once.

    `hop` uses the queue that every public call of aiosqlite 0.22.1 goes through: pinned, and held to it by
    `tests/stores/test_one_hop.py`.
    """

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        """Prepare the thread; awaiting the object starts it."""
        super().__init__(connector, iter_chunk_size=64)
        # A loop that died without closing must not keep the process alive.
        self._thread.daemon = True

    async def hop(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run `work` on the connection's thread; nothing else runs there meanwhile."""
        result: Result = await self._execute(work, self._conn)  # type: ignore[no-untyped-call]
        return result


class SqliteDatabase:
    """One file, owned by one process."""

    def __init__(self, path: Path, crashpoint: Crashpoint, pragmas: Sequence[str] = ()) -> None:
        """Nothing is touched before `open`. `pragmas` are run on the writer last (tests limit the page count)."""
        self.path = path
        self._crashpoint = crashpoint
        self._pragmas = tuple(pragmas)
        self._lock: OwnerLock | None = None
        self._mark: AckedMark | None = None
        self._writer: OneHopConnection | None = None
        self._readers: list[OneHopConnection] = []
        self._asides: list[Aside] = []
        self._next_reader = 0
        self._runner: BatchRunner | None = None
        self._store = ""
        self._identities: Identities = ()
        self._readable = asyncio.Event()  # clear while the connections are opened anew

    async def open(self, owner: str) -> Opened:
        """See the port. Raises StoreLocked, StoreTooNew, StoreLost, HarnessError."""
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise HarnessError(
                f"SQLite {sqlite3.sqlite_version} is too old.", remedy="Version 3.35 or newer is needed."
            )
        try:
            files.make_folder(self.path.parent)
        except OSError as error:
            raise HarnessError(
                f"The store's folder {self.path.parent} cannot be made: {error.strerror}.",
                remedy="Set store.url to a folder this user can write in.",
            ) from error
        check_file_system(self.path.parent)
        self._lock = OwnerLock(self.path)
        try:
            return await self._open_locked(owner)
        except OSError as error:
            await self.close()
            raise HarnessError(
                f"The store {self.path} cannot be opened: {error.strerror}.",
                remedy="Check the folder's rights and space.",
            ) from error
        except BaseException:
            await self.close()
            raise

    async def _open_locked(self, owner: str) -> Opened:
        assert self._lock is not None  # noqa: S101 - set by open
        self._mark = AckedMark(self.path)
        acked = self._mark.read()
        if acked is not None and not self.path.exists():
            raise lost_acknowledged(self.path, acked[1], 0)
        self._writer = await self._connect_writer(fresh=not self.path.exists())
        epoch, commit, newest_event = await self._writer.hop(lambda connection: self._make_ours(connection, owner))
        self._lock.sign(owner)
        self._mark.write(self._store, commit)
        self._identities = identities(self.path)
        self._runner = BatchRunner(self.path, queries(), epoch, self._crashpoint)
        self._readers = [await self._connect_reader() for _ in range(READERS)]
        self._readable.set()
        return Opened(epoch, newest_event)

    def _make_ours(self, connection: sqlite3.Connection, owner: str) -> tuple[int, int, int]:
        assert self._mark is not None  # noqa: S101 - set by open
        acked = self._mark.read()
        try:
            found = files.examine(connection, self.path)
            if acked is not None and (acked[0] != found.store or acked[1] > found.commits):
                raise lost_acknowledged(self.path, acked[1], found.commits if acked[0] == found.store else 0)
            files.migrate(connection, found, self._crashpoint)
            self._store = files.examine(connection, self.path).store
            return take_ownership(connection, owner)
        except sqlite3.Error as error:
            raise cannot_open(self.path, error) from error

    async def commit(self, units: Sequence[Unit]) -> Batch:
        """See the port."""
        try:
            return await self._commit_together(units)
        except StorageFull:
            if len(units) == 1:
                raise
        return await self._commit_one_by_one(units)

    async def _commit_together(self, units: Sequence[Unit]) -> Batch:
        try:
            answers, newest_event = await self._writing().hop(lambda connection: self._run(connection, units))
        except Unwritten as unwritten:
            raise unwritten.error from unwritten
        except CommitUnknown as unknown:
            return await self._settle(unknown)
        return Batch(answers, newest_event)

    async def _commit_one_by_one(self, units: Sequence[Unit]) -> Batch:
        """Out of space SQLite rolls all of a transaction back: a member that is too big must not take its mates along.

        After a few that do not fit the rest is not tried: they have waited long enough for a no.
        """
        answers: list[Answer] = []
        newest_event = full = 0
        for unit in units:
            try:
                if full >= FULL_TRIES:
                    raise no_room(self.path, "not tried")
                batch = await self._commit_together((unit,))
            except HarnessError as error:
                answers.append(error)
                full = full + 1 if isinstance(error, StorageFull) else 0
            else:
                answers += [list(answer) if not isinstance(answer, Exception) else answer for answer in batch.answers]
                newest_event, full = batch.newest_event, 0
        return Batch(answers, newest_event)

    def _run(self, connection: sqlite3.Connection, units: Sequence[Unit]) -> tuple[list[Answer], int]:
        assert self._runner is not None  # noqa: S101 - set by open
        check_identities(self.path, self._identities)
        answers, commit, newest_event = self._runner.run(connection, units)
        if commit:
            # Once more behind the commit: what went into an unlinked file must not be acknowledged.
            check_identities(self.path, self._identities)
            self._remember(commit)
        return answers, newest_event

    def _remember(self, commit: int) -> None:
        assert self._mark is not None  # noqa: S101 - set by open
        try:
            self._mark.write(self._store, commit, time.monotonic())
        except OSError as error:
            raise OutcomeUnknown(
                f"{self._mark.path} could not be written ({error.strerror}): the work is stored, but not acknowledged.",
                remedy="Check the disk and start the daemon again.",
            ) from error

    async def _settle(self, unknown: CommitUnknown) -> Batch:
        """An error from COMMIT means unknown, not no: reopen, make durable what is there, look, then answer.

        All connections are closed for it: while one is open nobody reads the log anew, and a commit whose sync failed
        would be found there only after the next start.
        """
        assert self._runner is not None  # noqa: S101 - set by open
        error = self._runner.explain(unknown.cause)
        try:
            commits = await self._reopen(unknown.commit)
        except (sqlite3.Error, HarnessError, OSError) as again:
            raise OutcomeUnknown(
                f"The store {self.path} failed while writing ({unknown.cause}) and cannot be looked at ({again}).",
                remedy="Check the disk and start the daemon again: it settles what was under way.",
            ) from unknown
        finally:
            self._readable.set()
        if commits >= unknown.commit:
            self._remember(unknown.commit)
            return Batch(unknown.answers, unknown.newest_event)
        if commits < unknown.commit - 1:
            raise lost_acknowledged(self.path, unknown.commit - 1, commits)
        raise error if isinstance(error, StorageFull) else StoreLost(error.sentence, remedy=error.remedy)

    async def _reopen(self, wanted: int) -> int:
        self._readable.clear()
        await self._close_readers()
        await self._drop_writer()
        check_identities(self.path, self._identities[:1])
        self._writer = await self._connect_writer()
        commits = await self._writer.hop(lambda connection: committed(connection, wanted))
        self._identities = identities(self.path)
        self._readers = [await self._connect_reader() for _ in range(READERS)]
        return commits

    async def fetch(self, reads: Sequence[Statement]) -> list[Rows]:
        """See the port."""
        await self._readable.wait()
        if not self._readers:
            raise HarnessError("The store is closed.")
        self._next_reader = (self._next_reader + 1) % len(self._readers)
        reader = self._readers[self._next_reader]
        try:
            return await reader.hop(lambda connection: read(connection, reads))
        except (ValueError, sqlite3.ProgrammingError) as error:
            if reader not in self._readers:
                return await self.fetch(reads)  # it was closed under us, and there are others now
            raise HarnessError(f"The store refused to read: {error}.") from error
        except sqlite3.Error as error:
            assert self._runner is not None  # noqa: S101 - there are readers
            words = self._runner.explain(error)
            # One task's damaged page is no reason to stop the others: told as what it is, and only a write is fatal.
            raise HarnessError(words.sentence, remedy=words.remedy) from error

    async def backup(self, path: str, wanted: Backup) -> int:
        """See the port. Raises HarnessError where the copy cannot be written."""
        self._writing()
        return await self._aside(lambda aside: write(aside, Path(path), wanted, self._crashpoint))

    async def examine(self) -> dict[str, str]:
        """See the port: `engine`, `version`, `journal_mode`, `synchronous` (2 is FULL), `integrity`."""
        modes = ("journal_mode", "synchronous")
        told = await self._writing().hop(
            lambda writer: {mode: str(writer.execute(f"PRAGMA {mode}").fetchone()[0]) for mode in modes}
        )
        try:
            found = await self._aside(
                lambda aside: aside.read(lambda reader: reader.execute("PRAGMA quick_check(1)").fetchone()[0])
            )
        except sqlite3.Error as error:
            found = str(error)
        return {"engine": "sqlite", "version": sqlite3.sqlite_version, **told, "integrity": str(found)}

    async def _aside(self, work: Callable[[Aside], Result]) -> Result:
        """Work with a connection beside ours, which is given up where the store is closed or opened anew."""
        aside = Aside(self.path)
        self._asides.append(aside)
        try:
            return await asyncio.to_thread(work, aside)
        finally:
            self._asides.remove(aside)

    async def close(self) -> None:
        """Readers first: whoever closes last folds the log into the database, and a reader may not write."""
        await self._close_readers()
        if self._writer is not None and self._runner is not None:
            with suppress(sqlite3.Error):  # the log stays as it is and is read at the next start
                await self._writer.hop(self._fold_log)
        await self._drop_writer()
        self._runner = None
        if self._mark is not None:
            self._mark.close()
            self._mark = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _fold_log(self, connection: sqlite3.Connection) -> None:
        if identities(self.path) != self._identities:
            return  # not our file any more: leave it alone
        self._crashpoint("J26-before")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._crashpoint("J26-after")

    def _writing(self) -> OneHopConnection:
        if self._writer is None:
            raise HarnessError("The store is closed.")
        return self._writer

    async def _close_readers(self) -> None:
        for aside in tuple(self._asides):
            await asyncio.to_thread(aside.let_go)
        readers, self._readers = self._readers, []
        for reader in readers:
            await reader.close()

    async def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()

    async def _connect_writer(self, *, fresh: bool = False) -> OneHopConnection:
        pragmas = (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}",
            "PRAGMA temp_store = MEMORY",
            *self._pragmas,
        )
        return await self._connect(f"file:{quote(str(self.path))}?mode={'rwc' if fresh else 'rw'}", pragmas)

    async def _connect_reader(self) -> OneHopConnection:
        return await self._connect(f"file:{quote(str(self.path))}?mode=ro", ("PRAGMA query_only = ON",))

    async def _connect(self, uri: str, pragmas: Sequence[str]) -> OneHopConnection:
        def connector() -> sqlite3.Connection:
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_S, cached_statements=256)
            try:
                if "mode=rwc" in uri:
                    self.path.chmod(0o600)  # still empty; SQLite gives the log and the index the same mode
                connection.create_function("chain", 2, chain_hash, deterministic=True)
                for pragma in pragmas:
                    connection.execute(pragma).fetchall()
            except BaseException:
                connection.close()
                raise
            return connection

        opened = OneHopConnection(connector)
        try:
            await opened
        except sqlite3.Error as error:
            await asyncio.to_thread(opened._thread.join)  # noqa: SLF001 - its last word must not find the loop closed
            raise cannot_open(self.path, error) from error
        return opened


def take_ownership(connection: sqlite3.Connection, owner: str) -> tuple[int, int, int]:
    """Raise the owner's epoch; give it, the number of this commit, and the newest event."""
    connection.execute("BEGIN IMMEDIATE")
    epoch, commit = connection.execute(queries()["take_ownership"], {"owner": owner}).fetchone()
    newest_event = connection.execute(queries()["newest_event"]).fetchone()[0]
    connection.execute("COMMIT")
    return epoch, commit, newest_event


def committed(connection: sqlite3.Connection, wanted: int) -> int:
    """How many commits are there; `wanted` is among them only once it is in the database file itself.

    After a failed sync the kernel may call pages clean that never reached the disk; only writing them once more,
    into the database, and syncing that proves them durable.
    """
    commits: int = connection.execute(queries()["meta"]).fetchone()[2]
    if commits >= wanted:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        if busy:
            message = "the log could not be folded in"
            raise sqlite3.OperationalError(message)
    return commits


def read(connection: sqlite3.Connection, reads: Sequence[Statement]) -> list[Rows]:
    """Answer all reads from one snapshot."""
    cursor = connection.cursor()
    cursor.execute("BEGIN")
    try:
        return [execute(cursor, queries()[statement.name], statement)[0] for statement in reads]
    finally:
        cursor.execute("ROLLBACK")


def lost_acknowledged(path: Path, acked: int, found: int) -> StoreLost:
    """The alarm for silent loss."""
    return StoreLost(
        f"The store {path} has lost work it had acknowledged: it stands at commit {found}, {acked} were answered.",
        remedy="Put the right file back; or run `harnessd restore FILE` with a backup, which accepts the loss.",
    )


def cannot_open(path: Path, error: sqlite3.Error) -> HarnessError:
    """Our words for a file that SQLite does not take."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreLost(
            f"{path} is not a sound database: {error}.", remedy="Run `harnessd restore FILE` with a backup."
        )
    return HarnessError(f"The store {path} cannot be opened: {error}.", remedy="Check the folder's rights and space.")
