"""Chaos commands: faults on purpose, and what is left of them behind each layer."""

from __future__ import annotations

import click

from harnessd.cli import Rows, Table

ROWS: Rows = {
    "run": ("harnessd.cli.chaos.measure:run", "Measure availability layer by layer, beside what the formula expects.")
}


class Group(Table):
    """The commands below `harnessctl chaos`; each is imported when it is called."""

    def __init__(self) -> None:
        click.Group.__init__(self, name="harnessctl chaos", help="Faults on purpose.", no_args_is_help=True)
        self.rows = ROWS


chaos = Group()
