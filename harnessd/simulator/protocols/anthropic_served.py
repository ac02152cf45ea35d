"""Anthropic Messages, tools that the service runs itself: their calls and results stand in the assistant's message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.simulator.protocols.wire import refuse

_RESULT = frozenset({"type", "tool_use_id", "content", "cache_control", "caller"})
BLOCK_KEYS: Mapping[str, frozenset[str]] = {
    "server_tool_use": frozenset({"type", "id", "name", "input", "cache_control", "caller"}),
    "web_search_tool_result": _RESULT,
    "web_fetch_tool_result": _RESULT,
    "code_execution_tool_result": _RESULT,
}

Block = Mapping[str, Any]


def check_served(messages: Sequence[tuple[str, Sequence[Block]]]) -> None:
    """Each such result follows its own call in the same message, and each call has its result."""
    for n, (_, blocks) in enumerate(messages):
        asked: list[str] = []
        for k, block in enumerate(blocks):
            kind = block["type"]
            if kind == "server_tool_use":
                asked.append(str(block.get("id")))
            elif kind in BLOCK_KEYS:
                answered = str(block.get("tool_use_id"))
                if answered not in asked:
                    raise refuse(
                        f"messages.{n}.content.{k}: unexpected `tool_use_id` found in `{kind}` blocks: {answered}. "
                        f"Each `{kind}` block must have a corresponding `server_tool_use` block before it."
                    )
                asked.remove(answered)
        if asked:
            raise refuse(f"messages.{n}: tool use with id `{asked[0]}` was found without a corresponding result block")
