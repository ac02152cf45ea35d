"""Database: PostgreSQL behind the port: one writing transaction at a time, a lost COMMIT's outcome looked up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from harnessd.domain.durable.backup import Backup
from harnessd.domain.failure import HarnessError, OutcomeUnknown, StoreLost
from harnessd.stores.database import Batch, Conflict, Missed, Opened, Rows, Statement, Unit
from harnessd.stores.postgresql.line import Address, Line, LineLost, TryAgain
from harnessd.stores.postgresql.schema import migrate

Answer = list[Rows] | Exception
Result = TypeVar("Result")

READERS = 2  # one long read does not keep the short ones waiting
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 1.0  # between two tries to connect, doubled, with full jitter


class CommitUnknown(Exception):  # noqa: N818 - an answer inside the store
    """COMMIT was sent and not answered; `commit` is the number it would have."""

    def __init__(self, commit: int, batch: Batch) -> None:
        """Keep what the answers are, should it have become durable."""
        self.commit, self.batch = commit, batch
        super().__init__(str(commit))


class PostgresDatabase:
    """One store on a server, shared by several daemons."""

    def __init__(self, address: Address, crashpoint: Callable[[str], None], patience_s: float) -> None:
        """Nothing is touched before `open`. After `patience_s` seconds without the server it is given up."""
        self.address = address
        self.committed: Callable[[int], None] = lambda _: None  # told the newest event after each commit
        self._crashpoint = crashpoint
        self._patience_s = patience_s
        self._epoch = 0
        self._commits = 0
        self._writer: Line | None = None
        self._readers: asyncio.LifoQueue[Line | None] = asyncio.LifoQueue()
        self._all: set[Line] = set()
        self._open = False

    async def open(self, owner: str) -> Opened:
        """See the port. Raises ConfigError, StoreTooNew, StoreLost, HarnessError."""
        self._open = True
        try:
            return await self._opened(owner)
        except (LineLost, TryAgain) as error:
            raise self._unreachable(error) from error

    async def prepare(self) -> None:
        """Bring the schema to this program's version. Raises StoreTooNew, ConfigError, StoreLost."""
        self._open = True
        self._writer = await self._connect(time.monotonic() + self._patience_s)
        try:
            await migrate(self._writer, self.address, self._crashpoint)
        except (LineLost, TryAgain, Conflict) as error:
            raise self._unreachable(error) from error

    async def _opened(self, owner: str) -> Opened:
        line = await self._writing(time.monotonic() + self._patience_s)
        await line.say("BEGIN")
        await line.run(Statement("take_turn", {}))
        ((self._epoch, _),), _ = await line.run(Statement("take_ownership", {"owner": owner}))
        facts = {"epoch": self._epoch, "owner": owner, "program": "harnessd"}
        await line.run(Statement("begin_daemon", facts))
        await line.run(Statement("forget_daemons", {}))
        ((newest,),), _ = await line.run(Statement("newest_event", {}))
        # Unknown here is harmless: an epoch that nobody works under.
        await line.say("COMMIT")
        # What each session that follows is: defaults of columns and conditions read it.
        self.address = Address(self.address.url, {**self.address.settings, "harnessd.epoch": str(self._epoch)})
        await line.say(f"SET harnessd.epoch = '{self._epoch}'")
        for _ in range(READERS):
            self._readers.put_nowait(None)
        return Opened(self._epoch, newest)

    @property
    def epoch(self) -> int:
        """Of this start."""
        return self._epoch

    # --- writing -----------------------------------------------------------------------------------------------------

    async def commit(self, units: Sequence[Unit]) -> Batch:
        """See the port. A lost connection is mended, and what became of a COMMIT is looked up, within the patience."""
        deadline = time.monotonic() + self._patience_s
        careful = False
        while True:
            try:
                line = await self._writing(deadline)
                return await self._transaction(line, units, careful=careful)
            except CommitUnknown as unknown:
                if await self._became_durable(unknown.commit, deadline):
                    return self._acknowledge(unknown)
            except (LineLost, TryAgain) as error:
                await self._roll_back()
                if time.monotonic() >= deadline:
                    raise self._unreachable(error) from error
            except _OneFailed:
                await self._roll_back()
                careful = True
            except BaseException:
                await self._roll_back()
                raise

    async def _transaction(self, line: Line, units: Sequence[Unit], *, careful: bool) -> Batch:
        """All units; the first pass does without savepoints, which cost a round trip each."""
        self._crashpoint("J27-begin")
        await line.say("BEGIN")
        await line.run(Statement("take_turn", {}))
        commit = await self._number(line)
        changed = [0]
        answers: list[Answer] = []
        for unit in units:
            try:
                answers.append(await (self._member(line, unit, changed) if careful else _rows(line, unit, changed)))
            except (Missed, Conflict, HarnessError, ValueError, OverflowError) as error:
                if careful:
                    raise
                raise _OneFailed from error
        if not changed[0]:
            await line.say("ROLLBACK")
            return Batch(answers, 0)
        ((newest,),), _ = await line.run(Statement("newest_event", {}))
        unknown = CommitUnknown(commit, Batch(answers, newest))
        self._crashpoint("J27-before")
        try:
            await line.say("COMMIT")
        except Exception as error:
            # No answer is not a no, and neither is any error: the server may have written its record before.
            line.drop()
            raise unknown from error
        self._crashpoint("J27-after")
        return self._acknowledge(unknown)

    async def _number(self, line: Line) -> int:
        """This transaction's number among those of this daemon: one that is too low tells of silent loss."""
        marked, _ = await line.run(Statement("mark_commit", {"epoch": self._epoch}))
        if not marked or marked[0][0] != self._commits + 1:
            raise self._lost_acknowledged(marked[0][0] - 1 if marked else 0, self._commits)
        return self._commits + 1

    async def _member(self, line: Line, unit: Unit, changed: list[int]) -> Answer:
        await line.say("SAVEPOINT member")
        before = changed[0]
        try:
            answer: Answer = await _rows(line, unit, changed)
        except (Missed, Conflict, HarnessError, ValueError, OverflowError) as error:
            if isinstance(error, StoreLost):
                raise
            await line.say("ROLLBACK TO SAVEPOINT member")
            changed[0] = before
            return (
                error
                if isinstance(error, Missed | Conflict | HarnessError)
                else HarnessError(f"The store refused a step: {error}.")
            )
        await line.say("RELEASE SAVEPOINT member")
        return answer

    def _acknowledge(self, unknown: CommitUnknown) -> Batch:
        self._commits = unknown.commit
        self.committed(unknown.batch.newest_event)
        return unknown.batch

    async def _became_durable(self, commit: int, deadline: float) -> bool:
        """Look up what became of a COMMIT that was not answered: the row counts the commits of this daemon."""
        while True:
            try:
                line = await self._writing(deadline)
                await line.say("BEGIN")
                rows, _ = await line.run(Statement("commits_of", {"epoch": self._epoch}))
                await line.say("ROLLBACK")
                break
            except (LineLost, TryAgain, StoreLost) as error:
                await self._roll_back()
                if time.monotonic() >= deadline:
                    raise OutcomeUnknown(
                        f"The store {self.address.shown} did not answer a COMMIT and cannot be asked ({error}).",
                        remedy="Start the daemon again once the server is back: it settles what was under way.",
                    ) from error
        found: int = rows[0][0] if rows else -1
        if found < commit - 1:
            raise self._lost_acknowledged(found, commit - 1)
        return found >= commit

    def _lost_acknowledged(self, found: int, answered: int) -> StoreLost:
        return StoreLost(
            f"The store {self.address.shown} has lost work it had acknowledged: "
            f"it stands at commit {found} of this daemon, {answered} were answered.",
            remedy="Put the right server back; set synchronous_commit = remote_apply before the next fail-over.",
        )

    def _unreachable(self, error: Exception) -> StoreLost:
        return StoreLost(
            f"The store {self.address.shown} could not be reached for {self._patience_s:g} s ({error}).",
            remedy="Look whether the server runs; the daemon takes its tasks up again after a new start.",
        )

    async def _roll_back(self) -> None:
        if self._writer is None or not self._writer.usable:
            return
        try:
            await self._writer.say("ROLLBACK")
        except Exception:  # noqa: BLE001 - the connection goes, and with it the transaction
            self._writer.drop()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def fetch(self, reads: Sequence[Statement]) -> list[Rows]:
        """See the port. Raises HarnessError where the server is away longer than the patience."""

        async def work(line: Line) -> list[Rows]:
            if len(reads) == 1:
                return [(await line.run(reads[0]))[0]]
            await line.say("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                return [(await line.run(read))[0] for read in reads]
            finally:
                if line.usable:
                    await line.say("ROLLBACK")

        return await self.reading(work)

    async def reading(self, work: Callable[[Line], object]) -> list[Rows]:
        """Do `work` on a connection that reads; once more where that was lost meanwhile."""
        deadline = time.monotonic() + self._patience_s
        while True:
            if not self._open:
                raise HarnessError("The store is closed.")
            line = await self._readers.get()
            try:
                if line is None or not line.usable:
                    line = await self._connect(deadline)
                line.until = deadline
                answer = await work(line)  # type: ignore[misc]
            except (LineLost, TryAgain) as error:
                if time.monotonic() >= deadline:
                    raise HarnessError(f"The store {self.address.shown} cannot be read: {error}.") from error
                continue
            except Conflict as error:
                raise HarnessError(f"The store refused to read: {error}.") from error
            except (ValueError, OverflowError) as error:
                raise HarnessError(f"The store refused to read: {error}.") from error
            finally:
                self._readers.put_nowait(line)
            return answer  # type: ignore[no-any-return]

    async def backup(self, path: str, wanted: Backup) -> int:
        """See the port: a server has its own tools for it."""
        del path, wanted
        raise HarnessError(
            "A store on PostgreSQL is not copied by the daemon.", remedy="Use pg_dump or pg_basebackup on the server."
        )

    async def examine(self) -> Mapping[str, str]:
        """See the port."""
        names = ("server_version", "synchronous_commit", "synchronous_standby_names", "fsync", "full_page_writes")

        async def work(line: Line) -> list[Rows]:
            return [[(str(await line.ask(f"SHOW {name}")),)] for name in names]

        told = await self.reading(work)
        values = [rows[0][0] for rows in told]
        facts = dict(zip(("version", *names[1:]), values, strict=True))
        return {"engine": "postgresql", **facts, "integrity": "ok"}

    # --- connections -------------------------------------------------------------------------------------------------

    async def _writing(self, deadline: float) -> Line:
        if not self._open:
            raise HarnessError("The store is closed.")
        if self._writer is None or not self._writer.usable:
            self._writer = await self._connect(deadline)
        self._writer.until = deadline
        return self._writer

    async def _connect(self, deadline: float) -> Line:
        """A new connection, with backoff while the server restarts. Raises StoreLost, ConfigError."""
        wait_s = FIRST_WAIT_S
        while True:
            try:
                line = await Line.connect(self.address)
            except LineLost as error:
                if time.monotonic() + wait_s >= deadline:
                    raise self._unreachable(error) from error
            else:
                self._all = {one for one in self._all if one.usable} | {line}
                return line
            await asyncio.sleep(wait_s * random.random())  # noqa: S311 - jitter
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    async def close(self) -> None:
        """End this daemon's row and all connections."""
        self._open = False
        writer = self._writer
        if writer is not None and writer.usable and self._epoch:
            try:
                await writer.run(Statement("end_daemon", {"epoch": self._epoch}))
            except Exception:  # noqa: BLE001 - others see it by its heartbeat
                writer.drop()
        lines, self._all, self._writer = self._all, set(), None
        for line in lines:
            await line.close()


class _OneFailed(Exception):  # noqa: N818 - an answer inside this module
    """One unit of the batch failed: all is done again, each in a savepoint."""


async def _rows(line: Line, unit: Unit, changed: list[int]) -> list[Rows]:
    answer: list[Rows] = []
    for statement in unit:
        rows, touched = await line.run(statement)
        if statement.must_touch is not None and touched != statement.must_touch:
            raise Missed(statement.name)
        answer.append(rows)
        changed[0] += touched
        if statement.or_stop and touched == 0:
            break
    return answer
