"""Rollback: pointer and workspace back to a node, after the whole story was told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import REFUSED, USAGE, Problem, task_path
from harnessd.cli.options import connect, connection, dry_run_option, json_option, task_argument
from harnessd.cli.render import clock_time

_SORTS = (("restored", "restored"), ("removed", "removed"), ("brought_back", "brought back"), ("mode", "mode"))
_PATHS_SHOWN = 12


@click.command()
@task_argument
@click.option("--to", metavar="NODE", help="A node of the tree, or last-good.")
@click.option("--steps", type=click.IntRange(1), help="So many turns back.")
@click.option("--undo", is_flag=True, help="Take the last rollback back.")
@click.option("--keep", multiple=True, metavar="PATH", help="Leave this path, and what is below it, as it is.")
@click.option("--overwrite", multiple=True, metavar="PATH", help="Put this path back whoever changed it.")
@click.option("--undo-effects", "effects", multiple=True, metavar="ID", help="Call the declared undo of this effect.")
@click.option("--prompt", metavar="TEXT", help="A word to the agent: it goes on at once in the new branch.")
@click.option("--model", metavar="ALIAS", help="Who goes on.")
@dry_run_option
@json_option
@connection
@click.pass_context
def rollback(ctx: click.Context, /, task: str, dry_run: bool, as_json: bool, **given: Any) -> int:
    """Take a task back to a trusted moment: what the agent believes and what the files are, together.

    What cannot be undone is listed, and stays. Nothing of budgets is given back. `--undo` takes a rollback back.
    """
    if sum(bool(given[name]) for name in ("to", "steps", "undo")) != 1:
        hint = f"Write harnessctl rollback {render.one_line(task)} --to NODE, --to last-good, --steps N, or --undo."
        raise Problem(USAGE, "Where to go back to is to be said in exactly one way.", hint)
    body = {name: given[name] for name in ("to", "steps", "prompt", "model") if given[name]}
    body |= {name: list(given[name]) for name in ("keep", "overwrite") if given[name]}
    body |= {"undo_effects": list(given["effects"])} if given["effects"] else {}
    body |= {"undo": True} if given["undo"] else {}
    story = connect(ctx).post(task_path(task, "rollback"), body, dry_run=dry_run)
    if as_json:
        render.out_json(story)
    else:
        render.out_lines(_told(story, dry=dry_run))
    return REFUSED if story["refusal"] else 0


def _told(story: Mapping[str, Any], *, dry: bool) -> Iterator[str]:
    here, there = story["from"], story["to"]
    checkpoint = f", checkpoint {story['checkpoint']}" if story["checkpoint"] else ", no file was written"
    moved = "Nothing was changed." if dry else story["sentence"]
    yield render.one_line(
        f"{story['task']}: from {here['node']} ({clock_time(here['at'])}) to {there['node']} "
        f"({clock_time(there['at'])}){checkpoint}. {moved}"
    )
    rows = [*_talk(story), *_files(story), *_in_the_way(story), *_world(story), *_deed(story)]
    yield from (f"{render.pad(name, 14)} {render.one_line(text)}".rstrip() for name, text in rows)
    refusal = story["refusal"]
    if refusal:
        yield ""
        yield f"It would be refused: {render.one_line(refusal['message'])}"
        yield f"  {render.one_line(refusal['hint'])}"
    elif dry:
        yield "Without --dry-run it is done."
    else:
        task, before = story["task"], f" (to checkpoint {story['before']})" if story.get("before") else ""
        undo = f"harnessctl rollback {task} --undo takes it back{before}; " if story["rolled_back"] else ""
        yield f"{undo}harnessctl resume {task} goes on from here."


def _talk(story: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    plans = story["task_list"]
    plan = f"; task list from {plans['from']} to {plans['to']} items" if plans["from"] != plans["to"] else ""
    yield "talk", f"{story['leaves']} nodes leave the view and stay in the tree{plan}"


def _files(story: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    files: Mapping[str, Sequence[str]] = story["files"]
    many: Mapping[str, int] = story["files_counts"]
    counts = ", ".join(f"{many[key]} {word}" for key, word in _SORTS if many[key])
    yield "files", f"{story['files_total']}: {counts}" if counts else "none differ"
    for key, word in _SORTS:
        if files[key]:
            yield f"  {word}", _paths(files[key], many[key])
    for one in story["not_covered"][:_PATHS_SHOWN]:
        yield "not covered", f"{one['path']}: {one['why']}; stays as it is"


def _in_the_way(story: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for path in story["conflicts"][:_PATHS_SHOWN]:
        yield "conflict", f"{path} was also changed from outside the task"
    if story["written_beside"]:
        yield "own too", f"{_paths(story['written_beside'])}: written by the task's own job or cut-off call"
    for path, why in list(story["blocked"].items())[:_PATHS_SHOWN]:
        yield "in the way", f"{path}: {why}"


def _world(story: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for job in story["ended_first"]:
        yield "ended first", f"job {job}"
    for effect in story["stays_done"]:
        status = f", {effect['status']}" if effect["status"] else ""
        unknown = ", outcome unknown" if effect["state"] == "unknown" else ""
        undo = f"undo declared: {effect['undo']['tool']}" if effect["undo"] else "no undo declared"
        what = render.cut(render.to_json(effect["arguments"] or {}, line=True), 60)
        yield (
            "stays done",
            f"{effect['effect']} {clock_time(effect['at'])} {effect['name']} {what}{status}{unknown}; {undo}",
        )
    used = story["not_given_back"]
    yield "not given back", f"{used['tool_calls']} tool calls, {used['cost_usd']:.2f} USD"


def _deed(story: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What became of it, where that is more than was foreseen."""
    left: dict[str, list[str]] = {}
    for path, why in (story.get("left") or {}).items():
        left.setdefault(why, []).append(path)
    for why, paths in left.items():
        yield "left", f"{_paths(paths)}: {why}"
    for commit, named in (story.get("rescued") or {}).items():
        yield "kept commit", f"{commit} ({named}) as refs/harnessd/..."
    for path in story.get("others") or ():
        yield "overtaken", f"{path} was changed while it was put back"
    for path in story.get("stripped") or ():
        yield "set-id", f"{path} came back without it: its owner could not be given back"
    for path, why in (story.get("failed") or {}).items():
        yield "goes on", f"{path}: {why}"
    for one in story.get("undone") or ():
        yield "undone", f"{one['effect']} by {one['tool']}: {one['state']}  {one['said']}"


def _paths(paths: Sequence[str], many: int = 0) -> str:
    rest = max(many, len(paths)) - _PATHS_SHOWN
    return "  ".join(paths[:_PATHS_SHOWN]) + (f"  and {rest} more" if rest > 0 else "")
