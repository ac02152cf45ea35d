"""Export and import: a session leaves as a file that proves itself whole, and comes in as a new task."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, USAGE, Problem, task_path
from harnessd.cli.options import connect, connection, dry_run_option, json_option, task_argument

FILE_MAX = 256 * 1024 * 1024
_FORM = "Give a file of harnessctl export, or a transcript that harnessctl session lint reads."


@click.command(name="export")
@task_argument
@click.option("-o", "--out", "out", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE, else print.")
@click.option("--html", is_flag=True, help="One page to read, without scripts and links to elsewhere.")
@connection
@click.pass_context
def export(ctx: click.Context, task: str, out: Path | None, html: bool) -> int:
    """A whole session: the task, all nodes, acts, decisions, events and questions, one JSON object a line.

    The first line says what the file is; the last one holds a SHA-256 of all lines before it. Secrets that the daemon
    knows are not in it; the files of the workspace are not in it either.
    """
    parts: Iterable[bytes] = connect(ctx).parts(task_path(task, "export"))
    if html:
        from harnessd.cli.transfer.page import page

        parts = (piece.encode("utf-8", "replace") for piece in page(parts))
    if out is None or str(out) == "-":
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return 0
    _write(out, parts)
    render.note(f"Written to {render.one_line(out)}.")
    return 0


@click.command(name="import")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--workspace", metavar="FOLDER", help="Folder to go on in; the session's own if not given.")
@click.option("--agent", metavar="NAME", help="Who goes on; the session's own agent if not given.")
@dry_run_option
@json_option
@connection
@click.pass_context
def import_(
    ctx: click.Context, file: Path, workspace: str | None, agent: str | None, dry_run: bool, as_json: bool
) -> int:
    """Make the session in FILE (- reads standard input) a new task, paused; harnessctl resume goes on with it.

    FILE is what export wrote: nodes and acts keep their ids, and what was done is not done again. It may also be a
    transcript of another agent, as session lint reads it; it is repaired on its way in.
    """
    data = _read(file)
    if not _ours(data):
        from harnessd.cli.transfer.foreign import lines_of

        data, told = lines_of(data, render.one_line(file), os.path.abspath(workspace or "."))  # noqa: PTH100 - as text
        if not as_json:
            for line in told:
                render.note(line)
    query: list[tuple[str, object]] = [("agent", agent)] if agent else []
    query += [("workspace", os.path.abspath(workspace))] if workspace else []  # noqa: PTH100 - as text
    answer = connect(ctx).upload("/v1/import", [*query, *([("dry_run", 1)] if dry_run else [])], data)
    if as_json:
        render.out_json(answer)
        return 0
    _tell(answer, dry_run=dry_run)
    return 0


def _tell(answer: dict[str, Any], *, dry_run: bool) -> None:
    parts = [f"{answer[what]} {what if answer[what] != 1 else what[:-1]}" for what in ("nodes", "effects")]
    what = f"{', '.join(parts)} from {render.one_line(answer['imported'])}"
    where = f"agent {render.one_line(answer['agent'])} in {render.one_line(answer['workspace'])}"
    if dry_run:
        render.out(f"Would import {what}: {where}. Nothing was changed.")
    else:
        render.out(f"{answer['task']}  imported, paused: {what}; {where}")
    if answer["unknown"]:
        shown = ", ".join(map(render.one_line, answer["unknown"][:10]))
        render.note(f"Outcome unknown, not repeated by itself: {shown}.")
    if not dry_run:
        render.note(f"Go on: harnessctl resume {answer['task']}   Look: harnessctl tree {answer['task']}")


def _ours(data: bytes) -> bool:
    """The first line says that it is an export; whether the rest is whole is the daemon's to judge."""
    return b'"harnessd-session"' in data.partition(b"\n")[0][:1000]


def _read(file: Path) -> bytes:
    shown = render.one_line(file)
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(FILE_MAX + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(FILE_MAX + 1)
    except OSError as error:
        raise Problem(USAGE, f"{shown} cannot be read: {error.strerror or error}.", "Name a readable file.") from None
    if len(data) > FILE_MAX:
        raise Problem(USAGE, f"{shown} is larger than {FILE_MAX} bytes.", "Export a shorter session.")
    if not data.strip():
        raise Problem(USAGE, f"{shown} is empty.", _FORM)
    return data


def _write(out: Path, parts: Iterable[bytes]) -> None:
    """The whole file or none of it; for nobody else's eyes, as the store is."""
    beside = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with _made(beside) as opened:
            for part in parts:
                opened.write(part)
        beside.replace(out)
    except OSError as error:
        reason = error.strerror or error
        raise Problem(FAILED, f"{render.one_line(out)} cannot be written: {reason}.", "Name another file.") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


@contextlib.contextmanager
def _made(path: Path) -> Iterator[Any]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        yield opened
