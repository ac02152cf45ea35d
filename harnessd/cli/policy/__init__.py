"""Policy commands: check, explain, schema, show, diff, edit, reload, history and revert."""

from __future__ import annotations

import click

from harnessd.cli import Rows, Table

ROWS: Rows = {
    "check": ("harnessd.cli.policy.check:check", "Find all problems of policy files; works without a daemon."),
    "test": ("harnessd.cli.policy.test:test", "Run the unit tests of policies, on virtual time."),
    "explain": ("harnessd.cli.policy.explain:explain_", "What a key means: type, default, bounds."),
    "schema": ("harnessd.cli.policy.explain:schema_", "JSON Schemas for editors."),
    "show": ("harnessd.cli.policy.show:show", "What is in force, and where each value comes from."),
    "diff": ("harnessd.cli.policy.diff:diff", "Compare revisions, folders and the files that are not in force yet."),
    "classify": ("harnessd.cli.policy.classify:classify_", "What an answer of a model service is, and why."),
    "edit": ("harnessd.cli.policy.edit:edit", "Copy, edit, check, compare and replace a policy in one step."),
    "reload": ("harnessd.cli.policy.revisions:reload_", "Read the files now."),
    "history": ("harnessd.cli.policy.revisions:history", "All revisions, newest first."),
    "revert": ("harnessd.cli.policy.revisions:revert", "Put an earlier revision in force and hold it."),
}


class Group(Table):
    """The commands below `harnessctl policy`; each is imported when it is called."""

    def __init__(self) -> None:
        about = "How every failure is met: check, explain, compare, change and revert policies."
        click.Group.__init__(self, name="harnessctl policy", help=about, no_args_is_help=True)
        self.rows = ROWS


policy = Group()
