"""Database: the port behind the store: units of work as data, reads, named queries, numbered migrations.

A unit of work is a tuple of statements, never a coroutine: whoever runs it needs no foreign `await` inside a
transaction, a whole batch of units crosses to the database in one hop, and every dialect can run it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, Protocol

from harnessd.domain.durable.backup import Backup

Row = tuple[Any, ...]
Rows = list[Row]


class Statement(NamedTuple):
    """One named query with its parameters.

    Attributes:
        name: of a query in `sql/*.sql`.
        must_touch: how many rows it has to change or return; any other number fails the whole unit with `Missed`.
            Fencing is `must_touch=1`.
        or_stop: no row ends the unit here, as a success: what follows is left out.
    """

    name: str
    params: dict[str, Any]
    must_touch: int | None = None
    or_stop: bool = False


Unit = tuple[Statement, ...]


class Missed(Exception):  # noqa: N818 - an answer inside the store, not an error for people
    """A statement touched another number of rows than it had to; its unit was rolled back."""

    def __init__(self, statement: str) -> None:
        """Keep the statement's name: the caller knows what it means."""
        self.statement = statement
        super().__init__(statement)


class Conflict(Exception):  # noqa: N818 - an answer inside the store
    """A row with this identity is there already; the unit was rolled back."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What became of a batch: for each unit the rows of its statements, or why it alone was not written."""

    answers: Sequence[Sequence[Rows] | Exception]
    newest_event: int


@dataclass(frozen=True, slots=True)
class Opened:
    """What a database knows of itself once it is ours."""

    epoch: int
    newest_event: int


class Database(Protocol):
    """One dialect. Only the writer calls `commit`, one call at a time."""

    async def open(self, owner: str) -> Opened:
        """Lock, connect, migrate, check that nothing acknowledged is missing, raise the owner's epoch."""

    async def commit(self, units: Sequence[Unit]) -> Batch:
        """Run the units in one transaction, each in a savepoint; return after the commit is durable.

        Raises StorageFull and StoreLocked (nothing was written), OutcomeUnknown, StoreLost.
        """

    async def fetch(self, reads: Sequence[Statement]) -> list[Rows]:
        """Answer the reads from one consistent snapshot."""

    async def backup(self, path: str, wanted: Backup) -> int:
        """A whole copy at `path`, complete or absent, with the wanted files; its size in bytes. Writing goes on."""

    async def examine(self) -> Mapping[str, str]:
        """What the database says of itself: `engine`, `version`, how it makes commits durable, `integrity`.

        Where it has standbys: `synchronous_commit` and `synchronous_standby_names`.
        """

    async def close(self) -> None:
        """Give everything back."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema, forward only, run in one transaction."""

    number: int
    name: str
    statements: tuple[str, ...]


_HEADER = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")


@cache
def queries() -> Mapping[str, str]:
    """Every named query with its fragments filled in."""
    return named_texts()


def named_texts(dialect: str | None = None, respell: Callable[[str], str] = str) -> Mapping[str, str]:
    """The shared queries, respelled; a name or fragment in the dialect's own folder takes the place of theirs."""
    texts: dict[str, str] = {}
    names: set[str] = set()
    _collect("sql", respell, texts, names)
    if dialect is not None:
        own: dict[str, str] = {}
        _collect(f"sql/{dialect}", str, own, names)
        texts |= own
    return {name: _filled(texts[name], texts) for name in sorted(names)}


def _collect(folder: str, respell: Callable[[str], str], texts: dict[str, str], names: set[str]) -> None:
    for file in sorted(resources.files(__package__).joinpath(folder).iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        _, *parts = _HEADER.split(file.read_text(encoding="utf-8"))
        for kind, name, text in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
            if name in texts:
                message = f"{file.name}: {name} is there twice"
                raise ValueError(message)
            texts[name] = respell(_without_comments(text))
            if kind == "name":
                names.add(name)


def migrations(*folder: str, split: str = ";") -> tuple[Migration, ...]:
    """All steps, in order; the number of the last is the version this program writes.

    `folder`: of a dialect's own steps, below `sql`; `split` is what stands between two statements.
    """
    place = resources.files(__package__).joinpath("sql", *(folder or ("migrations",)))
    steps = []
    for file in sorted(place.iterdir(), key=lambda entry: entry.name):
        number, _, name = file.name.removesuffix(".sql").partition("_")
        text = _without_comments(file.read_text(encoding="utf-8"))
        statements = tuple(part.strip() for part in text.split(split) if part.strip())
        steps.append(Migration(int(number), name, statements))
    return tuple(steps)


def _without_comments(text: str) -> str:
    return "\n".join(line.split("--")[0].rstrip() for line in text.splitlines() if line.split("--")[0].strip())


def _filled(text: str, fragments: Mapping[str, str]) -> str:
    while _FRAGMENT.search(text):
        text = _FRAGMENT.sub(lambda match: fragments[match[1]], text)
    return text
