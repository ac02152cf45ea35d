"""Receipts: acts on the world are counted by code; thousands of them stay readable (R4.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harnessd.defence.line3_repair.compaction.receipts import Groups, receipts_of, written
from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.messages import Message, ToolUseBlock
from harnessd.domain.session import Node, NodeKind, assistant_payload, result_payload


def acts(*made: tuple[str, Mapping[str, Any], str], first: int = 1) -> list[Node]:
    """Turns of one call each: tool, arguments, state."""
    nodes = []
    for place, (tool, arguments, state) in enumerate(made, first):
        use = ToolUseBlock(f"c{place}", tool, arguments)
        nodes.append(
            Node(f"n{2 * place}", None, NodeKind.ASSISTANT, assistant_payload(Message("assistant", (use,))), 0)
        )
        text = f"ok, number A{place}"
        payload = result_payload(use.id, text, is_error=False, tool=tool, state=state)
        nodes.append(Node(f"n{2 * place + 1}", None, NodeKind.TOOL_RESULT, payload, 0))
    return nodes


CLASSES = {"look": EffectClass.READ_ONLY, "pay": EffectClass.IRREVERSIBLE}


def lines(nodes: list[Node], before: Groups = ()) -> list[str]:
    """The receipts of these nodes."""
    names = {
        (node.id, block["id"]): block["name"]
        for node in nodes
        for block in node.payload["blocks"]
        if block["type"] == "tool_use"
    }

    def effect_of(node: str, call: str) -> Effect | None:
        tool = names[node, call]
        kind = CLASSES.get(tool, EffectClass.IDEMPOTENT)
        return Effect("e1", "tool", node, call, f"tool/{tool}", kind, EffectState.DONE)

    return written(receipts_of(nodes, effect_of, before))


def test_a_series_is_one_line_with_ranges() -> None:
    made = [("put", {"path": f"steps/{k}.txt"}, "done") for k in [*range(1, 400), 500]]
    assert lines(acts(*made)) == ["- put path=steps/{1-399,500}.txt: done (400 times)"]


def test_reading_is_no_act_and_what_was_not_done_has_no_receipt() -> None:
    made = [("look", {"path": "a"}, "done"), ("put", {"path": "a"}, "failed"), ("put", {"path": "b"}, "not_started")]
    assert lines(acts(*made)) == []


def test_an_unknown_outcome_is_said() -> None:
    assert lines(acts(("put", {"path": "a"}, "unknown"))) == ["- put path=a: started, outcome unknown"]


def test_what_cannot_be_undone_keeps_what_its_receiver_said() -> None:
    found = lines(acts(("pay", {"to": "Bo", "amount": 5}, "done"), ("pay", {"to": "Al", "amount": 5}, "done")))
    assert found == ["- pay to=Bo amount=5 -> ok, number A1: done", "- pay to=Al amount=5 -> ok, number A2: done"]


def test_long_arguments_are_told_by_their_length() -> None:
    (line,) = lines(acts(("put", {"path": "a", "content": "x" * 5_000}, "done")))
    assert "(5,000 characters)" in line
    assert len(line) < 200


@given(st.lists(st.integers(0, 60), min_size=1, max_size=80), st.integers(0, 80))
def test_no_act_is_lost_whatever_the_order_and_the_compactions(numbers: list[int], cut: int) -> None:
    nodes = acts(*(("put", {"path": f"{k}.txt"}, "done") for k in numbers))
    names = {node.id: node for node in nodes}

    def effect_of(node: str, call: str) -> Effect | None:
        assert node in names
        return Effect("e1", "tool", node, call, "tool/put", EffectClass.IDEMPOTENT, EffectState.DONE)

    first = receipts_of(nodes[: 2 * cut], effect_of)
    both = receipts_of(nodes[2 * cut :], effect_of, first)
    assert sum(group["times"] for group in both) == len(numbers)
    shown = {k for group in both for low, high in group["numbers"] for k in range(low, high + 1)}
    assert shown == set(numbers)
