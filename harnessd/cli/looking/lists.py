"""Lists of tasks: filtered, sorted, counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.options import connect, connection, json_option, label_option, moment, quiet_option


@click.command(name="list")
@click.option("--state", "states", multiple=True, help="Only in this state; several with commas.")
@click.option("--reason", "reasons", multiple=True, help="Only ended for this reason; several with commas.")
@click.option("--class", "error_class", help="Only with this error class.")
@click.option("--agent", help="Only of this agent.")
@label_option
@click.option("--policy", "policies", multiple=True, metavar="KIND=NAME", help="Only under this policy.")
@click.option("--since", metavar="TIME", help='Only since then: 24h (ago) or "2026-11-30 03:12".')
@click.option("--until", metavar="TIME", help="Only until then.")
@click.option("--sort", type=click.Choice(["cost", "age", "life"]), help="Dearest, oldest or longest running first.")
@click.option("--limit", type=click.IntRange(1, 10000), default=1000, show_default=True, help="At most so many.")
@click.option("--stats", is_flag=True, help="Count ends, median cost and turns instead of listing.")
@quiet_option
@json_option
@connection
@click.pass_context
def list_(ctx: click.Context, /, quiet: bool, as_json: bool, stats: bool, **given: Any) -> int:
    """Tasks, newest first."""
    query: list[tuple[str, object]] = [("limit", given["limit"])]
    query += [("state", word) for word in given["states"]]
    query += [("reason", word) for word in given["reasons"]]
    query += [("label", pair) for pair in given["labels"]]
    query += [("policy", pair) for pair in given["policies"]]
    query += [(name, moment(f"--{name}", given[name], ago=True)) for name in ("since", "until") if given[name]]
    query += [(name, value) for name, value in (("class", given["error_class"]), ("agent", given["agent"])) if value]
    tasks = connect(ctx).get("/v1/tasks", query)["tasks"]
    if given["sort"]:
        tasks.sort(key=_sorting(given["sort"]))
    if stats:
        _show_stats(tasks, as_json)
    elif quiet:
        render.out_lines(task["task"] for task in tasks)
    elif as_json:
        render.out_json({"tasks": tasks})
    else:
        _show_list(tasks)
    return 0


def _sorting(order: str) -> Any:
    now = time.time()
    return {
        "cost": lambda task: -task["cost_usd"],
        "age": lambda task: task["submitted_at"],
        "life": lambda task: -((task["ended_at"] or now) - task["started_at"]) if task["started_at"] else 0.0,
    }[order]


def _show_list(tasks: Sequence[Mapping[str, Any]]) -> None:
    if not tasks:
        render.note("No task fits.")
        return
    now = time.time()
    rows = []
    for task in tasks:
        state = task["reason"] if task["state"] == "stopped" and task["reason"] else task["state"]
        life = (task["ended_at"] or now) - task["started_at"] if task["started_at"] else None
        cells = [task["task"], state, task["agent"], render.clock_time(task["submitted_at"], now)]
        cells += [render.duration(life), task["turns"], task["tool_calls"], f"{task['cost_usd']:.2f}", task["title"]]
        rows.append(cells)
    head = ["TASK", "STATE", "AGENT", "SUBMITTED", "LIFE", "TURNS", "CALLS", "USD", "TITLE"]
    render.out_lines(render.table(rows, head, (4, 5, 6, 7)))


def _show_stats(tasks: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    from statistics import median

    ends = Counter(task["reason"] or task["state"] for task in tasks)
    found = {
        "tasks": len(tasks),
        "ends": dict(ends.most_common()),
        "median_cost_usd": median([task["cost_usd"] for task in tasks]) if tasks else None,
        "median_turns": median([task["turns"] for task in tasks]) if tasks else None,
        "cost_usd": sum(task["cost_usd"] for task in tasks),
    }
    if as_json:
        render.out_json(found)
        return
    render.out_lines(render.table([[word, number] for word, number in ends.most_common()], ["END", "TASKS"], (1,)))
    if tasks:
        middle = f"median {found['median_cost_usd']:.2f} USD and {found['median_turns']:g} turns"
        render.out(f"{len(tasks)} tasks, {found['cost_usd']:.2f} USD in all; {middle}")
