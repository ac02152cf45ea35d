"""Notify commands: send one message to a channel and say what it answered."""

from __future__ import annotations

import click

from harnessd.cli import Rows, Table, render
from harnessd.cli.client import DONE, FAILED, quoted
from harnessd.cli.options import connect, connection, json_option

ROWS: Rows = {"test": ("harnessd.cli.notify:test", "Send one message to a channel and print the answer.")}


class Group(Table):
    """The commands below `harnessctl notify`."""

    def __init__(self) -> None:
        click.Group.__init__(
            self, name="harnessctl notify", help="Channels that tell people: try one.", no_args_is_help=True
        )
        self.rows = ROWS


@click.command()
@click.argument("channel")
@json_option
@connection
@click.pass_context
def test(ctx: click.Context, channel: str, as_json: bool) -> int:
    """Send one message to CHANNEL of the notify policy in force, and print what it answered.

    Exit status 0 if the channel took it, 1 if not.
    """
    done = connect(ctx).post(f"/v1/notify/{quoted(channel)}/test", {})
    if as_json:
        render.out_json(done)
    else:
        word = "delivered" if done["delivered"] else "NOT delivered"
        render.out(f"{render.one_line(done['channel'])}: {word}: {render.one_line(done['said'])}")
    return DONE if done["delivered"] else FAILED


notify = Group()
