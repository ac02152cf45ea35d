"""Nodes: the daemons that share a store: where they are, whether they live, what they have at work."""

from __future__ import annotations

import click

from harnessd.cli import render
from harnessd.cli.options import connect, connection, json_option


@click.command()
@json_option
@connection
@click.pass_context
def nodes(ctx: click.Context, as_json: bool) -> int:
    """The daemons on this store. One that is `dead` was not heard for 20 s; its tasks are taken over.

    Empty one for a while: harnessctl drain --node NODE
    """
    found = connect(ctx).get("/v1/nodes")
    if as_json:
        render.out_json(found)
        return 0
    rows = [
        [
            render.one_line(row["node"]),
            render.one_line(row["host"]),
            row["state"],
            f"{render.duration(max(row['now'] - row['heartbeat'], 0.0))} ago",
            str(row["tasks"]),
            f"since {render.clock_time(row['draining'], row['now'])}" if row["draining"] else "no",
        ]
        for row in found["nodes"]
    ]
    render.out_lines(render.table(rows, ["NODE", "HOST", "STATE", "HEARTBEAT", "TASKS", "DRAINING"]))
    return 0
