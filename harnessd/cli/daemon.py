"""The daemon's own commands: run, check, restore."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@_debug_option
def restore(file: Path, config: Path | None, as_json: bool) -> int:
    """Make a backup the store. The daemon must not run.

    The backup is checked first. What was there is moved aside, never deleted. Tasks go on when the daemon starts; each
    is told that its history was restored, and where nobody knows what it did since the backup, a person is asked
    before it does anything that cannot be undone.
    """
    done = import_module("harnessd.app").restore(file, config)
    if isinstance(done, int):
        return done
    if as_json:
        render.out_json(_restored(file, done))
    else:
        render.out_lines(_story(file, done))
    return 0


def _restored(file: Path, done: Any) -> dict[str, Any]:
    acts = None if done.since is None else [act_json(act) for act in done.since]
    told = {"commit": done.commit, "backup_at": done.at or None, "files": done.files, "aside": list(done.aside)}
    return {"file": str(file), **told, "live": list(done.live), "in_doubt": list(done.doubted), "acts_since": acts}


def act_json(act: Any) -> dict[str, Any]:
    """An act beyond the backup, with stable keys."""
    return {"task": act.task, "effect": act.effect, "tool": act.name, "state": act.state, "at": act.at}


def _story(file: Path, done: Any) -> list[str]:
    taken = f", taken {render.full_time(done.at)}" if done.at else ""
    lines = [f"{render.one_line(str(file))}{taken}, is the store now; it stands at commit {done.commit}."]
    lines.append(f"files     {done.files} of checkpoints and artefacts came back with it.")
    if done.aside:
        lines.append(f"kept      {', '.join(done.aside)} (beside the store; remove them when nothing is missed)")
    lines.append(
        f"tasks     {_many(len(done.live), 'goes', 'go')} on when the daemon starts, and {_told(done.live)} so."
    )
    if done.since is None:
        lines.append("between   What tasks did after the backup is not known: the old store is gone or not whole.")
    elif done.since:
        lines.append(f"between   The old store knows of {len(done.since)} acts that cannot be undone:")
        lines += [f"          {act.task} {act.effect}  {act.name}  {act.state}" for act in done.since]
    else:
        lines.append("between   Nothing that cannot be undone was done after the backup: the old store says so.")
    if done.doubted:
        lines.append(f"in doubt  {_many(len(done.doubted), 'asks', 'ask')} a person before such an act.")
    lines.append("next      harnessd run   (or: systemctl start harnessd), then: harnessctl status")
    return [render.visible(line) for line in lines]


def _many(count: int, one: str, more: str) -> str:
    return f"1 task {one}" if count == 1 else f"{count} tasks {more}"


def _told(tasks: Any) -> str:
    return "is told" if len(tasks) == 1 else "are told"
