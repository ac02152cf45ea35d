"""Models and tools: how they are, and whether they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, quoted
from harnessd.cli.options import connect, connection, json_option


@click.command(name="list")
@json_option
@connection
@click.pass_context
def list_models(ctx: click.Context, as_json: bool) -> int:
    """All models of harness.yaml."""
    found = connect(ctx).get("/v1/models")["models"]
    if as_json:
        render.out_json({"models": found})
        return 0
    head = ["MODEL", "PROTOCOL", "NAME", "BREAKER", "CALLS", "IN LINE", "FIRST EVENT", "PRICE", "USD TODAY"]
    rows = [
        [
            row["model"],
            row["protocol"],
            row["name"],
            row["breaker"],
            f"{row['running']}/{row['concurrency']}" if row["concurrency"] else row["running"],
            row["waiting"],
            render.duration(row["median_first_event_s"]) if row["median_first_event_s"] is not None else "",
            _price(row.get("price")),
            f"{row['cost_usd_today']:.2f}",
        ]
        for row in found
    ]
    render.out_lines(render.table(rows, head, (4, 5, 6, 8)))
    return 0


def _price(price: Mapping[str, Any] | None) -> str:
    """USD per million tokens, in and out, and whose price it is where it is not the model's own in harness.yaml."""
    if price is None or price["source"] == "unknown":
        return "unknown"
    if not price["input"] and not price["output"]:
        return "free"
    shown = f"{price['input']:g} in, {price['output']:g} out"
    if price["source"] == "dearest":
        return f"unknown: as {price['by']}, {shown}"
    return f"{shown} ({price['by'].partition(' ')[0]})" if price["source"] == "listed" else shown


@click.command(name="check")
@click.argument("aliases", nargs=-1, metavar="[ALIAS]...")
@json_option
@connection
@click.pass_context
def check_models(ctx: click.Context, aliases: tuple[str, ...], as_json: bool) -> int:
    """One cheap real call of each model (all, if none is named): its class and remedy where it does not answer.

    Credential files are read again at each use: a new key never needs a restart. Tasks that are parked on a model are
    woken once it answers.
    """
    client = connect(ctx)
    wanted = [alias.removeprefix("model/") for alias in aliases]
    wanted = wanted or [row["model"] for row in client.get("/v1/models")["models"]]
    return _told([client.post(f"/v1/models/{quoted(alias)}/check", {}) for alias in wanted], "models", as_json)


@click.command(name="list")
@json_option
@connection
@click.pass_context
def list_tools(ctx: click.Context, as_json: bool) -> int:
    """All tools that agents may have."""
    found = connect(ctx).get("/v1/tools")["tools"]
    if as_json:
        render.out_json({"tools": found})
        return 0
    # What a tool tells the model is long; its first sentence says to a person what it is. --json has all of it.
    rows = [
        [row["tool"], row["effect"], row["breaker"], row["running"], row["waiting"], row["about"].partition(". ")[0]]
        for row in found
    ]
    head = ["TOOL", "EFFECT", "BREAKER", "CALLS", "IN LINE", "ABOUT"]
    render.out_lines(render.table(rows, head, (3, 4)))
    return 0


@click.command(name="check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@connection
@click.pass_context
def check_tools(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> int:
    """Whether tools (all, if none is named) can be called now. They are not called for it."""
    client = connect(ctx)
    wanted = [name.removeprefix("tool/") for name in names]
    wanted = wanted or [row["tool"] for row in client.get("/v1/tools")["tools"]]
    return _told([client.post(f"/v1/tools/{quoted(name)}/check", {}) for name in wanted], "tools", as_json)


def _told(checks: Sequence[Mapping[str, Any]], many: str, as_json: bool) -> int:
    if as_json:
        render.out_json({many: list(checks)})
    for check in () if as_json else checks:
        took = f"  {check['took_s']:.1f}s" if check.get("took_s") is not None else ""
        render.out(render.one_line(f"{'ok ' if check['ok'] else 'BAD'}  {check['sentence']}{took}"))
        if check.get("remedy"):
            render.out(render.one_line(f"     {check['remedy']}"))
        if check.get("woken"):
            many_tasks = f"{check['woken']} parked task{'s' if check['woken'] != 1 else ''}"
            render.out(f"     {many_tasks} woken")
    return 0 if all(check["ok"] for check in checks) else FAILED
