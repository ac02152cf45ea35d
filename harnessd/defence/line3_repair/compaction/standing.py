"""Standing history: the nodes that the newest compaction left standing, and what it says of those it replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harnessd.domain.messages import TextBlock, block_to_json
from harnessd.domain.session import Node, NodeKind


@dataclass(frozen=True, slots=True)
class Request:
    """A person's words: they are carried over by code, never left to a summariser."""

    node: str
    text: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a compaction node says of the nodes that it replaces.

    Attributes:
        kept_from: id of the first node that stands word for word; None: nothing before the compaction does.
        summary: the summariser's words; empty where there never was one.
        how: `squeeze`, `summary` or `trim` (without a model).
        turns: answers of the model that it replaces, those of earlier compactions included.
        requests: what persons wanted, oldest first.
        receipts: acts on the world, as `receipts.Receipts` keeps them.
        notes: durable state of tools (the task list), by tool name.
        squeezed: node id -> what is shown in place of a long result.
    """

    kept_from: str | None = None
    summary: str = ""
    how: str = "summary"
    turns: int = 0
    requests: tuple[Request, ...] = ()
    receipts: Sequence[Mapping[str, Any]] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    squeezed: Mapping[str, str] = field(default_factory=dict)

    def payload(self, texts: Sequence[str], **facts: Any) -> dict[str, Any]:
        """The payload of the compaction node: what the model is shown, and what the next compaction goes on from."""
        known = {
            "kept_from": self.kept_from,
            "summary": self.summary,
            "how": self.how,
            "turns": self.turns,
            "requests": [{"node": request.node, "text": request.text} for request in self.requests],
            "receipts": [dict(group) for group in self.receipts],
            "notes": dict(self.notes),
            "squeezed": dict(self.squeezed),
        }
        return {"blocks": [block_to_json(TextBlock(text)) for text in texts if text], "facts": known | facts}


def replaced_by(node: Node) -> Replaced:
    """What a compaction node replaces."""
    facts = node.payload.get("facts", {})
    return Replaced(
        kept_from=facts.get("kept_from"),
        summary=facts.get("summary", ""),
        how=facts.get("how", "summary"),
        turns=facts.get("turns", 0),
        requests=tuple(Request(row["node"], row["text"]) for row in facts.get("requests", ())),
        receipts=tuple(facts.get("receipts", ())),
        notes=facts.get("notes", {}),
        squeezed=facts.get("squeezed", {}),
    )


def newest(path: Sequence[Node]) -> int | None:
    """Where the newest compaction stands in the path."""
    for place in range(len(path) - 1, -1, -1):
        if path[place].kind is NodeKind.COMPACTION:
            return place
    return None


def standing(path: Sequence[Node]) -> list[Node]:
    """What a model is shown of a path: the newest compaction, what it kept, and what came since; older ones are gone.

    Costs what stands, not what was: nodes before the kept ones are never looked at.
    """
    place = newest(path)
    if place is None:
        return list(path)
    compaction = path[place]
    facts = replaced_by(compaction)
    kept: list[Node] = []
    if facts.kept_from is not None:
        for number in range(place - 1, -1, -1):
            node = path[number]
            if node.kind is not NodeKind.COMPACTION:
                kept.append(squeezed(node, facts.squeezed.get(node.id)))
            if node.id == facts.kept_from:
                break
    return [compaction, *reversed(kept), *path[place + 1 :]]


def squeezed(node: Node, text: str | None) -> Node:
    """The node with its result's words replaced; the node itself where there is nothing to replace."""
    if text is None:
        return node
    blocks = [
        block | {"text": text} if block.get("type") == "tool_result" else block for block in node.payload["blocks"]
    ]
    return replace(node, payload={**node.payload, "blocks": blocks, "squeezed": True})


def is_squeezed(node: Node) -> bool:
    """Its result's words were replaced."""
    return bool(node.payload.get("squeezed"))
