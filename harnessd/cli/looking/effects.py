"""Effects: what a task did to the world, with outcome and key, and what could undo it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import task_path
from harnessd.cli.options import connect, connection, json_option, task_argument

# Outside the workspace: restoring its files takes none of these back.
_OUTWARD = frozenset({"idempotent", "irreversible"})


@click.command()
@task_argument
@click.option("--all", "whole", is_flag=True, help="Also what stays in the workspace, reads, and probes.")
@json_option
@connection
@click.pass_context
def effects(ctx: click.Context, task: str, whole: bool, as_json: bool) -> int:
    """Show what a task did to the world: outcome, key, and what could undo it.

    Without --all: what reached outside the workspace, what nobody knows the outcome of, and the first of all.
    """
    found = connect(ctx).get(task_path(task, "effects"))
    made = [effect for effect in found["effects"] if effect["kind"] != "model"]
    shown = made if whole else _telling(made)
    if as_json:
        render.out_json({"task": found["task"], "effects": shown, "of": len(made)})
        return 0
    if not made:
        render.out(f"{found['task']} did nothing to the world: no tool was called.")
        return 0
    head = ("ID", "WHEN", "NODE", "TOOL", "EFFECT", "OUTCOME", "KEY", "WHAT", "UNDO")
    render.out_lines(render.table([_row(effect) for effect in shown], head))
    if len(shown) < len(made):
        render.out(f"{len(shown)} of {len(made)} shown: those outside the workspace and the first; --all for the rest")
    return 0


def _telling(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        effect
        for place, effect in enumerate(made)
        if place == 0 or effect["state"] == "unknown" or (effect["class"] in _OUTWARD and effect["kind"] == "tool")
    ]


def _row(effect: Mapping[str, Any]) -> tuple[str, ...]:
    key = effect["key"]
    return (
        effect["effect"],
        render.clock_time(effect["at"]),
        effect["node"],
        effect["name"],
        "probe" if effect["kind"] == "probe" else effect["class"],
        _outcome(effect),
        f"{key[:3]}…" if key else "-",
        render.cut(_what(effect), 40),
        _undo(effect),
    )


def _outcome(effect: Mapping[str, Any]) -> str:
    """The state, with the status or exit code that the receiver gave."""
    result = effect["result"] or {}
    if effect["state"] in ("intent", "started"):
        return "under way"
    told = result.get("status") or (result.get("exit_code") or None)
    return effect["state"] if told is None else f"{effect['state']} {told}"


def _what(effect: Mapping[str, Any]) -> str:
    """The act in a few words."""
    arguments: Mapping[str, Any] = effect["arguments"] or {}
    if "url" in arguments:
        return f"{arguments.get('method', 'GET')} {arguments['url']}"
    for name in ("command", "path", "title", "job"):
        if isinstance(arguments.get(name), str):
            return render.one_line(arguments[name])
    return json.dumps(arguments, ensure_ascii=False) if arguments else ""


def _undo(effect: Mapping[str, Any]) -> str:
    if effect["class"] == "read_only":
        return "-"
    undo = (effect["result"] or {}).get("undo")
    if undo:
        return str(undo["tool"])
    if effect["class"] == "reversible":
        return "files"
    return "none"
