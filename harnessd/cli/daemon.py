"""The daemon's own commands: run, check, restore."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from harnessd.cli import render

_config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="harness.yaml to read; else HARNESSD_CONFIG, ./harness.yaml, then the configuration folders.",
)
_debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of faults.")


@click.command(name="run")
@_config_option
@click.option("--strict", is_flag=True, help="Refuse to start on warnings too.")
@_debug_option
def run_daemon(config: Path | None, strict: bool) -> int:
    """Run the daemon in the foreground.

    SIGTERM drains: each task stops at its step border and is handed back. SIGHUP reads the policies again.
    """
    import_module("harnessd.runtime.host.early_stop").early.listen()
    app = import_module("harnessd.app")
    return int(app.run(config, strict))


@click.command()
@_config_option
@click.option("--strict", is_flag=True, help="Warnings count as problems.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@_debug_option
def check(config: Path | None, strict: bool, as_json: bool) -> int:
    """Read all configuration and policies and print problems; touch nothing.

    Ends with 0, or with 78 if the daemon would not start.
    """
    app = import_module("harnessd.app")
    problems, warnings = app.check(config)
    counted = [*problems, *(warnings if strict else [])]
    if as_json:
        render.out_json({"ok": not counted, "problems": [*problems], "warnings": [*warnings]})
    else:
        render.out_lines(render.visible(line) for line in problems)
        render.out_lines(render.visible(f"{line} (warning)") for line in warnings)
        many = [
            f"{len(of)} {word}{'s' * (len(of) != 1)}" for of, word in ((problems, "problem"), (warnings, "warning"))
        ]
        render.note(f"{', '.join(many)}; nothing was changed.")
    return 78 if problems else 1 if counted else 0


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@_config_option
@_debug_option
def restore(file: Path, config: Path | None) -> int:
    """Make a backup the store. The daemon must not run."""
    app = import_module("harnessd.app")
    return int(app.restore(file, config))
