"""Line: one connection to PostgreSQL: opened within a deadline, statements prepared once, errors told apart."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from harnessd.domain.failure import ConfigError, HarnessError, StorageFull
from harnessd.stores.database import Conflict, Row, Rows, Statement
from harnessd.stores.postgresql.dialect import Query, texts, unescaped

CONNECT_S = 5.0
STATEMENT_S = 15.0  # our own deadline: longer than the server's, which answers where the network is sound
# Of the time that is left in all: a connection that does not answer leaves enough for another one.
FIRST_PART, LEAST_S = 0.7, 1.0
APPLICATION = "harnessd"
CREDENTIAL = "postgres-password"  # of a file in the folder that systemd gives (LoadCredential=)

IDLE_S = 4.0  # at most, inside a transaction

# Each session's own limits. A daemon that is stopped in the middle of a transaction keeps all others waiting until
# the server ends it; a network that is cut shows within seconds and not in two hours.
LIMITS: Mapping[str, str] = {
    "application_name": APPLICATION,
    "statement_timeout": "10s",
    "lock_timeout": "8s",
    "idle_in_transaction_session_timeout": f"{IDLE_S:g}s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "client_min_messages": "warning",
    "jit": "off",
    "timezone": "UTC",
}

AGAIN = ("40001", "40P01", "55P03", "57014", "25006")  # nothing was written; a turn later it may go
GONE = ("08", "57P", "25P03", "25P02", "58", "XX")


class LineLost(Exception):  # noqa: N818 - an answer inside the store
    """The connection is gone, or no answer came in time. Before COMMIT: nothing of the transaction will be written."""


class TryAgain(Exception):  # noqa: N818 - an answer inside the store
    """The server gave this transaction up for another one's sake; nothing of it was written."""


def asyncpg_module() -> ModuleType:
    """The driver. Raises ConfigError with how to install it."""
    try:
        import asyncpg  # noqa: PLC0415 - an extra: loaded by whoever has a store on PostgreSQL
    except ModuleNotFoundError:
        raise ConfigError(
            "store.url names a PostgreSQL store, and asyncpg is not installed.",
            remedy="Install it: pip install 'harnessd[postgres]'.",
        ) from None
    module: ModuleType = asyncpg
    return module


