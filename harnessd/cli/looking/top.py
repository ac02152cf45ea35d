"""Top: the tasks at work, again and again: where each stands, what it used, what it waits for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.options import connect, connection, json_option

_LIVE = ("running", "rolling_back", "waiting", "parked", "paused", "queued")
# What a narrow terminal does without, in this order; the rest says which task, how it stands and what it does.
_DISPENSABLE = ("AGENT", "TOKENS", "SINCE", "USD", "STEP")


@click.command()
@click.option("--once", is_flag=True, help="Show it once and end; so does output that is no terminal.")
@click.option("--every", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, help="Seconds in between.")
@click.option("--limit", type=click.IntRange(1, 1000), default=200, show_default=True, help="At most so many tasks.")
@json_option
@connection
@click.pass_context
def top(ctx: click.Context, once: bool, every: float, limit: int, as_json: bool) -> int:
    """The tasks at work, live; Ctrl-C ends it.

    STEP counts model calls; USED is the budget of which most is used, in percent; SINCE is how long it does that.
    """
    client = connect(ctx)
    once = once or as_json or render.terminal_width() is None
    while True:
        query: list[tuple[str, object]] = [("state", word) for word in _LIVE]
        found = client.get("/v1/top", [*query, ("limit", limit)])
        if as_json:
            render.out_json(found)
            return 0
        _show(found, clear=not once)
        if once:
            return 0
        time.sleep(every)


def _show(found: Mapping[str, Any], *, clear: bool) -> None:
    lines = [_summary(found), "", *_table(found["tasks"], found["now"])]
    if clear:
        height = render.terminal_height() - 1
        if len(lines) > height:
            lines = [*lines[: height - 1], f"{len(lines) - height + 1} more: harnessctl list"]
        render.clear_screen()
    render.out_lines(lines)


def _summary(found: Mapping[str, Any]) -> str:
    states = found["states"]
    words = [f"{name.replace('_', ' ')} {states[name]}" for name in _LIVE if states.get(name)]
    text = f"{render.clock_time(found['now'], found['now'])}  {', '.join(words) or 'nothing under way'}"
    room = render.terminal_width()
    return text if room is None else render.cut(text, room)


def _table(tasks: Sequence[Mapping[str, Any]], now: float) -> list[str]:
    if not tasks:
        return ["No task is under way."]
    head = ["TASK", "STATE", "AGENT", "STEP", "TOKENS", "USD", "USED", "SINCE", "WAITING FOR"]
    rows = [dict(zip(head, _cells(task, now), strict=True)) for task in tasks]
    dispensable = list(_DISPENSABLE)
    while not _fits(rows, head) and dispensable:
        head.remove(dispensable.pop(0))
    numbers = [at for at, name in enumerate(head) if name in ("STEP", "TOKENS", "USD", "USED", "SINCE")]
    return render.table([[row[name] for name in head] for row in rows], head, numbers)


def _fits(rows: Sequence[Mapping[str, str]], head: Sequence[str]) -> bool:
    """Whether 24 columns are left for the last one."""
    room = render.terminal_width()
    if room is None:
        return True
    widths = [max(render.width(render.one_line(row[name])) for row in (*rows, {name: name})) for name in head[:-1]]
    return sum(widths) + 2 * len(widths) + 24 <= room


def _cells(task: Mapping[str, Any], now: float) -> list[str]:
    used = task["used"]
    share = f"{used['share']:.0%}" if used else "-"
    since = render.duration(now - task["since"]) if task["since"] else "-"
    cells = [task["task"], task["state"], task["agent"], str(task["turns"]), render.count(task["tokens"])]
    return [*cells, f"{task['cost_usd']:.2f}", share, since, _waits(task)]


def _waits(task: Mapping[str, Any]) -> str:
    return render.doing(task["waits"]) or "-"
