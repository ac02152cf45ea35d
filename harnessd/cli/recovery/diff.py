"""Diff: what differs in a workspace between two nodes of a task, or between one and now."""

from __future__ import annotations

import click

from harnessd.cli import render
from harnessd.cli.client import task_path
from harnessd.cli.options import connect, connection, json_option, task_argument


@click.command()
@task_argument
@click.argument("old", metavar="A")
@click.argument("new", metavar="[B]", required=False)
@json_option
@connection
@click.pass_context
def diff(ctx: click.Context, task: str, old: str, new: str | None, as_json: bool) -> int:
    """What differs in the workspace between nodes A and B; without B, between A and now."""
    query = [("from", old), *([("to", new)] if new else [])]
    found = connect(ctx).get(task_path(task, "diff"), query)
    if as_json:
        render.out_json(found)
        return 0
    changes = found["changes"]
    rows = [
        [change["what"], f"+{change['plus']} -{change['minus']}" if change["plus"] is not None else "", change["path"]]
        for change in changes
    ]
    render.out_lines(render.table(rows))
    total = f"{len(changes)} paths differ" if len(changes) != 1 else "1 path differs"
    render.out(f"{total if changes else 'Nothing differs'} between {render.one_line(old)} and {new or 'now'}.")
    return 0