@dataclass(frozen=True, slots=True)
class Address:
    """Where the store is, as whom, and what each session is told.

    `url` has no password: that comes from PGPASSWORD, from PGPASSFILE, or from the credential `postgres-password`.
    """

    url: str
    settings: Mapping[str, str]

    @property
    def shown(self) -> str:
        """For messages: no query, which may name files."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def address_of(url: str, settings: Mapping[str, str]) -> Address:
    """Read `postgresql://USER@HOST:PORT/DATABASE?search_path=SCHEMA`. Raises ConfigError, never with the password."""
    try:
        parts = urlsplit(url)
        secret = parts.password is not None or "password" in dict(parse_qsl(parts.query, keep_blank_values=True))
        _ = parts.port if "," not in parts.netloc else None
    except ValueError:
        raise ConfigError(
            "store.url is no address of a PostgreSQL store.", remedy="Write postgresql://USER@HOST:PORT/DATABASE."
        ) from None
    if secret:
        raise ConfigError(
            "store.url holds a password.",
            remedy="Take it out: set PGPASSWORD or PGPASSFILE, or give systemd's credential postgres-password.",
        )
    query = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True)]
    return Address(urlunsplit(parts._replace(query=urlencode(query))), settings)


def _password() -> str | None:
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return None
    try:
        return Path(folder, CREDENTIAL).read_text(encoding="utf-8").rstrip("\n")
    except OSError:
        return None


class Line:
    """One connection. Whoever uses it has it alone."""

    def __init__(self, connection: Any) -> None:
        """Keep the open connection."""
        self.connection = connection
        self.until = math.inf  # when whoever uses it gives the server up (monotonic seconds)
        self._prepared: dict[str, Any] = {}

    @classmethod
    async def connect(cls, address: Address) -> Line:
        """Open within the deadline. Raises LineLost, ConfigError for what waiting does not mend."""
        asyncpg = asyncpg_module()
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await asyncpg.connect(
                    address.url, server_settings={**LIMITS, **address.settings}, password=_password(), timeout=CONNECT_S
                )
        except (OSError, TimeoutError, asyncpg.InterfaceError) as error:
            raise LineLost(_words(error)) from error
        except asyncpg.PostgresError as error:
            state = error.sqlstate or ""
            if state[:2] in {"28", "3D", "42"}:
                raise ConfigError(
                    f"The store {address.shown} does not let us in: {_words(error)}.",
                    remedy="Check user, password (PGPASSWORD, PGPASSFILE) and database of store.url.",
                ) from None
            raise LineLost(_words(error)) from error
        except ValueError as error:
            raise ConfigError(f"store.url is no address of a PostgreSQL store: {_words(error)}.") from error
        return cls(connection)

    @property
    def usable(self) -> bool:
        """False once the server or we have ended it."""
        return not self.connection.is_closed()

    async def run(self, statement: Statement) -> tuple[Rows, int]:
        """One named query: its rows, and how many rows it changed or returned.

        Raises LineLost, TryAgain, Conflict, StorageFull, HarnessError.
        """
        query = texts()[statement.name]
        answer: tuple[Rows, int] = await self._within(
            self._run(statement.name, query, query.arguments(statement.params))
        )
        return answer

    async def _run(self, name: str, query: Query, arguments: list[Any]) -> tuple[Rows, int]:
        prepared = self._prepared.get(name)
        if prepared is None:
            prepared = self._prepared[name] = await self.connection.prepare(query.text)
        records = await prepared.fetch(*arguments)
        rows = [_row(record) for record in records]
        status = prepared.get_statusmsg() or ""
        return rows, len(rows) if rows else _touched(status)

    async def say(self, text: str) -> None:
        """A statement without parameters or rows: BEGIN, COMMIT, DDL."""
        await self._within(self.connection.execute(text))

    async def ask(self, text: str) -> Any:
        """The first value of a statement's first row."""
        return await self._within(self.connection.fetchval(text))

    async def _within(self, work: Any) -> Any:
        asyncpg = asyncpg_module()
        left_s = max(LEAST_S, (self.until - time.monotonic()) * FIRST_PART)
        try:
            async with asyncio.timeout(min(STATEMENT_S, left_s)):
                return await work
        except TimeoutError as error:
            self.drop()
            raise LineLost("no answer in time") from error
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            if isinstance(error, asyncpg.DataError):
                raise HarnessError(f"The store refused a step: {_words(error)}.") from error
            self.drop()
            raise LineLost(_words(error)) from error
        except asyncpg.PostgresError as error:
            raise _meaning(error) from error

    def drop(self) -> None:
        """End the connection without a word: the peer may not answer."""
        self.connection.terminate()

    async def close(self) -> None:
        """End the connection in order, for a moment's time."""
        try:
            await self.connection.close(timeout=1.0)
        except Exception:  # noqa: BLE001 - it is given up either way
            self.drop()


def _row(record: Any) -> Row:
    return tuple(unescaped(value) if isinstance(value, str) else value for value in record)


def _touched(status: str) -> int:
    """The count in a command's tag, e.g. `UPDATE 1`, `INSERT 0 1`; a SELECT returned no row."""
    word, _, rest = status.partition(" ")
    return int(rest.rsplit(" ", 1)[-1]) if word in {"INSERT", "UPDATE", "DELETE"} and rest else 0


def _words(error: BaseException) -> str:
    text = str(error).strip().rstrip(".").splitlines()
    return text[0] if text else type(error).__name__


def _meaning(error: Any) -> Exception:
    state = error.sqlstate or ""
    words = _words(error)
    if state == "23505":
        return Conflict(words)
    if state == "53100":
        return StorageFull(
            f"There is no room left on the store's server ({words}); nothing of this step was written.",
            remedy="Free space there; the daemon goes on by itself.",
        )
    if state in AGAIN:
        return TryAgain(words)
    if state.startswith(GONE) or state[:2] == "53":
        return LineLost(words)
    return HarnessError(f"The store refused a step: {words} ({state}).")
