"""Session commands: transcripts from anywhere, judged and made legal as files, without a daemon."""

from __future__ import annotations

import click

from harnessd.cli import Rows, Table

ROWS: Rows = {
    "lint": ("harnessd.cli.session.mending:lint", "Name everything in a transcript that its receiver would refuse."),
    "repair": ("harnessd.cli.session.mending:repair_", "Write a legal view of a transcript, and say what was done."),
}


class Group(Table):
    """The commands below `harnessctl session`; each is imported when it is called."""

    def __init__(self) -> None:
        about = "Transcripts as files, from any agent: find what a model service would refuse, and repair it."
        click.Group.__init__(self, name="harnessctl session", help=about, no_args_is_help=True)
        self.rows = ROWS


session = Group()
