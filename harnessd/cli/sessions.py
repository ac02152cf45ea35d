"""Sessions: the events of a task, its tree of nodes, and one node in full."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import INTERRUPTED, NOT_FOUND, USAGE, Client, Problem, task_path
from harnessd.cli.options import connect, connection, json_option, task_argument

# A longer tree is shown in short: of each run of nodes its ends, and the rest counted.
_SHOWN_WHOLE = 60
_ENDS_SHOWN = 2
_WORDS_SHOWN = 72
_RESULT_MARK = {True: "failed", False: "ok"}


@click.command()
@task_argument
@click.option("--follow", is_flag=True, help="Go on with what comes until the task ends or waits for a person.")
@click.option("--event", "types", multiple=True, metavar="TYPE", help="Only events of this type; several with commas.")
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Only events behind this number.")
@json_option
@connection
@click.pass_context
def logs(ctx: click.Context, task: str, follow: bool, types: tuple[str, ...], after: int, as_json: bool) -> int:
    """The events of a task, one line each. With --json one object a line."""
    wanted = _event_types(types)
    client = connect(ctx)
    found = client.get(task_path(task))["task"]
    query: list[tuple[str, object]] = [("task", found), ("after", after)]
    query += [("follow", 1), ("until_end", 1)] if follow else []
    try:
        for frame in client.stream(query):
            if frame.name in ("", "end", "bye") or (wanted and frame.name not in wanted):
                continue
            render.out_json(frame.data, line=True) if as_json else render.out(event_line(frame.data))
    except KeyboardInterrupt:
        render.note(f"Detached. Go on: harnessctl logs {found} --follow · the task is not touched.")
        return INTERRUPTED
    return 0


def _event_types(types: Sequence[str]) -> frozenset[str]:
    """The types of `--event`; a word that is none would hide everything."""
    wanted = frozenset(word for words in types for word in words.split(",") if word)
    if not wanted:
        return wanted
    from difflib import get_close_matches

    from harnessd.domain.events import EventType

    known = [one.value for one in EventType]
    for word in sorted(wanted - set(known)):
        near = get_close_matches(word, known, n=1)
        hint = f"Did you mean: --event {near[0]}" if near else f"There are: {', '.join(known)}."
        raise Problem(USAGE, f'There is no event "{render.one_line(word)}".', hint)
    return wanted


@click.command()
@task_argument
@json_option
@connection
@click.pass_context
def tree(ctx: click.Context, task: str, as_json: bool) -> int:
    """The session tree: every branch, checkpoints, and the pointer, oldest first."""
    found = connect(ctx).get(task_path(task, "nodes"))
    if as_json:
        render.out_json(found)
        return 0
    nodes = {node["node"]: node for node in found["nodes"]}
    children = _children(found["nodes"])
    ends = sum(1 for name in nodes if not children.get(name))
    branches = f"{ends} branches, " if ends > 1 else ""
    pointer = f"pointer {found['pointer']}" if found["pointer"] else "nothing said yet"
    title = render.one_line(found["title"])
    render.out(f'{found["task"]}  {found["agent"]}  "{title}"   {branches}{pointer}, {found["cost_usd"]:.2f} USD')
    here = _ancestors(nodes, found["pointer"])
    left = _left_by_node(found, nodes, here)
    lines = list(_branch(Tree(nodes, children, here, left, found.get("last_good")), children.get(None, ()), ""))
    render.out_lines(render.table(lines))
    if found["pointer"]:
        render.out(f"●  {found['pointer']}")
    name = found["task"]
    render.out(f"legend: c = checkpoint, ● = pointer, │ = left behind; harnessctl show {name} NODE · diff {name} A B")
    return 0


@click.command()
@task_argument
@click.argument("node", required=False)
@json_option
@connection
@click.pass_context
def show(ctx: click.Context, task: str, node: str | None, as_json: bool) -> int:
    """One node in full; without NODE the last thing the agent said."""
    client = connect(ctx)
    found = client.get(task_path(task, "nodes", node or _last_said(client, task)))
    if as_json:
        render.out_json(found)
        return 0
    head = [found["task"], found["node"], found["kind"], render.clock_time(found["at"])]
    parent = f"after {found['parent']}" if found["parent"] else "the first"
    trace = [f"trace {found['trace']}"] if found.get("trace") else []
    render.out(render.one_line("  ".join([*head, parent, *trace])))
    for block in found["payload"].get("blocks", ()):
        render.out_lines(_block_lines(block))
    if found.get("checkpoint"):
        render.out(f"checkpoint {found['checkpoint']}   harnessctl diff {found['task']} {found['node']}")
    render.out_lines(_outward(found))
    facts = found["payload"].get("facts")
    if facts:
        render.out()
        render.out_lines(render.table([[name, _short(value)] for name, value in facts.items()]))
    return 0


def event_line(event: Mapping[str, Any]) -> str:
    """One event as one safe line: `03:12:08  n14   decision  retry rate_limited ...`."""
    node = render.pad(str(event["node"] or ""), 5)
    head = f"{render.clock_time(event['at'])}  {node} {render.pad(event['type'], 14)}"
    return f"{head} {render.one_line(_told(event['type'], event['data']))}".rstrip()


def _told(kind: str, data: Mapping[str, Any]) -> str:
    match kind:
        case "assistant":
            calls = ", ".join(call["name"] for call in data.get("calls", ()))
            return _join(data.get("text"), f"calls {calls}" if calls else "")
        case "tool_result":
            return _join(_RESULT_MARK[bool(data.get("is_error"))], data.get("text"))
        case "user" | "notice" | "compaction":
            return str(data.get("text", ""))
        case "model_call" | "tool_call":
            again = f", try {data['attempt']}" if data.get("attempt", 1) > 1 else ""
            return f"{data.get('name', '')}{again}"
        case "decision":
            what = f"{data.get('do')}: {data['class']}" if data.get("class") else str(data.get("do"))
            return f"{what}   rule {data.get('rule')}   {str(data.get('where')).removesuffix(':0')}"
        case "retry_wait":
            wait = f"try {data.get('attempt')} of {data.get('of')} in {render.duration(data.get('after_s'))}"
            return f"{data.get('class')}: {wait}"
        case "task_stopped" | "task_completed" | "parked" | "paused" | "handed_back":
            until = f"until {render.clock_time(data['until'])}" if data.get("until") else ""
            by = f"by {data['by']}" if data.get("by") else ""
            return _join(data.get("reason"), data.get("class"), data.get("sentence"), data.get("why"), until, by)
        case _:
            known = {name: value for name, value in data.items() if value not in (None, "", [], {})}
            return "  ".join(f"{name}={_fact(name, value)}" for name, value in known.items())


def _fact(name: str, value: object) -> str:
    if name in ("until", "not_before") and isinstance(value, int | float):
        return render.clock_time(value)
    return _short(value)


def _join(*words: object) -> str:
    return "  ".join(str(word) for word in words if word)


def _short(value: object) -> str:
    if isinstance(value, str):
        return value
    return render.to_json(value, line=True)


def _last_said(client: Client, task: str) -> str:
    found = client.get(task_path(task, "nodes"))
    nodes = {node["node"]: node for node in found["nodes"]}
    name: str | None = found["pointer"]
    while name is not None and nodes[name]["kind"] != "assistant" and not nodes[name].get("safe"):
        name = nodes[name]["parent"]
    last = name or found["pointer"]
    if last is None:
        raise Problem(NOT_FOUND, f"{found['task']} has said nothing yet.", f"See: harnessctl status {found['task']}")
    return str(last)


def _block_lines(block: Mapping[str, Any]) -> Iterator[str]:
    match block.get("type"):
        case "text":
            yield from render.visible(block["text"]).splitlines() or [""]
        case "tool_use":
            given = block.get("arguments")
            words = render.to_json(given, line=True) if given is not None else str(block.get("raw", ""))
            yield render.one_line(f"-> {block['name']} {words}   ({block['id']})")
        case "tool_result":
            yield render.one_line(f"<- {_RESULT_MARK[bool(block.get('is_error'))]}   ({block.get('tool_use_id')})")
            yield from render.visible(block.get("text", "")).splitlines()
        case other:
            yield render.one_line(f"[{other} of {block.get('protocol', 'unknown')}, kept as it came]")


def _children(nodes: Sequence[Mapping[str, Any]]) -> dict[str | None, list[str]]:
    children: dict[str | None, list[str]] = {}
    for node in nodes:
        children.setdefault(node["parent"], []).append(node["node"])
    return children


def _ancestors(nodes: Mapping[str, Mapping[str, Any]], head: str | None) -> frozenset[str]:
    seen: set[str] = set()
    while head is not None and head in nodes and head not in seen:
        seen.add(head)
        head = nodes[head]["parent"]
    return frozenset(seen)


@dataclass(frozen=True, slots=True)
class Tree:
    """A session tree as it is printed: `here` are the nodes on the way to the pointer, `left` why others are not."""

    nodes: Mapping[str, Mapping[str, Any]]
    children: Mapping[str | None, Sequence[str]]
    here: frozenset[str]
    left: Mapping[str, str]
    last_good: str | None


def _left_by_node(
    found: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], here: frozenset[str]
) -> dict[str, str]:
    """For each node that a rollback left behind: when, by whom."""
    words: dict[str, str] = {}
    for one in found.get("left", ()):
        what = "undo" if one["undo"] else "rollback"
        told = f"left {render.clock_time(one['at'])} by {what} of {one['by']} to {one['to']}"
        words |= dict.fromkeys(_ancestors(nodes, one["node"]) - here, told)
    return words


def _branch(tree: Tree, tops: Sequence[str], indent: str) -> Iterator[list[str]]:
    """Lines of the tree: a run of nodes goes straight down, each child of a fork is indented."""
    for top in tops:
        run = _run_from(tree.children, top)
        inner = f"{indent}  " if len(tops) > 1 else indent
        mark = ("├ " if top in tree.here else "│ ") if len(tops) > 1 else ""
        lines = _run_lines([tree.nodes[name] for name in run], tree.last_good, short=len(tree.nodes) > _SHOWN_WHOLE)
        for number, cells in enumerate(lines):
            name, *rest, words = cells
            left = "" if top in tree.here else f"{tree.left.get(top, 'left') if number == 0 else 'left'}  "
            yield [f"{inner if number else indent + mark}{name}", *rest, f"{left}{words}"]
        yield from _branch(tree, tree.children.get(run[-1], ()), inner)


def _run_from(children: Mapping[str | None, Sequence[str]], top: str) -> list[str]:
    run = [top]
    while len(below := children.get(run[-1], ())) == 1:
        run.append(below[0])
    return run


def _run_lines(run: Sequence[Mapping[str, Any]], last_good: str | None, *, short: bool) -> Iterator[list[str]]:
    """A line for each node; of a long tree the first and last of a run, and what lies between in one line."""
    if not short or len(run) <= _ENDS_SHOWN * 2 + 1:
        for node in run:
            yield from _node_lines(node, last_good)
        return
    place = next((number for number, node in enumerate(run) if node["node"] == last_good), None)
    if place is not None and _ENDS_SHOWN <= place < len(run) - _ENDS_SHOWN:
        yield from _run_lines(run[: place + 1], last_good, short=True)
        yield from _run_lines(run[place + 1 :], last_good, short=True)
        return
    for node in run[:_ENDS_SHOWN]:
        yield from _node_lines(node, last_good)
    between = run[_ENDS_SHOWN:-_ENDS_SHOWN]
    tools = Counter(call["tool"] for node in between for call in node["calls"])
    turns = sum(1 for node in between if node["kind"] == "assistant")
    words = ", ".join(f"{tool} {number}" for tool, number in tools.most_common(6))
    kept = [ref for node in between for ref in str(node.get("checkpoint") or "").split()]
    span = f"   {kept[0]}-{kept[-1]}" if len(kept) > 1 else "".join(f"   {ref}" for ref in kept)
    yield [f"{between[0]['node']}-{between[-1]['node']}", "", f"{turns} turns", f"{words}{span}"]
    yield from (["", "", "", line] for node in between for line in _outward(node))
    for node in run[-_ENDS_SHOWN:]:
        yield from _node_lines(node, last_good)


def _node_lines(node: Mapping[str, Any], last_good: str | None) -> Iterator[list[str]]:
    good = "   last good" if node["node"] == last_good else ""
    name, when, kind, words = _node_line(node)
    yield [name, when, kind, f"{words}{good}"]
    yield from (["", "", "", line] for line in _outward(node))


def _outward(node: Mapping[str, Any]) -> Iterator[str]:
    """What was done there to the world outside the workspace."""
    for act in node.get("outward", ()):
        status = f" {act['status']}" if act["status"] else ""
        undo = f"undo: {act['undo']}" if act["undo"] else "no undo"
        yield render.one_line(
            f"· {act['effect']} {act['name']} {act['state']}{status}: files going back do not undo it; {undo}"
        )


def _node_line(node: Mapping[str, Any]) -> list[str]:
    return [node["node"], time.strftime("%H:%M:%S", time.localtime(node["at"])), node["kind"], _node_words(node)]


def _node_words(node: Mapping[str, Any]) -> str:
    calls = ", ".join(call["tool"] for call in node["calls"])
    mark = f"   {node['checkpoint']}" if node.get("checkpoint") else ""
    text = str(node["text"]).strip().split("\n", maxsplit=1)[0]
    failed = "failed: " if node["is_error"] else ""
    tool = f"{node['tool']} " if node.get("tool") and node["kind"] == "tool_result" else ""
    words = _join(render.cut(f"{tool}{failed}{text}".strip(), _WORDS_SHOWN), f"calls {calls}" if calls else "")
    return f"{words}{mark}"
