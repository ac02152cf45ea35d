"""Context: the window of a task: its tiers, what fills it, and what the last compaction brought."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import task_path
from harnessd.cli.options import connect, connection, json_option, task_argument

_BAR = 40
_HOW = {
    "summary": "a summary",
    "squeeze": "long results kept as files",
    "trim": "cut without a summary",
}


@click.command()
@task_argument
@json_option
@connection
@click.pass_context
def context(ctx: click.Context, task: str, as_json: bool) -> int:
    """What fills the window of a task, and the last compaction."""
    found = connect(ctx).get(task_path(task, "context"))
    if as_json:
        render.out_json(found)
        return 0
    window = found["context"]
    render.out(render.one_line(f'{found["task"]}  {found["agent"]}  "{found["title"]}"'))
    render.out_lines(f"{render.pad(name, 8)} {render.one_line(text)}".rstrip() for name, text in _rows(window))
    _show_parts(window)
    render.out()
    render.out_lines(f"{render.pad(name, 8)} {render.one_line(text)}".rstrip() for name, text in _compactions(window))
    return 0


def _rows(window: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kept = window["window_found"] - window["effective"]
    smaller = window["window_found"] < window["window"]
    declared = f", declared {_tokens(window['window'])}: a request of that size did not fit" if smaller else ""
    whole = f"{_tokens(window['window_found'])} of model/{window['model']}{declared}"
    yield "window", f"{whole}; {_tokens(kept)} kept back for the answer, {_tokens(window['effective'])} to use"
    measure = "by the service's own count" if window["counted"] else "by our estimate"
    yield "used", f"{_bar(window['used'])} {window['used']:.0%}   {_tokens(window['tokens'])}, {measure}"
    tiers = window["tiers"]
    words = {"compact": "made smaller", "warn": "person and model told", "block": "no new request"}
    shown = [f"{tiers[name]['part']:.0%} {_tokens(tiers[name]['tokens'])} {words[name]}" for name in words]
    yield "tiers", " · ".join(shown)
    rule = window["rule"]
    yield "rule", f"{rule['kind']}/{rule['name']} {rule['rule']}   {render.place(rule)}"


def _show_parts(window: Mapping[str, Any]) -> None:
    whole = max(1, window["tokens"])
    render.out()
    rows = [
        [row["what"], row["parts"], f"{row['tokens']:,}", f"{row['tokens'] / whole:.0%}"] for row in window["by_kind"]
    ]
    render.out_lines(render.table(rows, ["WHAT FILLS IT", "PARTS", "TOKENS", "PART"], (1, 2, 3)))
    render.out()
    rows = [[row["what"], row["node"] or "-", f"{row['tokens']:,}"] for row in window["largest"]]
    render.out_lines(render.table(rows, ["LARGEST", "NODE", "TOKENS"], (2,)))


def _compactions(window: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    found = window["compactions"]
    last = found["last"]
    if last is None:
        yield "last", "nothing was made smaller yet"
    else:
        how = _HOW.get(last["how"], last["how"])
        measured = "" if last.get("measured") else ", by our estimate until the service counts again"
        sizes = f"{_tokens(last['before'])} -> {_tokens(last['after'])}, {last['gain']:.0%} less{measured}"
        yield "last", f"{render.clock_time(last['at'])} at {last['node']}, by {how}: {sizes}; {found['made']} in all"
    if found["under_way"]:
        yield "now", "a summary is being written"
    if found["failures"] or found["breaker"] == "open":
        state = f"breaker {found['breaker']}"
        yield "failed", f"{found['failures']} of {found['failures_max']} in a row freed too little; {state}"


def _bar(used: float) -> str:
    full = min(_BAR, max(0, round(used * _BAR)))
    return "#" * full + "." * (_BAR - full)


def _tokens(count: float) -> str:
    """91_808 as 91.8k."""
    return f"{count:,.0f}" if count < 10_000 else f"{count / 1000:,.1f}k".replace(".0k", "k")
