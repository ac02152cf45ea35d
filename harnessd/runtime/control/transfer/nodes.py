"""Nodes of a file: unique, parents before children, each what the session's hash chain says it is, each readable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harnessd.domain.messages import block_from_json
from harnessd.domain.session import NodeKind
from harnessd.domain.transfer import StoredNode
from harnessd.domain.transfer.chain import CHAIN_START, chain_hash, digest
from harnessd.domain.transfer.lines import PAYLOAD
from harnessd.runtime.control.transfer.rows import Odd, number, text, word

_ID = re.compile(r"n[1-9][0-9]{0,8}")
_KINDS = frozenset(NodeKind)
# What the engine reads of a node's facts, and of which sort it must be.
_FACTS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("tool", "state", "model", "finish", "summary", "how", "served_by", "request_id"), (str,)),
    **dict.fromkeys(("mended", "roles", "notes", "squeezed"), (dict,)),
    **dict.fromkeys(("requests", "receipts"), (list,)),
    "kept_from": (str, type(None)),
    "turns": (int,),
}


class Nodes:
    """The nodes until now. Methods raise Odd."""

    def __init__(self) -> None:
        """No node yet."""
        self._found: list[StoredNode] = []
        self._parents: dict[str, str | None] = {}
        self._early: list[str] = []
        self._chain = CHAIN_START

    def add(self, row: Mapping[str, Any], line: str) -> None:
        """One more node; its payload is taken from the line as it stands there."""
        id_, parent, kind = text(row, "id"), row.get("parent"), text(row, "kind")
        if not _ID.fullmatch(id_):
            raise Odd(f"{word(id_)} is no id of a node")
        if id_ in self._parents:
            raise Odd(f"node {id_} is there twice")
        if parent is not None and not isinstance(parent, str):
            raise Odd(f"the parent of node {id_} is no id")
        if parent == id_:
            raise Odd(f"node {id_} is its own parent")
        if kind not in _KINDS:
            raise Odd(f"node {id_} is of the kind {word(kind)}, which is none")
        if parent is not None and parent not in self._parents:
            self._early.append(id_)
        self._parents[id_] = parent
        payload = line.partition(PAYLOAD)[2].rstrip("\r\n")[:-1]
        judge(id_, NodeKind(kind), row.get("payload"))
        at = number(row, "at")
        self._chain = chain_hash(self._chain, digest(id_, parent, kind, at, payload))
        if row.get("chain") != self._chain.hex():
            raise Odd(f"node {id_} is not what was written: its hash does not fit the chain")
        self._found.append(StoredNode(len(self._found), id_, parent, kind, payload, at, self._chain))

    def whole(self, task: Mapping[str, Any]) -> list[StoredNode]:
        """All of them, where they are a tree, as many as were written, and hold the pointer. Raises Odd."""
        for id_ in self._early:
            self._judge_early(id_)
        if (len(self._found), self._chain.hex()) != (task["nodes"], task["chain"]):
            raise Odd(f"the file holds {len(self._found)} nodes, and the session has others or more")
        pointer = task.get("pointer")
        if pointer is not None and pointer not in self._parents:
            raise Odd(f"the pointer names node {word(pointer)}, which is not in the file")
        return self._found

    def _judge_early(self, id_: str) -> None:
        """A parent that was not there before its child: it is nowhere, or too late, or its own descendant."""
        parent = self._parents[id_]
        if parent is not None and parent not in self._parents:
            raise Odd(f"the parent {word(parent)} of node {id_} is not in the file")
        seen: set[str] = set()
        here: str | None = id_
        while here is not None and here in self._parents:
            if here in seen:
                raise Odd(f"the parents of node {id_} run in a circle")
            seen.add(here)
            here = self._parents[here]
        raise Odd(f"node {id_} stands before its parent {parent}")


def judge(id_: str, kind: NodeKind, payload: Any) -> None:
    """Whether everybody who reads nodes can read this one. Raises Odd."""
    if not isinstance(payload, dict) or not isinstance(payload.get("blocks"), list):
        raise Odd(f"node {id_} has no blocks")
    for stored in payload["blocks"]:
        _judge_block(id_, stored)
    if kind is NodeKind.ASSISTANT and payload.get("role") != "assistant":
        raise Odd(f"node {id_} is an answer of no assistant")
    if payload.get("wire") is not None and not isinstance(payload["wire"], dict):
        raise Odd(f"node {id_} has a wire form that is no object")
    facts = payload.get("facts", {})
    if not isinstance(facts, dict):
        raise Odd(f"node {id_} has facts that are no object")
    for name, sorts in _FACTS.items():
        if name in facts and not isinstance(facts[name], sorts):
            raise Odd(f"the fact {name} of node {id_} is of another sort")
    if "note" in facts and "tool" not in facts:
        raise Odd(f"node {id_} keeps a note of no tool")


def _judge_block(id_: str, stored: Any) -> None:
    wanted: Mapping[str, Mapping[str, tuple[type, ...]]] = {
        "text": {"text": (str,)},
        "tool_use": {"id": (str,), "name": (str,), "arguments": (dict, type(None)), "raw": (str, type(None))},
        "tool_result": {"tool_use_id": (str,), "text": (str,), "is_error": (bool, type(None))},
        "opaque": {"protocol": (str,), "wire": (dict,)},
    }
    fields = wanted.get(stored["type"]) if isinstance(stored, dict) and isinstance(stored.get("type"), str) else None
    if fields is None or any(not isinstance(stored.get(name), sorts) for name, sorts in fields.items()):
        raise Odd(f"node {id_} holds a block that this version does not know")
    block_from_json(stored)
