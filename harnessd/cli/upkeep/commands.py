"""Backup and gc: a whole copy in one file; what policy keeps no longer goes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.options import connect, connection, dry_run_option, json_option

_SHOWN = 20  # tasks in a list for people; --json has them all


@click.command()
@click.argument("file", metavar="FILE")
@json_option
@connection
@click.pass_context
def backup(ctx: click.Context, file: str, as_json: bool) -> int:
    """A whole copy of what the daemon keeps, in one file: complete or absent.

    Tasks, sessions, the journal of effects, policies, the contents of checkpoints and artefacts; not the workspaces
    themselves, and no secrets. The daemon writes it and goes on meanwhile. Back: harnessd restore FILE
    """
    client = connect(ctx)
    client.patience_s = None
    done = client.post("/v1/backup", {"file": os.path.abspath(file)})  # noqa: PTH100 - pathlib costs start-up time
    if as_json:
        render.out_json(done)
    else:
        took = render.duration(done["took_s"])
        render.out(f"{render.one_line(done['file'])}  {render.size(done['bytes'])}, whole and on the disk after {took}")
        render.note(f"Back: harnessd restore {render.one_line(done['file'])}   (while no daemon runs)")
    return 0


@click.command()
@dry_run_option
@json_option
@connection
@click.pass_context
def gc(ctx: click.Context, dry_run: bool, as_json: bool) -> int:
    """Let go what policy keeps no longer; the daemon does it by itself too, when it is quiet.

    See: harnessctl policy explain retention. A task is kept longer with: harnessctl set TASK --keep 90d
    """
    client = connect(ctx)
    client.patience_s = None
    done = client.post("/v1/gc", {}, dry_run=dry_run)
    if as_json:
        render.out_json(done)
    else:
        render.out_lines(_story(done))
    return 0


def _story(done: Mapping[str, Any]) -> list[str]:
    rows = [
        ("tasks", _ids(done["tasks"]), "whole: session, journal, artefacts, checkpoints"),
        ("checkpoints", _ids(done["checkpoints"]), "of tasks that stay"),
        ("artefacts", _ids(done["artefacts"]), render.size(sum(one["bytes"] for one in done["artefacts"]))),
        ("revisions", _words([f"r{number}" for number in done["revisions"]]), "of policies"),
        ("leftovers", _words(done["leftovers"]), "rows of tasks that were being let go at a crash"),
        ("events", str(done["events"] or ""), "of the daemon itself"),
        ("alerts", str(done["alerts"] or ""), "that nobody took"),
    ]
    rows = [row for row in rows if row[1]]
    lines = render.table(rows)
    if not rows:
        lines.append("Nothing is older than policy keeps it.")
    if done["dry_run"]:
        lines.append("Nothing was changed. Do it: harnessctl gc" if rows else "Nothing was changed.")
    else:
        freed = render.size(done["freed_bytes"])
        lines.append(f"{freed} of files given back; the store's own file keeps its size and is filled anew.")
    return lines


def _ids(rows: Sequence[Mapping[str, Any]]) -> str:
    return _words([str(row["task"]) for row in rows])


def _words(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return f"{len(words)}: {' '.join(words[:_SHOWN])}{more}" if words else ""
