"""Breakers: look at them, open and close them by hand."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import USAGE, Problem, quoted
from harnessd.cli.options import connect, connection, json_option, seconds

_names = click.argument("names", nargs=-1, required=True, metavar="NAME...")
_note = click.option("--note", default="", metavar="TEXT", help="The reason, the ticket; shown in the status.")


@click.command(name="list")
@json_option
@connection
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> int:
    """All breakers of models, and of tools that were called."""
    found = connect(ctx).get("/v1/breakers")["breakers"]
    if as_json:
        render.out_json({"breakers": found})
        return 0
    now = time.time()
    rows = [
        [
            row["name"],
            row["state"],
            render.clock_time(row["since"], now) if row["since"] else "",
            f"{row['failed']}/{row['calls']}",
            row["why"],
            row["next"],
        ]
        for row in found
    ]
    render.out_lines(render.table(rows, ["BREAKER", "STATE", "SINCE", "FAILED", "WHY", "NEXT"]))
    return 0


@click.command()
@_names
@click.option("--for", "for_", default="1h", show_default=True, metavar="TIME", help="How long: 30m, 2h, 1d.")
@_note
@json_option
@connection
@click.pass_context
def trip(ctx: click.Context, names: tuple[str, ...], for_: str, note: str, as_json: bool) -> int:
    """Open breakers by hand: no attempts until the time is over, then a probe."""
    wait_s = seconds("--for", for_)
    if wait_s <= 0:
        raise Problem(USAGE, f'--for "{for_}" is no time at all.', "Write --for 2h.")
    return _change(ctx, names, {"do": "trip", "for": wait_s, "note": note}, as_json)


@click.command()
@_names
@_note
@json_option
@connection
@click.pass_context
def reset(ctx: click.Context, names: tuple[str, ...], note: str, as_json: bool) -> int:
    """Close breakers by hand; parked tasks come back bit by bit."""
    return _change(ctx, names, {"do": "reset", "note": note}, as_json)


def _change(ctx: click.Context, names: tuple[str, ...], body: Mapping[str, Any], as_json: bool) -> int:
    client = connect(ctx)
    done = [client.post("/v1/breakers/" + "/".join(quoted(part) for part in name.split("/")), body) for name in names]
    if as_json:
        render.out_json({"breakers": done})
        return 0
    for row in done:
        what = f"{row['state']}{', as it was' if row.get('already') else ''}"
        rest = "  ".join(word for word in (row["why"], row["next"]) if word)
        render.out(render.one_line(f"{row['name']}  {what}  {rest}".rstrip()))
    return 0
