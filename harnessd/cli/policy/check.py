"""Check: all problems of all policy files at once, each with its place and the remedy; nothing is touched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED
from harnessd.cli.options import connect, connection, json_option, strict_option
from harnessd.cli.policy.sources import OnDisk, config_option, counted, in_force, on_disk, plain, problems_in, texts_of
from harnessd.cli.policy.standing import Felt, felt, felt_lines
from harnessd.config.advice import settings_warnings, unset_secrets
from harnessd.config.load import builtin_policies
from harnessd.config.strict_yaml import parse
from harnessd.policy import Problem as Fault
from harnessd.policy.language.source import ListNode, MapNode, Place, Scalar
from harnessd.policy.reference.explain import explain

_HINTS = 3


@click.command()
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@config_option
@click.option("--env", "look_at_secrets", is_flag=True, help="Also look whether the secrets that are named are there.")
@click.option("--running", is_flag=True, help="Ask the daemon what the files would do to its running tasks.")
@strict_option
@json_option
@connection
@click.pass_context
def check(ctx: click.Context, /, folder: Path | None, config: Path | None, strict: bool, **given: bool) -> int:
    """Find all problems of policy files.

    DIR is the folder; else the one that harness.yaml names. No daemon, key or network is needed. Exit status 1 where
    there are problems, or warnings with --strict.
    """
    disk = on_disk(folder, config)
    problems = disk.problems
    warnings = () if problems else tuple(sorted(set(_warnings(disk, given["look_at_secrets"]))))
    told: Felt | None = None
    if given["running"] and disk.read.policies is not None and not problems:
        client = connect(ctx)
        told = felt(client, in_force(client).whole, disk.read.policies, disk.source("").agents)
    if given["as_json"]:
        _print_json(disk, problems, warnings, told, ok=not (problems or (strict and warnings)))
    else:
        _print(disk, problems, warnings, told)
    bad = problems or (strict and (warnings or (told is not None and told.held)))
    return FAILED if bad else 0


def _warnings(disk: OnDisk, look_at_secrets: bool) -> Iterator[Fault]:
    yield from disk.read.warnings
    read = disk.settings
    if read is None or read.settings is None or read.tree is None:
        return
    yield from settings_warnings(read.settings, read.tree)
    if look_at_secrets and disk.read.policies is not None:
        yield from unset_secrets(read.settings, disk.read.policies, os.environ, str(read.path))


def _print(disk: OnDisk, problems: Sequence[Fault], warnings: Sequence[Fault], told: Felt | None) -> None:
    render.out_lines(render.one_line(problem) for problem in problems)
    render.out_lines(render.one_line(f"{warning} (warning)") for warning in warnings)
    if told is not None:
        render.out_lines(felt_lines(told))
    if problems:
        render.out(f"{problems_in(problems)}; nothing was changed.")
        hints = list(_hints(disk, problems))
        if hints:
            render.note(f"harnessctl policy explain {' · '.join(hints)}")
        return
    snapshot = disk.read.snapshot
    number = counted(len(snapshot.files), "file")
    also = f", {counted(len(warnings), 'warning')}" if warnings else ""
    where = render.one_line(disk.shown)
    if not snapshot.there:
        render.out(f"There is no folder {where}: the built-in defaults hold{also}.")
        return
    shown = disk.read.policies.hash if disk.read.policies is not None else ""
    render.out(f"No problems in {number} of {where}{also}; nothing was changed. Hash {shown}")


def _print_json(
    disk: OnDisk, problems: Sequence[Fault], warnings: Sequence[Fault], told: Felt | None, *, ok: bool
) -> None:
    document: dict[str, Any] = {
        "ok": ok,
        "problems": [_plain(problem) for problem in problems],
        "warnings": [_plain(warning) for warning in warnings],
        "folder": disk.shown,
        "files": [file.shown for file in disk.read.snapshot.files],
        "hash": None if problems or disk.read.policies is None else disk.read.policies.hash,
    }
    render.out_json(document | ({"running": told.json()} if told is not None else {}))


def _plain(fault: Fault) -> dict[str, Any]:
    place = plain(Place(fault.file, fault.line, fault.column))
    return place | {"message": fault.message, "remedy": fault.remedy, "text": str(fault)}


# --- where to read on -------------------------------------------------------------------------------------------------


def _hints(disk: OnDisk, problems: Iterable[Fault]) -> Iterator[str]:
    """The keys that the problems are about, as `policy explain` knows them."""
    shipped = builtin_policies().policies
    texts = texts_of(disk.read.snapshot).files
    told: set[str] = set()
    for problem in problems:
        path = _key_at(texts.get(problem.file, ""), problem)
        while path and isinstance(explain(path, shipped), str):
            path = path.rpartition(".")[0]
        if path and path not in told:
            told.add(path)
            yield path
        if len(told) == _HINTS:
            return


def _key_at(text: str, problem: Fault) -> str:
    """`budget.limits.tool_calls`: the key at a place of a file, or an empty text."""
    for root in parse(text.encode("utf-8", "replace"), problem.file).documents if text else ():
        kind = root.get("kind") if isinstance(root, MapNode) else None
        if not isinstance(kind, Scalar):
            continue
        for path, place in _places(root, (kind.text,)):
            if (place.line, place.column) == (problem.line, problem.column):
                return ".".join(path)
    return ""


def _places(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Place]]:
    if isinstance(node, MapNode):
        for key, value in node.items():
            yield (*path, key), node.keys_at[key]
            yield from _places(value, (*path, key))
    elif isinstance(node, ListNode):
        for item in node:
            yield from _places(item, path)
    elif isinstance(node, Scalar):
        yield path, node.place
