"""Stores: durable state: one port, one dialect a file, all proven by one contract suite."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harnessd.domain.durable.backup import StoreRestored
from harnessd.domain.failure import ConfigError
from harnessd.stores.backups import restoring
from harnessd.stores.journal import Journal
from harnessd.stores.operations.breakers import Breakers
from harnessd.stores.operations.checkpoints import Checkpoints
from harnessd.stores.operations.figures import Figures
from harnessd.stores.operations.jobs import Jobs
from harnessd.stores.operations.outbox import Outbox
from harnessd.stores.operations.retention import Retention
from harnessd.stores.operations.revisions import Revisions
from harnessd.stores.operations.rollbacks import Rollbacks
from harnessd.stores.operations.starts import Starts
from harnessd.stores.operations.transfers import Transfers
from harnessd.stores.postgresql.nodes import Nodes, SharedDatabase
from harnessd.stores.sessions import Sessions
from harnessd.stores.sqlite import SqliteDatabase
from harnessd.stores.verbs import Verbs

PATIENCE_S = 15.0  # without a server: under the lease's time, after which others may take the tasks


class SqlStore(
    Verbs,
    Sessions,
    Journal,
    Revisions,
    Breakers,
    Outbox,
    Jobs,
    Starts,
    Checkpoints,
    Rollbacks,
    Transfers,
    Figures,
    Retention,
):
    """`Store` of the domain's ports over one database."""


class SharedStore(Nodes, SqlStore):
    """The same over a server that several daemons share."""


def on_server(url: str | Path) -> bool:
    """Whether the store is a server's, and not a file's."""
    return str(url).startswith(("postgresql://", "postgres://"))


def open_store(
    url: str | Path,
    *,
    crashpoint: Callable[[str], None] = lambda _: None,
    pragmas: Sequence[str] = (),
    node: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
) -> SqlStore:
    """The store behind a URL (`sqlite:PATH`, `postgresql://...`) or a path; `await store.open(owner)` takes it.

    `crashpoint` is called with the name of each point where a crash is to be tried (`J1`, `J27-before`); `pragmas` are
    run on SQLite's writing connection last. `node`: who this daemon is among others on a server, its `node` and `host`;
    the server is given up after `patience_s` seconds. Raises ConfigError for a URL of a kind that is not there.
    """
    if on_server(url):
        name = socket.gethostname()
        identity = {"node": name, "host": name, **(node or {})}
        return SharedStore(SharedDatabase(str(url), crashpoint, patience_s, identity), crashpoint)
    return SqlStore(SqliteDatabase(database_path(url), crashpoint, pragmas), crashpoint)


def restore(
    source: str | Path, url: str | Path, *, crashpoint: Callable[[str], None] = lambda _: None
) -> StoreRestored:
    """Make a backup the store behind `url`. See `backups.restoring.restore`."""
    return restoring.restore(Path(source), database_path(url), crashpoint)


def state_folder(url: str | Path, beside: str | Path) -> Path:
    """Where this node keeps what no store holds: with the store's file, or in `beside`."""
    return Path(beside).absolute() if on_server(url) else database_path(url).parent


def database_path(url: str | Path) -> Path:
    """The file behind `sqlite:PATH`, `sqlite:///PATH` or a path."""
    text = str(url)
    if on_server(url):
        raise ConfigError("The store is on a server, and no file.", remedy="Use the server's own tools for this.")
    scheme, colon, rest = text.partition(":")
    if isinstance(url, Path) or not colon or "/" in scheme:
        return Path(text).absolute()
    if scheme != "sqlite" or not rest.strip("/"):
        raise ConfigError(
            f"store.url {text!r} names no store.", remedy='Write "sqlite:PATH", e.g. "sqlite:state/harnessd.db".'
        )
    if rest.startswith("///"):
        rest = rest[2:]
    return Path(rest).absolute()
