"""Inbox: what waits for a person, and the person's answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click

from harnessd.cli import render
from harnessd.cli.options import connect, connection, dry_run_option, for_each, json_option, label_option, quiet_option

_say_option = click.option("--say", default="", metavar="TEXT", help="A word that the agent reads.")
_ids_argument = click.argument("ids", nargs=-1, required=True, metavar="ID...")


@click.command()
@click.option("--task", help="Only of this task.")
@click.option("--agent", help="Only of this agent.")
@label_option
@click.option("--class", "error_class", help="Only with this error class.")
@click.option("--kind", type=click.Choice(["approval", "outcome", "question"]), help="Only of this kind.")
@quiet_option
@json_option
@connection
@click.pass_context
def inbox(ctx: click.Context, /, quiet: bool, as_json: bool, **given: Any) -> int:
    """Everything that waits for a person, oldest first: approvals, unknown outcomes, questions."""
    query: list[tuple[str, object]] = [("label", pair) for pair in given["labels"]]
    names = (("task", "task"), ("agent", "agent"), ("class", "error_class"), ("kind", "kind"))
    query += [(name, given[option]) for name, option in names if given[option]]
    rows = connect(ctx).get("/v1/inbox", query)["questions"]
    if as_json:
        render.out_json({"questions": rows})
    elif quiet:
        render.out_lines(row["id"] for row in rows)
    elif not rows:
        render.note("Nothing waits for a person.")
    else:
        _show(rows)
    return 0


@click.command()
@_ids_argument
@click.argument("choice")
@_say_option
@dry_run_option
@json_option
@connection
@click.pass_context
def answer(ctx: click.Context, ids: tuple[str, ...], choice: str, say: str, dry_run: bool, as_json: bool) -> int:
    """Answer questions of the inbox with one of their CHOICEs."""
    return _answer(ctx, ids, choice, say, dry_run=dry_run, as_json=as_json)


@click.command()
@_ids_argument
@_say_option
@dry_run_option
@json_option
@connection
@click.pass_context
def approve(ctx: click.Context, ids: tuple[str, ...], say: str, dry_run: bool, as_json: bool) -> int:
    """Allow calls that wait for approval: short for `answer ID allow`."""
    return _answer(ctx, ids, "allow", say, dry_run=dry_run, as_json=as_json)


@click.command()
@_ids_argument
@_say_option
@dry_run_option
@json_option
@connection
@click.pass_context
def deny(ctx: click.Context, ids: tuple[str, ...], say: str, dry_run: bool, as_json: bool) -> int:
    """Deny calls that wait for approval: short for `answer ID deny`."""
    return _answer(ctx, ids, "deny", say, dry_run=dry_run, as_json=as_json)


def _answer(ctx: click.Context, ids: Sequence[str], choice: str, say: str, *, dry_run: bool, as_json: bool) -> int:
    client = connect(ctx)

    def act(question: str) -> dict[str, Any]:
        path = f"/v1/inbox/{quote(question, safe='/', errors='replace')}"
        return client.post(path, {"choice": choice, "say": say}, dry_run=dry_run)

    def line(done: Mapping[str, Any]) -> str:
        became = "nothing was changed" if done.get("dry_run") else done["state"]
        return f"{done['id']}  {done['task']}  {done['choice']}  {became}"

    return for_each(ids, act, line, as_json=as_json, many="answers")


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    now = time.time()
    cells = [
        [
            row["id"],
            row["kind"],
            row["task"],
            row["agent"] or "-",
            render.duration(now - row["asked_at"]),
            f"in {render.duration(row['until'] - now)}" if row["until"] else "-",
            " ".join(row["choices"]),
            row["sentence"],
        ]
        for row in rows
    ]
    head = ["ID", "KIND", "TASK", "AGENT", "SINCE", "STOPS", "CHOICES", "WHAT"]
    render.out_lines(render.table(cells, head))
    render.out("harnessctl answer ID CHOICE [--say TEXT]")
