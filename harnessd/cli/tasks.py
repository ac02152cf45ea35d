"""Verbs on tasks: cancel, pause, resume, retry, send; and the inbox, where people answer what tasks ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import USAGE, Problem, quoted, task_path
from harnessd.cli.options import (
    connect,
    connection,
    dry_run_option,
    for_each,
    json_option,
    label_option,
    pairs,
    quiet_option,
    task_argument,
    tasks_argument,
)

_DONE = {
    "cancel": ("stops", "cancelled", "would be cancelled"),
    "pause": ("pauses at its step border", "paused", "would be paused"),
    "resume": ("goes on", "goes on", "would go on"),
    "retry": ("goes on in a new branch", "goes on in a new branch", "would go on in a new branch"),
    "send": ("will read it at its next turn", "will read it at its next turn", "would read it at its next turn"),
    "set": ("changed", "changed", "would be changed"),
}


@click.command()
@tasks_argument
@dry_run_option
@json_option
@connection
@click.pass_context
def cancel(ctx: click.Context, tasks: tuple[str, ...], dry_run: bool, as_json: bool) -> int:
    """Stop tasks. What they did and said is kept; `resume` goes on from there."""
    return verb(ctx, "cancel", tasks, {}, dry_run=dry_run, as_json=as_json)


@click.command()
@tasks_argument
@click.option("--now", is_flag=True, help="Cancel the call under way instead of waiting for the step border.")
@dry_run_option
@json_option
@connection
@click.pass_context
def pause(ctx: click.Context, tasks: tuple[str, ...], now: bool, dry_run: bool, as_json: bool) -> int:
    """Hold tasks at the next step border, without a worker, until `resume`."""
    return verb(ctx, "pause", tasks, {"now": True} if now else {}, dry_run=dry_run, as_json=as_json)


@click.command()
@click.argument("tasks", nargs=-1, metavar="[TASK...]")
@click.option("--held", is_flag=True, help="All tasks held back at the start, after unclean ends.")
@click.option("--budget", "budgets", multiple=True, metavar="NAME=N", help="A new limit (150), or more of it (+60).")
@click.option("--model", help="Alias of the model to go on with.")
@click.option("--say", help="A word to the agent at its next turn.")
@dry_run_option
@json_option
@connection
@click.pass_context
def resume(ctx: click.Context, /, tasks: tuple[str, ...], dry_run: bool, as_json: bool, **given: Any) -> int:
    """Go on from the pointer, from any end but `completed`. Budgets are not reset."""
    body = _given(budget=pairs("--budget", given["budgets"]), model=given["model"], say=given["say"])
    if given["held"]:
        found = connect(ctx).get("/v1/tasks", [("state", "paused"), ("limit", 10000)])["tasks"]
        tasks = (*tasks, *(task["task"] for task in found if task["waits_for"] == "resume"))
        if not tasks:
            render.note("No task is held.")
            return 0
    elif not tasks:
        raise Problem(USAGE, "No task is named.", "Write harnessctl resume TASK..., or --held for all that are held.")
    return verb(ctx, "resume", tasks, body, dry_run=dry_run, as_json=as_json)


@click.command()
@tasks_argument
@click.option("--model", help="Alias of the model to try with.")
@click.option("--policy", "policies", multiple=True, metavar="KIND=NAME", help="A policy of this kind, for this task.")
@click.option("--say", help="A word to the agent at its next turn.")
@dry_run_option
@json_option
@connection
@click.pass_context
def retry(ctx: click.Context, /, tasks: tuple[str, ...], dry_run: bool, as_json: bool, **given: Any) -> int:
    """Go on in a new branch before the failed turn. Budgets are not reset."""
    body = _given(policies=pairs("--policy", given["policies"]), model=given["model"], say=given["say"])
    return verb(ctx, "retry", tasks, body, dry_run=dry_run, as_json=as_json)


@click.command()
@task_argument
@click.argument("text")
@dry_run_option
@json_option
@connection
@click.pass_context
def send(ctx: click.Context, task: str, text: str, dry_run: bool, as_json: bool) -> int:
    """Add a user message at the next turn border."""
    return verb(ctx, "send", (task,), {"text": text}, dry_run=dry_run, as_json=as_json)


def verb(  # noqa: PLR0913 - what every verb needs
    ctx: click.Context,
    name: str,
    tasks: Sequence[str],
    body: Mapping[str, Any],
    *,
    dry_run: bool,
    as_json: bool,
    say: Callable[[Mapping[str, Any]], str] | None = None,
) -> int:
    """Perform a verb on each task and say what became of it, one line each."""
    client = connect(ctx)

    def act(task: str) -> dict[str, Any]:
        return client.post(task_path(task, name), body, dry_run=dry_run)

    return for_each(tasks, act, say or did, as_json=as_json)


def did(answer: Mapping[str, Any]) -> str:
    """`8k41d2  cancelled`: what a verb did, in one line."""
    running, done, would = _DONE[answer["did"]]
    state, task = answer["state"], answer["task"]
    if answer["already"]:
        asked = answer["cancel_asked"] or answer["pause_asked"]
        return f"{task}  {'asked to already' if asked and state == 'running' else f'already {state}'}"
    if answer.get("dry_run"):
        return f"{task}  {would}; nothing was changed"
    return f"{task}  {running if state == 'running' else done}  {render.one_line(answer['title'])}"


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


# --- the inbox --------------------------------------------------------------------------------------------------------

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
        _show_inbox(rows)
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
        path = "/".join(("/v1/inbox", *(quoted(part) for part in question.split("/"))))
        return client.post(path, {"choice": choice, "say": say}, dry_run=dry_run)

    def line(done: Mapping[str, Any]) -> str:
        became = "nothing was changed" if done.get("dry_run") else done["state"]
        return f"{done['id']}  {done['task']}  {done['choice']}  {became}"

    return for_each(ids, act, line, as_json=as_json, many="answers")


def _show_inbox(rows: Sequence[Mapping[str, Any]]) -> None:
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
