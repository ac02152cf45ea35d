"""Schema: the numbered steps, each in one transaction; two daemons that start at once do not meet in one."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from harnessd.domain.failure import HarnessError, StoreTooNew
from harnessd.stores.database import Migration, Statement
from harnessd.stores.postgresql.dialect import own_steps, shared_steps
from harnessd.stores.postgresql.line import Address, Line

# A table of steps instead of SQLite's number in the file's header.
_STEPS = """CREATE TABLE IF NOT EXISTS harnessd_steps (part TEXT NOT NULL, number BIGINT NOT NULL, name TEXT NOT NULL,
at TIMESTAMPTZ NOT NULL DEFAULT now(), PRIMARY KEY (part, number))"""
_LOCK = "SELECT pg_advisory_xact_lock(7235418, hashtext(current_schema()))"


async def migrate(line: Line, address: Address, crashpoint: Callable[[str], None]) -> None:
    """Take the missing steps. Raises StoreTooNew, HarnessError."""
    if await line.ask("SELECT current_schema()") is None:
        raise HarnessError(
            f"The store {address.shown} has no schema to put tables in.",
            remedy="Create the one that search_path names, or let this user create tables in schema public.",
        )
    for part, steps in (("shared", shared_steps()), ("postgresql", own_steps())):
        found = await _version(line, part)
        newest = steps[-1].number
        if found > newest:
            raise StoreTooNew(
                f"The store {address.shown} has version {found}; this harnessd knows versions up to {newest}.",
                remedy="Start the newer harnessd that wrote it, on each machine.",
            )
        for step in steps:
            if step.number > found:
                await _take(line, part, step, crashpoint)


async def _version(line: Line, part: str) -> int:
    if await line.ask("SELECT to_regclass('harnessd_steps')") is None:
        return 0
    return int(await line.ask(f"SELECT coalesce(max(number), 0) FROM harnessd_steps WHERE part = '{part}'"))  # noqa: S608 - one of two words


async def _take(line: Line, part: str, step: Migration, crashpoint: Callable[[str], None]) -> None:
    crashpoint("J22-before")
    await line.say("BEGIN")
    try:
        await line.say(_LOCK)
        await line.say(_STEPS)
        if await _version(line, part) >= step.number:
            await line.say("ROLLBACK")
            return
        for statement in step.statements:
            await line.say(statement)
        if part == "shared" and step.number == 1:
            await line.run(Statement("create_meta", {"store": secrets.token_hex(8)}))
        taken = f"'{part}', {step.number}, '{step.name}'"
        await line.say(f"INSERT INTO harnessd_steps (part, number, name) VALUES ({taken})")  # noqa: S608 - our own names
        crashpoint("J22-commit")
        await line.say("COMMIT")
    except BaseException:
        if line.usable:
            await line.say("ROLLBACK")
        raise
    crashpoint("J22-after")
