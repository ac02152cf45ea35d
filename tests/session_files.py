"""Exported sessions for tests, built line by line, and sealed anew after something in them was changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harnessd.domain.messages import Message, TextBlock, ToolUseBlock
from harnessd.domain.session import assistant_payload, result_payload, user_payload
from harnessd.domain.transfer.chain import CHAIN_START, chain_hash, digest
from harnessd.domain.transfer.lines import Lines

Row = dict[str, Any]
AT = 1_800_000_000.5


def node(number: int, kind: str, payload: Mapping[str, Any], parent: int | None = None) -> Row:
    """A node's line without its hash; its parent is the one before, unless another is named."""
    above = number - 1 if parent is None else parent
    return {
        "type": "node",
        "id": f"n{number}",
        "parent": f"n{above}" if above else None,
        "kind": kind,
        "at": AT + number,
        "payload": dict(payload),
    }


def effect(number: int, **fields: Any) -> Row:
    """An act of the second node that was done."""
    return {
        "type": "effect",
        "effect": f"e{number}",
        "kind": "tool",
        "node": "n2",
        "call": "c1",
        "name": "tool/bash",
        "class": "irreversible",
        "state": "done",
        "key": "0" * 32,
        "arguments": {"command": "make"},
        "result": {"text": "made"},
        "attempt": 1,
        "at": AT,
        **fields,
    }


def decision(**fields: Any) -> Row:
    """A decision at the third node."""
    rule = {"kind": "retry", "name": "default", "rule": "overloaded", "file": "builtin retry.yaml", "line": 3}
    return {
        "type": "decision",
        "at": AT,
        "task": "abc123",
        "node": "n3",
        "call": None,
        "do": "retry",
        "remedy": {"after_s": 1.0, "attempt": 2, "of": 4},
        "error_class": "overloaded",
        "rule": rule,
        "evidence": {"status": 529},
        "alternatives": [],
        "tried": [],
        **fields,
    }


def talk() -> list[Row]:
    """Asked, called, answered."""
    reply = Message("assistant", (TextBlock("I look."), ToolUseBlock("c1", "bash", {"command": "make"})))
    return [
        node(1, "user", user_payload("Port the importer")),
        node(2, "assistant", assistant_payload(reply, served_by="m")),
        node(3, "tool_result", result_payload("c1", "made", is_error=False, tool="bash", state="done")),
    ]


def task(workspace: str, pointer: str | None, **fields: Any) -> Row:
    """The task's line."""
    return {
        "type": "task",
        "task": "abc123",
        "keys_of": "abc123",
        "draft": {"prompt": "Port the importer", "agent": "coder", "workspace": workspace, "labels": {"team": "web"}},
        "pointer": pointer,
        "counters": {"turns": 3, "tokens": 900, "cost_usd": 0.5},
        "system": "You are careful.",
        **fields,
    }


def sealed(workspace: str, rows: Sequence[Row] | None = None, *, head: Row | None = None, **fields: Any) -> bytes:
    """The file with hashes, chain and sum as they must be for these lines."""
    rows = [*talk(), effect(1), decision()] if rows is None else list(rows)
    nodes = [row for row in rows if row["type"] == "node"]
    chain = CHAIN_START
    hashed: list[tuple[Row, str | None]] = []
    for row in rows:
        if row["type"] != "node":
            hashed.append((row, None))
            continue
        payload = json.dumps(row["payload"], ensure_ascii=False, separators=(",", ":"))
        chain = chain_hash(chain, digest(row["id"], row["parent"], row["kind"], float(row["at"]), payload))
        bare = {name: value for name, value in row.items() if name != "payload"}
        hashed.append((bare | {"chain": chain.hex()}, payload))
    out = Lines()
    pointer = nodes[-1]["id"] if nodes else None
    about: Row = {"pointer": pointer, "nodes": len(nodes), "chain": chain.hex()} | fields
    first = out.header("0", AT) if head is None else out.line("header", _untyped(head))
    whole = [first, out.line("task", _untyped(task(workspace, **about)))]
    whole += [out.line(str(bare["type"]), _untyped(bare), payload) for bare, payload in hashed]
    return b"".join([*whole, out.end()])


def changed(data: bytes, change: Callable[[list[bytes]], Sequence[bytes]]) -> bytes:
    """The file with its lines changed and nothing sealed anew."""
    return b"".join(change(data.splitlines(keepends=True)))


def _untyped(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "type"}
