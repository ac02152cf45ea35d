"""Chat Completions: requests as they leave, answers as the many servers give them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from harnessd.domain.messages import (
    FinishReason,
    Message,
    ModelRequest,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    message_from_json,
    message_to_json,
)
from harnessd.net import Clients
from harnessd.providers import Endpoint
from harnessd.providers.openai_chat import encode
from tests.providers.speech import (
    HELLO,
    KEY,
    answered,
    ask,
    o_call,
    o_chunk,
    o_texts,
    o_usage,
    replied,
    said,
    streamed,
    talk,
)

FINE = streamed(*o_texts(["All ", "well."]))


def encoded(base_url: str, request: ModelRequest) -> dict[str, Any]:
    endpoint = Endpoint("primary", base_url, "model-1", lambda: None, Clients(), 0, 0, lambda: 0.0)
    return encode(request, endpoint)


async def test_a_text_answer() -> None:
    async with talk("openai-chat", FINE) as conversation:
        reply = replied(await conversation.call())
        body = conversation.sent()
    assert reply.message.blocks == (TextBlock("All well."),)
    assert reply.finish is FinishReason.STOP
    assert reply.usage == Usage(20, 5)
    assert (reply.served_by, reply.request_id) == ("served-1", "chatcmpl-1")
    assert conversation.progress == ["text", "text"]
    head = conversation.server.visits[0].head.decode()
    assert head.startswith("POST /v1/chat/completions HTTP/1.1")
    assert f"Bearer {KEY}" in head
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_tokens"] == 1000
    assert body["tools"][0]["function"]["name"] == "read_file"


@pytest.mark.parametrize(
    ("path", "query", "target"),
    [
        ("/api/v1/", "", b"/api/v1/chat/completions"),
        (
            "/openai/deployments/d",
            "?api-version=2024-06-01",
            b"/openai/deployments/d/chat/completions?api-version=2024-06-01",
        ),
        ("/v1/chat/completions", "", b"/v1/chat/completions"),
    ],
)
async def test_the_address_is_understood_as_operators_write_it(path: str, query: str, target: bytes) -> None:
    async with talk("openai-chat", FINE, path=path, query=query) as conversation:
        replied(await conversation.call())
        assert conversation.server.visits[0].head.startswith(b"POST " + target + b" ")


async def test_parallel_calls_go_back_as_they_came() -> None:
    events = [
        o_chunk({"role": "assistant", "content": None, "reasoning_content": "Hm"}),
        o_chunk({"reasoning_content": "m."}),
        o_chunk({"content": "Reading."}),
        o_call(0, "call_A", "read_file", '{"path":'),
        o_call(0, None, None, ' "z"}'),
        o_call(1, "call_B", "read_file"),
        o_chunk(finish="tool_calls"),
        "[DONE]",
    ]
    async with talk("openai-chat", streamed(*events), FINE) as conversation:
        reply = replied(await conversation.call())
        assert reply.finish is FinishReason.TOOL_USE
        assert reply.message.blocks == (
            OpaqueBlock("openai-chat", {"reasoning_content": "Hmm."}),
            TextBlock("Reading."),
            ToolUseBlock("call_A", "read_file", {"path": "z"}),
            ToolUseBlock("call_B", "read_file", {}),
        )
        results = Message(
            "user", (TextBlock("Hurry."), ToolResultBlock("call_A", "x"), ToolResultBlock("call_B", "", is_error=True))
        )
        stored = message_from_json(message_to_json(reply.message))
        await conversation.call(replace(HELLO, messages=(*HELLO.messages, stored, results)))
        sent = conversation.sent()["messages"]
    assert sent[2] == {
        "role": "assistant",
        "content": "Reading.",
        "reasoning_content": "Hmm.",
        "tool_calls": [
            {"id": "call_A", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "z"}'}},
            {"id": "call_B", "type": "function", "function": {"name": "read_file", "arguments": "{}"}},
        ],
    }
    assert sent[3:] == [
        {"role": "tool", "tool_call_id": "call_A", "content": "x"},
        {"role": "tool", "tool_call_id": "call_B", "content": ""},
        {"role": "user", "content": "Hurry."},
    ]


async def test_what_nobody_touched_leaves_byte_identical() -> None:
    # R4.8
    async with talk("openai-chat", FINE) as conversation:
        messages = HELLO.messages
        for _ in range(3):
            reply = replied(await conversation.call(replace(HELLO, messages=messages)))
            messages = (*messages, reply.message, Message("user", (TextBlock("Go on."),)))
        bodies = [conversation.sent(number)["messages"] for number in range(3)]
    for earlier, later in pairwise(bodies):
        assert later[: len(earlier)] == earlier


@pytest.mark.parametrize(
    "chunks",
    [
        [o_call(None, "c1", "f", '{"a":1}'), o_call(None, "c2", "g", '{"b":2}')],  # no index
        [o_call(0, "c1", "f", '{"a":1}'), o_call(0, "c2", "g", '{"b":2}')],  # all calls have index 0
        [
            o_call(0, "c1", "f"),
            o_call(1, "c2", "g"),
            o_call(1, None, None, '{"b":2}'),
            o_call(0, None, None, '{"a":1}'),
        ],
        [o_call(0, "c1", "f", {"a": 1}), o_call(1, "c2", "g", {"b": 2})],  # objects for text (Ollama)
        [o_call(0, "c1", "f", '{"a"'), o_call(0, "c1", "f", ":1}"), o_call(1, "c2", "g", '{"b":2}')],  # name repeated
        [o_call(None, "c1", "f", '{"a"'), o_call(None, None, None, ":1}"), o_call(None, "c2", "g", '{"b":2}')],
    ],
)
async def test_calls_are_put_together_whatever_their_indices(chunks: list[dict[str, Any]]) -> None:
    reply = replied(await ask("openai-chat", streamed(*chunks, o_chunk(finish="tool_calls"), "[DONE]")))
    assert reply.message.tool_uses == (ToolUseBlock("c1", "f", {"a": 1}), ToolUseBlock("c2", "g", {"b": 2}))


async def test_calls_without_ids_get_some() -> None:
    chunks = [o_call(None, None, "f", '{"a":1}'), o_call(None, None, "g", "{}")]
    reply = replied(await ask("openai-chat", streamed(*chunks, o_chunk(finish="stop"), "[DONE]")))
    assert [call.name for call in reply.message.tool_uses] == ["f", "g"]
    assert len({call.id for call in reply.message.tool_uses}) == 2
    assert all(call.id for call in reply.message.tool_uses)
    assert reply.finish is FinishReason.TOOL_USE


async def test_a_legacy_function_call() -> None:
    chunks = [
        o_chunk({"function_call": {"name": "f", "arguments": '{"a"'}}),
        o_chunk({"function_call": {"arguments": ": 1}"}}),
    ]
    reply = replied(await ask("openai-chat", streamed(*chunks, o_chunk(finish="function_call"), "[DONE]")))
    assert reply.message.tool_uses[0].arguments == {"a": 1}


@pytest.mark.parametrize("raw", ['{"path": ', "[1]", '{"n": Infinity}'])
async def test_words_that_are_no_object_are_kept_as_words(raw: str) -> None:
    events = [o_call(0, "c1", "f", raw), o_chunk(finish="tool_calls"), "[DONE]"]
    async with talk("openai-chat", streamed(*events), FINE) as conversation:
        reply = replied(await conversation.call())
        assert reply.message.tool_uses == (ToolUseBlock("c1", "f", None, raw),)
        await conversation.call(replace(HELLO, messages=(*HELLO.messages, reply.message)))
        arguments = conversation.sent()["messages"][2]["tool_calls"][0]["function"]["arguments"]
    # a08: what is sent back is a JSON object
    assert arguments.startswith('{"invalid_json":')


async def test_a_call_cut_by_the_length_limit_is_no_call() -> None:
    events = [
        o_call(0, "c1", "write_file", '{"path": "a.txt", "con'),
        o_chunk(finish="length"),
        o_usage(7, 8),
        "[DONE]",
    ]
    failure = said(await ask("openai-chat", streamed(*events)))
    assert (failure.call_cut, failure.finish, failure.ended) == (True, "length", "complete")
    assert failure.usage == Usage(7, 8)


async def test_text_cut_by_the_length_limit_is_an_answer() -> None:
    reply = replied(await ask("openai-chat", streamed(*o_texts(["Half an ans"], "length"))))
    assert (reply.finish, reply.message.text) == (FinishReason.LENGTH, "Half an ans")


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (
            {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 90}},
            Usage(10, 5, 90),
        ),
        ({"prompt_tokens": 100, "completion_tokens": 5, "prompt_cache_hit_tokens": 64}, Usage(36, 5, 64)),
        ({"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": 40}, Usage(60, 5, 40)),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 90, "cache_write_tokens": 7},
            },
            Usage(3, 5, 90, 7),
        ),
        ({"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 125}, Usage(100, 25)),
        ({"prompt_tokens": None, "completion_tokens": "many", "prompt_tokens_details": None}, Usage()),
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 90}},
            Usage(0, 5, 10),
        ),
    ],
)
async def test_usage(usage: dict[str, Any], counted: Usage) -> None:
    events = [o_chunk({"content": "x"}), o_chunk(finish="stop"), {"choices": [], "usage": usage}, "[DONE]"]
    assert replied(await ask("openai-chat", streamed(*events))).usage == counted


@pytest.mark.parametrize("place", ["choice", "x_groq", "finish chunk"])
async def test_usage_in_other_places(place: str) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    last = o_chunk(finish="stop")
    if place == "choice":
        last["choices"][0]["usage"] = usage
    else:
        last |= {"x_groq": {"usage": usage}} if place == "x_groq" else {"usage": usage}
    assert replied(await ask("openai-chat", streamed(o_chunk({"content": "x"}), last, "[DONE]"))).usage == Usage(9, 2)


async def test_words_and_done_without_a_finish_reason_are_an_answer_with_a_mark() -> None:
    # b60: some local servers never send a reason
    reply = replied(await ask("openai-chat", streamed(o_chunk({"content": "All tests pass."}), "[DONE]")))
    assert (reply.finish, reply.message.text, reply.marks) == (
        FinishReason.STOP,
        "All tests pass.",
        ("finish_reason_missing",),
    )


@pytest.mark.parametrize("chunks", [[], [o_chunk({"content": "I write."}), o_call(0, "c1", "write", '{"a": 1}')]])
async def test_a_call_or_nothing_before_done_is_a_cut(chunks: list[dict[str, Any]]) -> None:
    # R3.7: a call without a reason may be the first of more, or lack its end
    events = [o_chunk({"role": "assistant", "content": ""}), *chunks, "[DONE]"]
    failure = said(await ask("openai-chat", streamed(*events)))
    assert (failure.ended, failure.status) == ("cut", 200)


async def test_a_finish_reason_without_done_is_an_end() -> None:
    reply = replied(
        await ask("openai-chat", streamed(o_chunk({"content": "x"}), o_chunk(finish="stop"), o_usage(3, 1)))
    )
    assert reply.usage == Usage(3, 1)


@pytest.mark.parametrize(
    "events",
    [
        [o_chunk({"content": "x"}), o_chunk(finish="content_filter"), "[DONE]"],
        [o_chunk(finish="content_filter"), "[DONE]"],
    ],
)
async def test_a_filtered_answer_is_no_answer(events: list[Any]) -> None:
    # b73
    failure = said(await ask("openai-chat", streamed(*events)))
    assert (failure.finish, failure.ended) == ("content_filter", "complete")


async def test_a_refusal_in_its_own_field() -> None:
    failure = said(
        await ask(
            "openai-chat",
            streamed(o_chunk({"refusal": "I can't "}), o_chunk({"refusal": "help."}), o_chunk(finish="stop"), "[DONE]"),
        )
    )
    assert failure.finish == "refusal"
    assert "I can't help." in failure.message


@pytest.mark.parametrize("finish", ["error", "abort"])
async def test_a_service_that_gave_up_gave_no_answer(finish: str) -> None:
    failure = said(await ask("openai-chat", streamed(o_chunk({"content": "x"}), o_chunk(finish=finish), "[DONE]")))
    assert failure.ended == "error"


async def test_one_json_body_in_place_of_a_stream() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}],
    }
    body = {
        "id": "x",
        "model": "m",
        "choices": [{"message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    reply = replied(await ask("openai-chat", answered(200, body)))
    assert reply.message.tool_uses == (ToolUseBlock("c1", "f", {}),)
    assert reply.usage == Usage(3, 4)


async def test_usage_beyond_the_window_is_told() -> None:
    # b24
    body = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "What?"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 210000, "completion_tokens": 9},
    }
    failure = said(await ask("openai-chat", answered(200, body)))
    assert failure.window_used == pytest.approx(1.05)
    assert failure.ended == "complete"


def test_what_the_services_differ_in() -> None:
    call = Message("assistant", (ToolUseBlock("toolu_01ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdef", "f", {}),))
    result = Message("user", (ToolResultBlock("toolu_01ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdef", "x"),))
    request = replace(HELLO, messages=(*HELLO.messages, call, result))
    openai = encoded("https://api.openai.com/v1", request)
    assert openai["max_completion_tokens"] == 1000
    assert "max_tokens" not in openai
    mistral = encoded("https://api.mistral.ai/v1", request)
    assert "stream_options" not in mistral
    assert encoded("https://api.deepseek.com", request)["messages"][2]["reasoning_content"] == ""
    for body, length in ((openai, 40), (mistral, 9)):
        id_ = body["messages"][2]["tool_calls"][0]["id"]
        assert len(id_) == length
        assert body["messages"][3]["tool_call_id"] == id_


def test_own_wire_of_another_model_leaves_its_thoughts_at_home() -> None:
    content = {"role": "assistant", "content": "Hi.", "reasoning_content": "secret sauce"}
    message = Message(
        "assistant", (TextBlock("Hi."),), {"protocol": "openai-chat", "model": "other", "content": content}
    )
    body = encoded("https://host.example/v1", replace(HELLO, messages=(*HELLO.messages, message)))
    assert body["messages"][2] == {"role": "assistant", "content": "Hi."}


def test_a_message_of_another_protocol_is_made_of_its_blocks() -> None:
    blocks = (
        OpaqueBlock("anthropic", {"type": "thinking"}),
        TextBlock("a"),
        TextBlock("b"),
        ToolUseBlock("t1", "f", None, "{oops"),
    )
    message = Message("assistant", blocks, {"protocol": "anthropic", "model": "model-1", "content": []})
    body = encoded("https://host.example/v1", replace(HELLO, messages=(*HELLO.messages, message)))
    assert body["messages"][2] == {
        "role": "assistant",
        "content": "a\nb",
        "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"invalid_json":"{oops"}'}}
        ],
    }
