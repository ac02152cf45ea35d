"""Explain and schema: what can be written, from the shapes that check it: for people, and for their editors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from textwrap import wrap
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import NOT_FOUND, Problem
from harnessd.cli.options import connection, json_option
from harnessd.cli.policy.origins import flow
from harnessd.cli.policy.sources import kind_and_name
from harnessd.config.load import builtin_policies
from harnessd.policy import Policy
from harnessd.policy.assembly.kinds import KINDS
from harnessd.policy.language.source import find
from harnessd.policy.reference.explain import HEAD_KEYS, Key, explain
from harnessd.policy.reference.schema import any_kind, schema

_NARROWEST = 40  # columns: on a narrower terminal the lines run over
_BOUNDS_WIDTH = 28  # columns of the table; a list of words is longer, and stands whole where one key is asked for


@click.command(name="explain")
@click.argument("path", required=False, default="", metavar="[KIND[.PATH]]")
@json_option
@connection
def explain_(path: str, as_json: bool) -> int:
    """Meaning, type, default and bounds of a key.

    Without KIND: all kinds. With KIND: its keys. PATH is dotted, as in retry.model.classes.rate_limited.retries or
    tools.rules.timeout.life.
    """
    path = path.strip().strip(".")
    if not path:
        return _kinds(as_json)
    kind, _, rest = path.partition(".")
    kind_and_name(kind)
    found = _head_key(kind, rest) or explain(path, _defaults())
    if isinstance(found, str):
        message, _, hint = found.partition(": ")
        hint = f"{hint[:1].upper()}{hint[1:]}" if hint else f"See them all: harnessctl policy explain {kind}"
        raise Problem(NOT_FOUND, f"There is {message}.", hint)
    if as_json:
        render.out_json({"keys": [_plain(key, path) for key in found]})
    elif len(found) == 1 and _whole(found[0], path):
        _one(found[0], path)
    else:
        _many(kind, rest, found)
    return 0


@click.command(name="schema")
@click.argument("kind", required=False)
@click.option("--json", "as_json", is_flag=True, hidden=True)
@connection
def schema_(kind: str | None, as_json: bool) -> int:
    """Print the JSON Schema of a kind, or of any policy file.

    Editors check files with it: keep it beside them, and begin each with
    # yaml-language-server: $schema=policy.schema.json
    """
    del as_json  # a schema is JSON either way
    if kind is not None:
        kind_and_name(kind)
    render.out_json(any_kind() if kind is None else schema(kind))
    return 0


@cache
def _defaults() -> Mapping[tuple[str, str], Policy[Any]]:
    return builtin_policies().policies


def _kinds(as_json: bool) -> int:
    rows = [(name, _scope(name), (kind.shape.__doc__ or "").strip().splitlines()[0]) for name, kind in KINDS.items()]
    if as_json:
        render.out_json({"kinds": [{"kind": name, "scope": scope, "about": about} for name, scope, about in rows]})
        return 0
    render.out_lines(render.table(rows, ["KIND", "FOR", "WHAT IT SAYS"]))
    render.note("harnessctl policy explain KIND lists the keys of a kind.")
    return 0


def _scope(kind: str) -> str:
    return "daemon" if KINDS[kind].daemon else "task"


def _head_key(kind: str, rest: str) -> tuple[Key, ...]:
    """The keys that stand at the head of every document."""
    return tuple(
        Key(kind, name, type_, default, bounds, meaning)
        for name, type_, default, bounds, meaning in HEAD_KEYS
        if name == rest
    )


def _whole(key: Key, path: str) -> bool:
    return len(key.asked.split(".")) == len(path.replace("[]", "").split("."))


def _many(kind: str, rest: str, keys: Sequence[Key]) -> None:
    rows = [(key.path, key.type, key.default, render.cut(key.bounds, _BOUNDS_WIDTH), key.meaning) for key in keys]
    room = render.terminal_width()
    if not rest:
        about = (KINDS[kind].shape.__doc__ or "").strip().splitlines()[0]
        scope = "one for the whole daemon" if KINDS[kind].daemon else "chosen for each task by assign"
        title = render.one_line(f"{kind}: {about} ({scope})")
        render.out_lines([title] if room is None else wrap(title, max(_NARROWEST, room)))
        render.out()
    if room is None:
        render.out_lines(render.table(rows, ["KEY", "TYPE", "DEFAULT", "BOUNDS", "MEANING"]))
    else:
        render.out_lines(_paragraphs(keys, room))
    render.note(f"One key with all its bounds: harnessctl policy explain {keys[0].asked}")
    if not rest:
        names = " ".join(name for name, *_ in HEAD_KEYS)
        render.note(f"Every document also takes: {names}. Shipped: harnessctl policy show --effective {kind}")


def _paragraphs(keys: Sequence[Key], room: int) -> Iterator[str]:
    """The keys for a terminal, whatever its width: nothing is cut. Keys that differ in the class alone stand as one."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for key in keys:
        head, classes, tail = key.path.partition(".classes.")
        name, _, leaf = tail.partition(".")
        path = f"{head}.classes.CLASS.{leaf}" if classes else key.path
        alike.setdefault((path, key.type, key.default, key.bounds, key.meaning), []).append(name)
    for (path, type_, default, bounds, meaning), names in alike.items():
        limits = f", {bounds}" if bounds else ""
        classes = f" CLASS: {' '.join(names)}." if any(names) else ""
        yield render.one_line(path)
        for text in (f"{type_}, default {default}{limits}", f"{meaning}{classes}"):
            yield from wrap(
                render.one_line(text), max(_NARROWEST, room), initial_indent="    ", subsequent_indent="      "
            )


def _one(key: Key, path: str) -> None:
    asked = path.replace("[]", "")
    default = _shipped(key, asked) or key.default
    rows = [("type", key.type), ("default", default), ("bounds", key.bounds or "none"), ("meaning", key.meaning)]
    render.out(render.one_line(asked))
    render.out_lines(f"  {render.pad(name, 8)} {render.one_line(text)}" for name, text in rows)
    render.out_lines(f"  {render.pad(name, 8)} {render.one_line(text)}" for name, text in _example(key, asked, default))


def _shipped(key: Key, asked: str) -> str | None:
    """The shipped value at a concrete path: `retry.model.classes.malformed_output.retries` has one of its own."""
    if "[]" in key.path:
        return None
    shipped = _defaults()[key.kind, "default"]
    node = find(shipped.tree, asked.split(".")[1:])
    return None if node is None else flow(node)


def _example(key: Key, asked: str, default: str) -> list[tuple[str, str]]:
    """The key as it stands in a file, with its default where that can be written."""
    value = default.partition(" for ")[0].removesuffix(" (the group's)")
    if value in ("required", "nothing", "") or (value == "none" and "none" not in key.type):
        value = "..."
    text = _nested([*zip(key.path.split("."), asked.split(".")[1:], strict=False)], value)
    return [("write", f"kind: {key.kind}"), ("", text)] if key.path != "kind" else [("write", text)]


def _nested(steps: Sequence[tuple[str, str]], value: str) -> str:
    (step, name), *rest = steps
    inner = f"{{{_nested(rest, value)}}}" if rest else value
    return f"{name}: [{inner}]" if step.endswith("[]") else f"{name}: {inner}"


def _plain(key: Key, path: str) -> dict[str, Any]:
    return {
        "kind": key.kind,
        "key": key.path,
        "path": key.asked,
        "asked": path,
        "type": key.type,
        "default": key.default,
        "bounds": key.bounds,
        "meaning": key.meaning,
    }
