"""Session: an append-only tree of nodes, a pointer, and the view of the path to it that a model is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harnessd.domain.messages import (
    Block,
    Message,
    TextBlock,
    ToolResultBlock,
    block_from_json,
    block_to_json,
    message_from_json,
    message_to_json,
)


class NodeKind(StrEnum):
    """Diagnostics are events, never nodes."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL_RESULT = "tool_result"
    COMPACTION = "compaction"
    NOTICE = "notice"  # our words to the model


@dataclass(frozen=True, slots=True)
class Node:
    """One record of the tree. `id` is `n<number>`, unique in its session, in order of creation."""

    id: str
    parent: str | None
    kind: NodeKind
    payload: Mapping[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class Pointer:
    """The head of a session: where the agent believes it is."""

    session: str
    node: str | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A workspace snapshot tied to a node: the workspace as it was while that node was the head.

    Attributes:
        ref: its name in the task, `c<number>` in order of taking.
        manifest: what the workspace's own store knows it by; `root` the workspace's path.
        why: `before` a call that can write, `after` one, `safety` before a restore, `asked` by a person.
        changed: names that differ from the one before; `uncovered` how many names it does not hold.
    """

    node: str
    ref: str
    manifest: str = ""
    root: str = ""
    at: float = 0.0
    why: str = "before"
    changed: int = 0
    uncovered: int = 0


def letters(value: Any) -> int:
    """Bytes of all text in a payload, in UTF-8: about what it takes in the store, without writing it as JSON again."""
    match value:
        case str():
            return len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
        case Mapping():
            return sum(len(name) + letters(item) for name, item in value.items())
        case list() | tuple():
            return sum(map(letters, value))
        case _:
            return 4


def path_to(nodes: Mapping[str, Node], head: str | None) -> tuple[Node, ...]:
    """The nodes from the root to `head`. The stored pointer decides, never a time stamp.

    Raises KeyError where a parent is missing, ValueError where parents run in a circle.
    """
    path: list[Node] = []
    seen: set[str] = set()
    while head is not None:
        if head in seen:
            message = f"node {head} is its own ancestor"
            raise ValueError(message)
        seen.add(head)
        path.append(nodes[head])
        head = nodes[head].parent
    return tuple(reversed(path))


def user_payload(text: str) -> dict[str, Any]:
    """The payload of a `user` or `notice` node."""
    return {"blocks": [block_to_json(TextBlock(text))]}


def assistant_payload(message: Message, **facts: Any) -> dict[str, Any]:
    """The payload of an `assistant` node: the message, and who answered under `facts`."""
    return message_to_json(message) | {"facts": facts}


def result_payload(call_id: str, text: str, *, is_error: bool, **facts: Any) -> dict[str, Any]:
    """The payload of a `tool_result` node."""
    return {"blocks": [block_to_json(ToolResultBlock(call_id, text, is_error))], "facts": facts}


def assistant_message(node: Node) -> Message:
    """The message of an `assistant` node."""
    return message_from_json({"role": "assistant", **node.payload})


def blocks_of(node: Node) -> tuple[Block, ...]:
    """The blocks of any node."""
    return tuple(block_from_json(block) for block in node.payload["blocks"])


def open_calls(path: Sequence[Node]) -> tuple[str, ...]:
    """Ids of the calls of the last assistant node that have no result yet, in order."""
    answered: set[str] = set()
    for node in reversed(path):
        if node.kind is NodeKind.ASSISTANT:
            return tuple(use.id for use in assistant_message(node).tool_uses if use.id not in answered)
        answered.update(b.tool_use_id for b in blocks_of(node) if isinstance(b, ToolResultBlock))
    return ()


def notes_of(path: Iterable[Node]) -> dict[str, Any]:
    """The durable state of tools (the agent's task list) as it stands on this path, by tool name.

    It lives on result nodes, so that going back in the tree brings back the plan of that time.
    """
    notes: dict[str, Any] = {}
    for node in path:
        if node.kind is NodeKind.TOOL_RESULT and "note" in node.payload.get("facts", {}):
            notes[node.payload["facts"]["tool"]] = node.payload["facts"]["note"]
    return notes


def view(path: Iterable[Node]) -> tuple[Message, ...]:
    """What a model is shown of a path: neighbours of the user's side merged, results first, in call order.

    Results of parallel calls arrive in any order; every provider wants them together, right after the calls.
    """
    messages: list[Message] = []
    side: list[Block] = []
    order: dict[str, int] = {}

    def close() -> None:
        if not side:
            return
        results = sorted(
            (block for block in side if isinstance(block, ToolResultBlock)),
            key=lambda block: order.get(block.tool_use_id, len(order)),
        )
        others = [block for block in side if not isinstance(block, ToolResultBlock)]
        messages.append(Message("user", (*results, *others)))
        side.clear()

    for node in path:
        if node.kind is NodeKind.ASSISTANT:
            message = assistant_message(node)
            if not message.blocks:
                # An answer without anything in it is history, but no service takes it back.
                continue
            close()
            order = {use.id: place for place, use in enumerate(message.tool_uses)}
            messages.append(message)
        else:
            side.extend(blocks_of(node))
    close()
    return tuple(messages)
