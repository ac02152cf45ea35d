"""Page: an exported session as one page to read: all escaped, nothing loaded, no script; written as it is read."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from html import escape
from typing import Any

from harnessd.cli import render
from harnessd.cli.client import FAILED, Problem

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2.5rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f5f5f3;padding:.6rem;margin:.3rem 0;font-size:13px}
section{border-left:4px solid #bbb;padding:.1rem .8rem;margin:.8rem 0}
.user{border-color:#2b6cb0}.assistant{border-color:#2f855a}.tool_result{border-color:#999}.compaction,.notice{border-color:#b7791f}
.head{color:#666;font-size:12px}.bad{color:#b00020}summary{cursor:pointer}
table{border-collapse:collapse;font-size:13px}td,th{text-align:left;vertical-align:top;padding:.15rem .7rem .15rem 0}
td{overflow-wrap:anywhere}
"""
_HASH = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
_FOLDED = {"effect": "Effects", "decision": "Decisions", "question": "Questions", "checkpoint": "Checkpoints"}
Row = Mapping[str, Any]


def page(parts: Iterable[bytes]) -> Iterator[str]:
    """The pieces of the page. Raises Problem where the lines end before their last one."""
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width">\n'
    section, ended = "", False
    for row in _rows(parts):
        type_ = str(row.get("type"))
        if type_ in _FOLDED or type_ == "node":
            if type_ != section:
                yield ("</table>\n" if section in _FOLDED else "") + _opened(type_)
                section = type_
            yield _SHOWN[type_](row)
        elif type_ == "task":
            yield _head(row)
        ended = type_ == "end"
    if not ended:
        raise Problem(FAILED, "The session broke off before its last line.", "Export it again.")
    yield ("</table>\n" if section in _FOLDED else "") + "</body></html>\n"


def _rows(parts: Iterable[bytes]) -> Iterator[Row]:
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield json.loads(line)


def text(value: object) -> str:
    """A value as text of the page: escaped, control characters and changes of direction shown as what they are."""
    return escape(render.visible(value if isinstance(value, str) else str(value)), quote=True)


def _opened(type_: str) -> str:
    return "<h2>Session</h2>\n" if type_ == "node" else f"<h2>{_FOLDED[type_]}</h2>\n<table>\n"


def _head(row: Row) -> str:
    draft, counters = row["draft"], row["counters"]
    title = next((line.strip() for line in str(draft["prompt"]).splitlines() if line.strip()), "")[:80]
    state = " ".join(str(word) for word in (row["state"], row["reason"], row["class"]) if word)
    facts = {
        "Task": row["task"],
        "Agent": draft["agent"],
        "Workspace": draft["workspace"],
        "State": state,
        "Reason": row["sentence"],
        "Submitted": render.full_time(row["submitted_at"]),
        "Cost": f"{counters['cost_usd']:.2f} USD, {counters['tokens']} tokens",
        "Used": f"{counters['turns']} turns, {counters['tool_calls']} tool calls",
        "Labels": render.labels(draft["labels"]),
    }
    rows = "".join(f"<tr><th>{name}</th><td>{text(value)}</td></tr>\n" for name, value in facts.items() if value)
    return (
        f"<title>{text(row['task'])} {text(title)}</title>\n<style>{_STYLE}</style></head><body>\n"
        f"<h1>{text(title)}</h1>\n<table>\n{rows}</table>\n<h2>Prompt</h2>\n<pre>{text(draft['prompt'])}</pre>\n"
    )


def _node(row: Row) -> str:
    kind = str(row["kind"])
    facts = row["payload"].get("facts", {})
    parent = f"after {row['parent']}" if row["parent"] else "the first"
    words = [row["id"], kind, parent, render.full_time(row["at"]), facts.get("served_by") or ""]
    head = text("  ".join(str(word) for word in words if word))
    inside = "".join(_block(block) for block in row["payload"].get("blocks", ()))
    if kind == "tool_result":
        failed = any(block.get("is_error") for block in row["payload"].get("blocks", ()))
        mark = ' <b class="bad">failed</b>' if failed else ""
        inside = f"<details><summary>Result of {text(facts.get('tool', ''))}{mark}</summary>{inside}</details>"
    return f'<section class="{text(kind)}" id="{text(row["id"])}"><div class="head">{head}</div>{inside}</section>\n'


def _block(block: Row) -> str:
    match block.get("type"):
        case "text" | "tool_result":
            return f"<pre>{text(block.get('text', ''))}</pre>"
        case "tool_use":
            given = block.get("raw") if block.get("arguments") is None else _json(block["arguments"])
            called = f"<summary>Calls <b>{text(block.get('name'))}</b></summary>"
            return f"<details open>{called}<pre>{text(given)}</pre></details>"
        case _:
            return f"<details><summary>{text(block.get('type'))}</summary><pre>{text(_json(block))}</pre></details>"


def _effect(row: Row) -> str:
    more = _json({"arguments": row["arguments"], "result": row["result"], "key": row["key"]})
    cells = [row["effect"], row["node"], row["name"], row["class"], row["state"]]
    return _cells(cells, more)


def _decision(row: Row) -> str:
    rule = row["rule"]
    cells = [row["node"] or "", row["do"], row["error_class"], f"{rule['kind']}/{rule['name']} {rule['rule']}"]
    return _cells([*cells, f"{rule['file']}:{rule['line']}"], _json(row["evidence"]))


def _question(row: Row) -> str:
    return _cells([row["id"], row["node"], row["sentence"], row.get("choice") or "open", row.get("say", "")], "")


def _checkpoint(row: Row) -> str:
    return _cells([row["ref"], row["node"], row["why"], f"{row['changed']} changed"], "")


def _cells(cells: Iterable[object], more: str) -> str:
    inside = "".join(f"<td>{text(cell)}</td>" for cell in cells)
    folded = f"<td><details><summary>more</summary><pre>{text(more)}</pre></details></td>" if more else ""
    return f"<tr>{inside}{folded}</tr>\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


_SHOWN: Mapping[str, Callable[[Row], str]] = {
    "node": _node,
    "effect": _effect,
    "decision": _decision,
    "question": _question,
    "checkpoint": _checkpoint,
}
