"""Service: the daemon as a service of systemd, for the system or for one user: installed, taken away, printed."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harnessd.cli import render
from harnessd.cli.client import DONE
from harnessd.cli.options import dry_run_option, json_option
from harnessd.cli.service import hands, plan
from harnessd.cli.service.plan import Wanted

_user_option = click.option("--user", is_flag=True, help="For you alone, without root; else for the system.")
_prefix_option = click.option(
    "--prefix", metavar="DIR", help="The virtual environment that the unit starts; this one if not said."
)
_root_option = click.option(
    "--root", default="", metavar="DIR", help="Write into this tree (of an image), and start nothing."
)
_socket_option = click.option("--socket-unit", is_flag=True, help="Start at the first connection, not at boot.")
_drop_in_option = click.option(
    "--drop-in", "drop_ins", multiple=True, type=click.Choice(plan.DROP_INS), help="May stand several times."
)


@click.group(no_args_is_help=True)
def service() -> None:
    """Harnessd as a service of systemd."""


@service.command(name="print")
@_user_option
@_prefix_option
@_socket_option
@_drop_in_option
def print_(user: bool, prefix: str | None, socket_unit: bool, drop_ins: tuple[str, ...]) -> int:
    """Print every file that install would write."""
    wanted = Wanted(user, _prefix(prefix), socket=socket_unit, drop_ins=drop_ins)
    whole = plan.install(wanted, hands.credentials(wanted))
    for number, file in enumerate(whole.files):
        render.out_lines([*([""] if number else []), f"# --- {file.path}", *file.text.rstrip("\n").split("\n")])
    return DONE


@service.command()
@_user_option
@_prefix_option
@_root_option
@_socket_option
@_drop_in_option
@click.option("--now", "start", is_flag=True, help="Start it too, or start it anew.")
@click.option("--force", is_flag=True, help="Write over a unit that somebody else wrote.")
@dry_run_option
@json_option
def install(  # noqa: PLR0913, PLR0917 - one for each option
    user: bool,
    prefix: str | None,
    root: str,
    socket_unit: bool,
    drop_ins: tuple[str, ...],
    start: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Write the unit and what belongs to it, and enable it. May be repeated: what is right stays as it is.

    harness.yaml is written only where there is none. Each file in the folder `credentials` beside it becomes a
    LoadCredential= of the unit. --now also starts the service.
    """
    wanted = Wanted(user, _prefix(prefix), root.rstrip("/"), socket_unit, drop_ins, start, force)
    return _tell(hands.install(wanted, dry_run=dry_run), wanted, as_json=as_json)


@service.command()
@_user_option
@_root_option
@dry_run_option
@json_option
def uninstall(user: bool, root: str, dry_run: bool, as_json: bool) -> int:
    """Stop and disable the service and take its unit away. Configuration, keys and state stay."""
    wanted = Wanted(user, _prefix(None), root.rstrip("/"))
    return _tell(hands.uninstall(wanted, dry_run=dry_run), wanted, as_json=as_json)


def _prefix(named: str | None) -> str:
    return str(Path(named).absolute()) if named else sys.prefix


def _tell(done: hands.Done, wanted: Wanted, *, as_json: bool) -> int:
    if as_json:
        render.out_json(done.document())
        return DONE
    render.out_lines(render.table(done.rows()))
    for problem in done.problems:
        render.note(f"! {problem.message} {problem.hint}".rstrip())
    if done.dry_run:
        render.note("Nothing was changed.")
    elif done.next:
        render.out_lines(done.next)
    del wanted
    return DONE
