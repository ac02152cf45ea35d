"""Show: harness.yaml with the environment on top, value by value, and where each comes from; works without a daemon."""

from __future__ import annotations

import os
from pathlib import Path

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED
from harnessd.cli.configuration.values import Setting, settings
from harnessd.cli.options import connection, json_option
from harnessd.cli.policy.sources import config_option
from harnessd.config.load import find_config, read_settings
from harnessd.config.settings import Settings

_VALUE_COLUMNS = 60  # longer ones, system prompts mostly, are whole in --json and in the file


@click.command()
@click.argument("prefix", required=False, metavar="[KEY]")
@config_option
@json_option
@connection
def show(prefix: str | None, config: Path | None, as_json: bool) -> int:
    """What harness.yaml and the environment say, value by value, and where each comes from.

    KEY keeps what stands below it: models, models.primary, store.url. Secrets are not read: shown is where the daemon
    reads them. The daemon reads the file at its start; only `agents` follow changes.
    """
    path = find_config(config, os.environ)
    read = read_settings(path, os.environ)
    if read.problems or read.tree is None:
        if as_json:
            render.out_json({"file": str(path), "ok": False, "problems": [str(problem) for problem in read.problems]})
        else:
            render.out_lines(render.visible(str(problem)) for problem in read.problems)
            render.note(f"{len(read.problems)} problem{'s' * (len(read.problems) != 1)}; nothing was changed.")
        return FAILED
    found = [one for one in settings(Settings, read.tree) if prefix is None or _below(one, prefix)]
    if as_json:
        render.out_json({"file": str(path), "ok": True, "settings": [one.json() for one in found]})
    else:
        rows = [(one.path, render.cut(render.one_line(one.value), _VALUE_COLUMNS), one.origin) for one in found]
        render.out_lines(render.table(rows))
        if not found:
            render.note(f"Nothing is set below {render.one_line(prefix)}; all keys: docs/configuration.md.")
    return 0 if found else FAILED


def _below(one: Setting, prefix: str) -> bool:
    return one.path == prefix or one.path.startswith(f"{prefix}.")
