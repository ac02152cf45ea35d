"""The Messages API: requests as they leave."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from harnessd.domain.messages import (
    Message,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from tests.providers.speech import (
    HELLO,
    a_end,
    a_start,
    a_text,
    replied,
    streamed,
    talk,
)

FINE = streamed(a_start(), *a_text(0, "All ", "well."), *a_end())


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/messages"])
async def test_the_address_is_understood_as_operators_write_it(path: str) -> None:
    async with talk("anthropic", FINE, path=path) as conversation:
        replied(await conversation.call())
        assert conversation.server.visits[0].head.startswith(b"POST /v1/messages HTTP/1.1")


async def test_what_nobody_touched_leaves_byte_identical_and_breakpoints_stand() -> None:
    # R4.8
    def without_breakpoints(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without_breakpoints(part) for name, part in value.items() if name != "cache_control"}
        return [without_breakpoints(part) for part in value] if isinstance(value, list) else value

    async with talk("anthropic", FINE) as conversation:
        messages = HELLO.messages
        for turn in range(4):
            reply = replied(await conversation.call(replace(HELLO, messages=messages)))
            messages = (*messages, reply.message, Message("user", (TextBlock(f"Go on, {turn}."),)))
        bodies = [conversation.sent(number) for number in range(4)]
    for earlier, later in pairwise(bodies):
        assert earlier["system"] == later["system"]
        assert earlier["tools"] == later["tools"]
        kept = without_breakpoints(earlier["messages"])
        assert without_breakpoints(later["messages"])[: len(kept)] == kept
    last = bodies[-1]
    assert last["system"][-1]["cache_control"] == {"type": "ephemeral"}
    assert last["tools"][-1]["cache_control"] == {"type": "ephemeral"}
    marked = [index for index, message in enumerate(last["messages"]) if "cache_control" in message["content"][-1]]
    assert marked == [4, 6]


async def test_equal_requests_are_equal_bytes_whatever_order_a_store_gives_keys_back() -> None:
    call = ToolUseBlock("toolu_1", "t", {"b": 1, "a": 2})
    same = ToolUseBlock("toolu_1", "t", {"a": 2, "b": 1})
    async with talk("anthropic", FINE) as conversation:
        for block in (call, same):
            await conversation.call(replace(HELLO, messages=(*HELLO.messages, Message("assistant", (block,)))))
        assert conversation.server.visits[0].body == conversation.server.visits[1].body


async def test_thoughts_of_another_model_stay_at_home() -> None:
    # a16: a signature is valid at the service that made it
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "x", "signature": "y"},
        {"type": "tool_use", "id": "toolu_F1", "name": "shell", "input": {}},
    ]
    blocks = (OpaqueBlock("anthropic", content[0]), ToolUseBlock("toolu_F1", "shell", {}))
    foreign = Message("assistant", blocks, {"protocol": "anthropic", "model": "other", "content": content})
    elsewhere = Message(
        "assistant",
        (OpaqueBlock("openai-chat", {"reasoning": "x"}), TextBlock("Hi.")),
        {"protocol": "openai-chat", "model": "model-1", "content": {}},
    )
    async with talk("anthropic", FINE) as conversation:
        await conversation.call(replace(HELLO, messages=(*HELLO.messages, foreign, elsewhere)))
        sent = conversation.sent()["messages"]
    assert sent[1]["content"] == [content[1]]
    assert sent[2]["content"] == [{"type": "text", "text": "Hi."}]


async def test_ids_of_other_protocols_are_mapped_on_both_sides() -> None:
    # P6
    id_ = "functions.read:0"
    call = Message("assistant", (ToolUseBlock(id_, "read_file", {}),))
    result = Message("user", (ToolResultBlock(id_, "x"),))
    async with talk("anthropic", FINE) as conversation:
        await conversation.call(replace(HELLO, messages=(*HELLO.messages, call, result)))
        sent = conversation.sent()["messages"]
    assert sent[1]["content"][0]["id"] == sent[2]["content"][0]["tool_use_id"]
    assert sent[1]["content"][0]["id"].isalnum()


async def test_blank_texts_and_empty_messages_are_not_sent() -> None:
    # P12
    messages = (
        *HELLO.messages,
        Message("assistant", (TextBlock(" \n"),)),
        Message("user", (TextBlock(""), TextBlock("On."))),
    )
    async with talk("anthropic", FINE) as conversation:
        await conversation.call(replace(HELLO, messages=messages, system="", tools=()))
        body = conversation.sent()
    assert [message["role"] for message in body["messages"]] == ["user", "user"]
    assert len(body["messages"][1]["content"]) == 1
    assert "system" not in body
    assert "tools" not in body


async def test_a_last_turn_without_tools_still_names_what_was_called() -> None:
    # R3.9
    call = Message("assistant", (ToolUseBlock("t1", "g", {}), ToolUseBlock("t2", "f", {})))
    result = Message("user", (ToolResultBlock("t1", "x"), ToolResultBlock("t2", "y")))
    async with talk("anthropic", FINE) as conversation:
        await conversation.call(replace(HELLO, messages=(*HELLO.messages, call, result), tools=()))
        body = conversation.sent()
    assert [tool["name"] for tool in body["tools"]] == ["f", "g"]
    assert body["tool_choice"] == {"type": "none"}


async def test_the_lower_output_limit_is_asked_for() -> None:
    async with talk("anthropic", FINE, max_output=500) as conversation:
        await conversation.call()
        assert conversation.sent()["max_tokens"] == 500
    async with talk("anthropic", FINE, max_output=0) as conversation:
        await conversation.call()
        assert conversation.sent()["max_tokens"] == 1000
