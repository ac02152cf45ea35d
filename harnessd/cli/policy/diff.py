"""Diff: what would change: values with their places, and what the running tasks would feel of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, UNREACHABLE, Client, Problem
from harnessd.cli.options import connect, connection, json_option
from harnessd.cli.policy import comparison
from harnessd.cli.policy.sources import (
    FILES,
    Source,
    config_option,
    in_force,
    is_revision,
    problems_in,
    source_named,
    tell_problems,
)
from harnessd.cli.policy.standing import Felt, felt, felt_lines


@click.command()
@click.argument("sides", nargs=-1, metavar="[A] [B]")
@config_option
@json_option
@connection
@click.pass_context
def diff(ctx: click.Context, sides: tuple[str, ...], config: Path | None, as_json: bool) -> int:
    """Compare two policy sets: effective values, and what running tasks would feel.

    A and B are each a revision (r47), a folder, or `files`: what the daemon would read now. Without A: the set in
    force. Without B: `files`; with one side that is no revision, the set in force against it.
    """
    if len(sides) > 2:
        raise click.UsageError(f"{len(sides)} sides were given: write at most two")
    client = connect(ctx)
    first, second = _words(sides)
    old = in_force(client) if first is None else source_named(first, client, config)
    new = source_named(second, client, config)
    if old.policies is None or new.policies is None:
        return _broken([old, new], as_json)
    told = _felt(client, first, new)
    if as_json:
        document: dict[str, Any] = {
            "from": _plain(old),
            "to": _plain(new),
            "changes": comparison.plain(old.policies, new.policies),
            "running": told.json() if told is not None else None,
        }
        render.out_json(document)
        return 0
    render.out(render.one_line(f"{_titled(old)}   ->   {_titled(new)}"))
    rows = comparison.rows(old.policies, new.policies)
    render.out()
    render.out_lines(comparison.lines(rows) if rows else ("No value differs.",))
    if told is not None:
        render.out()
        render.out_lines(felt_lines(told))
    return 0


def _words(sides: tuple[str, ...]) -> tuple[str | None, str]:
    """The two sides; None is the set in force."""
    if len(sides) == 2:
        return sides[0], sides[1]
    if not sides:
        return None, FILES
    return (sides[0], FILES) if is_revision(sides[0]) else (None, sides[0])


def _felt(client: Client, first: str | None, new: Source) -> Felt | None:
    """What the running tasks would feel of the new side, whatever the old one is: they live under the set in force."""
    if first is not None and not is_revision(first):
        return None  # two folders, as in a review: no daemon is needed
    try:
        return felt(client, in_force(client).whole, new.whole, new.agents)
    except Problem as problem:
        if problem.exit_code != UNREACHABLE:
            raise
        render.note(f"{problem.message} What running tasks would feel is not known.")
        return None


def _titled(source: Source) -> str:
    return f"{source.title}, {source.about}" if source.about and source.title != FILES else _files(source)


def _files(source: Source) -> str:
    return f"{source.title} {source.about}".rstrip()


def _plain(source: Source) -> dict[str, Any]:
    policies = source.policies
    return {
        "title": source.title,
        "about": source.about,
        "revision": policies.revision or None if policies is not None else None,
        "hash": policies.hash if policies is not None else None,
    }


def _broken(sides: list[Source], as_json: bool) -> int:
    """A side that is not valid has no effective values."""
    for source in sides:
        if source.policies is not None:
            continue
        if as_json:
            render.out_json(
                {"from": _plain(sides[0]), "to": _plain(sides[1]), "problems": [*map(str, source.problems)]}
            )
            break
        tell_problems(source.problems)
        where = f"{source.title}: {problems_in(source.problems)}"
        render.note(f"{where}; there is nothing to compare until they are mended.")
    return FAILED
