"""Trusted nodes: where a task can go back to, from what its path tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harnessd.defence.trusted import before_loop, before_steps, last_good, whole
from harnessd.domain.messages import Message, TextBlock, ToolUseBlock
from harnessd.domain.session import Node, NodeKind, assistant_payload, result_payload, user_payload

READS = ("look", "check")


def path_of(*turns: str, say: str = "") -> list[Node]:
    """A path in words: `edit a`, `check ok`, `check bad`; each turn one call, its result, in nodes of their own."""
    nodes = [Node("n1", None, NodeKind.USER, user_payload("Do it"), 0.0)]

    def add(kind: NodeKind, payload: dict[str, Any]) -> None:
        nodes.append(Node(f"n{len(nodes) + 1}", nodes[-1].id, kind, payload, 0.0))

    for number, turn in enumerate(turns):
        if turn == "person":
            add(NodeKind.USER, user_payload("And now?"))
            continue
        tool, how = turn.split()
        arguments = {} if tool == "check" else {"x": f"{how}{number}"}
        use = ToolUseBlock(f"c{number}", tool, arguments)
        add(NodeKind.ASSISTANT, assistant_payload(Message("assistant", (use,))))
        add(NodeKind.TOOL_RESULT, result_payload(use.id, how, is_error=how == "bad", tool=tool))
    if say:
        add(NodeKind.ASSISTANT, assistant_payload(Message("assistant", (TextBlock(say),))))
    return nodes


def changes_of(path: list[Node]) -> Callable[[str], bool]:
    tools = {node.id: str(node.payload.get("facts", {}).get("tool", "")) for node in path}
    return lambda node: tools[node] not in READS


@pytest.mark.parametrize(
    ("turns", "good"),
    [
        (["check ok", "edit a", "check bad"], "n3"),  # where the check last passed
        (["edit a", "check ok", "edit b", "look x", "edit c", "check bad", "edit d", "check bad"], "n5"),
        (["look x", "edit a", "check bad"], "n3"),  # before the change that led to it
        (["look x", "edit a", "look y", "check bad"], "n3"),
        (["look x", "edit a", "edit b", "check bad", "edit c", "check bad"], "n3"),
        (["check bad"], "n1"),
        (["look x", "check bad", "edit a", "check bad", "edit b", "check bad"], "n3"),
        (["edit a", "person", "check bad"], "n4"),  # what was before the person's last word is not looked at
        (["look x", "edit a", "look y"], "n3"),  # nothing failed: before the newest change
        (["edit bad"], "n1"),
        (["look x"], None),
        ([], None),
    ],
)
def test_the_last_good_node(turns: list[str], good: str | None) -> None:  # R5.5
    path = path_of(*turns, say="Done.")
    found = last_good(path, changes_of(path))
    assert (found.id if found else None) == good


@pytest.mark.parametrize(("steps", "node"), [(1, "n5"), (2, "n3"), (3, "n1"), (4, None), (0, None), (-1, None)])
def test_steps_are_turns(steps: int, node: str | None) -> None:
    found = before_steps(path_of("look x", "edit a", "check ok"), steps)
    assert (found.id if found else None) == node


def test_before_a_loop() -> None:
    path = path_of("edit a", "check ok", "check ok", "check ok", say="Hm.")
    assert getattr(before_loop(path, 3), "id", None) == "n3"
    assert getattr(before_loop(path, 9), "id", None) == "n1"
    assert before_loop(path[:1], 3) is None


def test_a_session_stands_where_no_call_waits() -> None:
    path = path_of("edit a")
    assert [whole(path[:end]) for end in (1, 2, 3)] == [True, False, True]
