"""Configuration: what harness.yaml and the environment say, value by value."""

from __future__ import annotations

import click

from harnessd.cli import Rows, Table

ROWS: Rows = {
    "show": ("harnessd.cli.configuration.show:show", "Every value, and where it comes from; secrets stay unread."),
}


class Group(Table):
    """The commands below `harnessctl config`; each is imported when it is called."""

    def __init__(self) -> None:
        click.Group.__init__(self, name="harnessctl config", help="What harness.yaml says.", no_args_is_help=True)
        self.rows = ROWS


config = Group()
