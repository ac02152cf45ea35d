"""The Messages API: answers as they come, and what is kept of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harnessd.domain.messages import (
    FinishReason,
    Message,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    message_from_json,
    message_to_json,
)
from tests.providers.speech import (
    HELLO,
    KEY,
    a_block,
    a_call,
    a_end,
    a_start,
    a_text,
    answered,
    ask,
    replied,
    said,
    sse,
    streamed,
    talk,
)

FINE = streamed(a_start(), *a_text(0, "All ", "well."), *a_end())


async def test_a_text_answer() -> None:
    async with talk("anthropic", FINE) as conversation:
        reply = replied(await conversation.call())
    assert reply.message.blocks == (TextBlock("All well."),)
    assert reply.finish is FinishReason.STOP
    assert (reply.served_by, reply.request_id, reply.cost_usd) == ("served-1", "msg_1", 0.0)
    assert conversation.progress == ["text", "text"]
    head = conversation.server.visits[0].head.decode().lower()
    assert head.startswith("post /v1/messages http/1.1")
    assert f"x-api-key: {KEY}" in head
    assert "anthropic-version: 2023-06-01" in head


THOUGHTS_AND_CALLS = [
    *a_block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Look "},
        {"type": "thinking_delta", "thinking": "first."},
        {"type": "signature_delta", "signature": "c2ln"},
    ),
    *a_block(1, {"type": "redacted_thinking", "data": "b3BhcXVl"}),
    *a_text(2, "Reading."),
    *a_call(3, "toolu_A", "read_file", '{"pa', 'th": "z", "a": 1}'),
    *a_call(4, "toolu_B", "read_file"),
]


async def test_parallel_calls_and_thoughts_come_back_as_they_were() -> None:
    async with talk("anthropic", streamed(a_start(), *THOUGHTS_AND_CALLS, *a_end("tool_use")), FINE) as conversation:
        reply = replied(await conversation.call())
        assert reply.finish is FinishReason.TOOL_USE
        assert [type(block) for block in reply.message.blocks] == [
            OpaqueBlock,
            OpaqueBlock,
            TextBlock,
            ToolUseBlock,
            ToolUseBlock,
        ]
        assert reply.message.tool_uses == (
            ToolUseBlock("toolu_A", "read_file", {"path": "z", "a": 1}),
            ToolUseBlock("toolu_B", "read_file", {}),
        )
        assert conversation.progress == [
            "thinking",
            "thinking",
            "thinking",
            "text",
            "tool_use",
            "tool_use",
            "tool_use",
            "tool_use",
        ]
        results = Message(
            "user",
            (TextBlock("Hurry."), ToolResultBlock("toolu_A", "x"), ToolResultBlock("toolu_B", "no", is_error=True)),
        )
        # The message as a store gives it back.
        stored = message_from_json(message_to_json(reply.message))
        await conversation.call(replace(HELLO, messages=(*HELLO.messages, stored, results)))
        sent = conversation.sent()["messages"]
    assert sent[1] == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Look first.", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "b3BhcXVl"},
            {"type": "text", "text": "Reading."},
            {"type": "tool_use", "id": "toolu_A", "name": "read_file", "input": {"path": "z", "a": 1}},
            {"type": "tool_use", "id": "toolu_B", "name": "read_file", "input": {}},
        ],
    }
    # P21: results first, all in one message
    assert [block["type"] for block in sent[2]["content"]] == ["tool_result", "tool_result", "text"]
    assert "is_error" not in sent[2]["content"][0]
    assert sent[2]["content"][1]["is_error"] is True


async def test_a_blank_text_beside_a_call_is_neither_kept_nor_sent_back() -> None:
    # P12: the service itself sends such blocks, and refuses them when they come back
    events = [*a_text(0, "\n\n"), *a_call(1, "toolu_1", "t")]
    reply = replied(await ask("anthropic", streamed(a_start(), *events, *a_end("tool_use"))))
    assert reply.message.blocks == (ToolUseBlock("toolu_1", "t", {}),)
    assert reply.message.wire is not None
    assert [block["type"] for block in reply.message.wire["content"]] == ["tool_use"]


@pytest.mark.parametrize(
    ("start", "deltas", "usage"),
    [
        # i04: input leaves the cache out; i05: running totals; i07: the last figure that is there wins
        (
            {
                "input_tokens": 100,
                "cache_read_input_tokens": 20000,
                "cache_creation_input_tokens": 700,
                "output_tokens": 1,
            },
            [{"output_tokens": 50}],
            Usage(100, 50, 20000, 700),
        ),
        ({"input_tokens": 25, "output_tokens": 1}, [{"output_tokens": 15}], Usage(25, 15)),
        (
            {"input_tokens": 25, "output_tokens": 1},
            [{"input_tokens": 10682, "output_tokens": 40}, {"input_tokens": None, "output_tokens": 55}],
            Usage(10682, 55),
        ),
        (
            {"input_tokens": 25, "output_tokens": 1},
            [{"input_tokens": 0, "output_tokens": -3}, {"output_tokens": True}],
            Usage(0, 1),
        ),
    ],
)
async def test_usage(start: dict[str, int], deltas: list[dict[str, Any]], usage: Usage) -> None:
    told = [{"type": "message_delta", "delta": {}, "usage": delta} for delta in deltas]
    reply = await ask("anthropic", streamed(a_start(**start), *a_text(0, "x"), *told, *a_end(none=None)))
    assert replied(reply).usage == usage


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("max_tokens", FinishReason.LENGTH),
        ("pause_turn", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("a_word_of_next_year", FinishReason.STOP),
        (None, FinishReason.STOP),
    ],
)
async def test_stop_reasons(stop: str | None, finish: FinishReason) -> None:
    reply = replied(await ask("anthropic", streamed(a_start(), *a_text(0, "Some words."), *a_end(stop))))
    assert reply.finish is finish
    assert reply.message.text == "Some words."


async def test_a_refusal_is_no_answer() -> None:
    failure = said(await ask("anthropic", streamed(a_start(), *a_text(0, "I"), *a_end("refusal"))))
    assert (failure.finish, failure.ended, failure.status) == ("refusal", "complete", 200)
    assert failure.usage == Usage(10, 15)


async def test_a_window_that_was_full_at_once_is_told() -> None:
    failure = said(await ask("anthropic", streamed(a_start(), *a_end("model_context_window_exceeded"))))
    assert (failure.code, failure.finish, failure.ended) == ("model_context_window_exceeded", "length", "complete")


@pytest.mark.parametrize("pieces", [['{"path":"a.txt","content":"abc'], []])
async def test_a_call_cut_by_the_length_limit_is_no_call(pieces: list[str]) -> None:
    # b61
    failure = said(
        await ask("anthropic", streamed(a_start(), *a_call(0, "toolu_X", "write_file", *pieces), *a_end("max_tokens")))
    )
    assert failure.call_cut
    assert (failure.finish, failure.ended) == ("length", "complete")
    assert "write_file" in failure.message


async def test_a_whole_call_at_the_length_limit_is_kept() -> None:
    reply = await ask("anthropic", streamed(a_start(), *a_call(0, "toolu_X", "t", '{"a": 1}'), *a_end("max_tokens")))
    assert replied(reply).finish is FinishReason.LENGTH
    assert replied(reply).message.tool_uses == (ToolUseBlock("toolu_X", "t", {"a": 1}),)


@pytest.mark.parametrize(
    "raw",
    [
        '{"path": ',
        "[1]",
        '"text"',
        '{"n": NaN}',
        '{"n": 1e999}',
        "[" * 100_000,
        '{"a":' * 300 + "1" + "}" * 300,
        '{"a": 1} {"b": 2}',
    ],
)
async def test_words_that_are_no_object_are_kept_as_words(raw: str) -> None:
    # P9: nothing is guessed, and what is sent back is legal
    async with talk(
        "anthropic", streamed(a_start(), *a_call(0, "toolu_X", "t", raw), *a_end("tool_use")), FINE
    ) as conversation:
        reply = replied(await conversation.call())
        assert reply.message.tool_uses == (ToolUseBlock("toolu_X", "t", None, raw),)
        await conversation.call(replace(HELLO, messages=(*HELLO.messages, reply.message)))
        assert conversation.sent()["messages"][1]["content"][0]["input"] == {"invalid_json": raw}


async def test_calls_without_or_with_equal_ids_get_ids_of_their_own() -> None:
    # F27, P5
    events = [*a_call(0, "toolu_X", "t"), *a_call(1, "toolu_X", "t"), *a_call(2, "", "t")]
    reply = replied(await ask("anthropic", streamed(a_start(), *events, *a_end("tool_use"))))
    ids = [call.id for call in reply.message.tool_uses]
    assert ids[0] == "toolu_X"
    assert len(set(ids)) == 3
    assert reply.message.wire is not None
    assert [block["id"] for block in reply.message.wire["content"]] == ids


async def test_unknown_events_blocks_and_deltas_are_no_trouble() -> None:
    events = [
        {"type": "weather_report", "sky": "blue"},
        {"type": "ping"},
        *a_block(
            0,
            {"type": "server_tool_use", "id": "srv_1", "name": "web", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"q": 1}'},
        ),
        *a_block(
            1,
            {"type": "text", "text": ""},
            {"type": "smell_delta", "smell": "x"},
            {"type": "text_delta", "text": "Hi."},
        ),
    ]
    reply = replied(await ask("anthropic", streamed(a_start(), *events, *a_end())))
    assert reply.message.text == "Hi."
    opaque = OpaqueBlock("anthropic", {"type": "server_tool_use", "id": "srv_1", "name": "web", "input": {"q": 1}})
    assert reply.message.blocks[0] == opaque


async def test_halves_of_a_character_meet() -> None:
    # P19: each half is legal JSON, and neither is a character
    raw = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}\n\n'
    stream = sse(a_start(), {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    stream += raw % rb"\ud83d" + raw % rb"\ude00 \ud83d" + sse(*a_end())
    reply = replied(await ask("anthropic", lambda visit: visit.stream(stream)))
    assert reply.message.text == "😀 \ufffd"


async def test_one_json_body_in_place_of_a_stream() -> None:
    body = {
        "id": "msg_9",
        "type": "message",
        "role": "assistant",
        "model": "served-1",
        "content": [
            {"type": "text", "text": "Hi."},
            {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    reply = replied(await ask("anthropic", answered(200, body, "Request-Id: req_1")))
    assert reply.message.tool_uses == (ToolUseBlock("toolu_1", "t", {"a": 1}),)
    assert (reply.usage, reply.request_id) == (Usage(3, 4), "req_1")


async def test_usage_beyond_the_window_is_told() -> None:
    # b24
    failure = said(
        await ask(
            "anthropic",
            streamed(a_start(input_tokens=150_000, cache_read_input_tokens=60_000), *a_text(0, "What?"), *a_end()),
        )
    )
    assert failure.ended == "complete"
    assert failure.window_used == pytest.approx(1.05)
