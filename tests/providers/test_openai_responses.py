"""The Responses API: requests as they leave, answers as services give them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from harnessd.domain.messages import (
    Block,
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
from harnessd.providers.openai_responses import encode
from tests.providers.speech import (
    HELLO,
    KEY,
    answered,
    ask,
    r_answer,
    r_call,
    r_end,
    r_item,
    r_start,
    r_text,
    r_thought,
    replied,
    said,
    streamed,
    talk,
)

FINE = streamed(*r_answer(r_text(0, "All ", "well.")))
WORK = r_answer(r_thought(0, "Hm."), r_call(1, "call_1", "f", '{"a":', " 1}"), r_call(2, "call_2", "f", '{"a": 2}'))


def encoded(request: ModelRequest, base_url: str = "https://api.openai.com", model: str = "model-1") -> dict[str, Any]:
    return encode(request, Endpoint("primary", base_url, model, lambda: None, Clients(), 0, 0, lambda: 0.0))


def history(*messages: Message) -> ModelRequest:
    return replace(HELLO, messages=(*HELLO.messages, *messages))


async def test_a_text_answer() -> None:
    async with talk("openai-responses", FINE) as conversation:
        reply = replied(await conversation.call())
        body = conversation.sent()
    assert reply.message.blocks == (TextBlock("All well."),)
    assert (reply.finish, reply.usage) == (FinishReason.STOP, Usage(20, 5))
    assert (reply.served_by, reply.request_id, reply.marks) == ("served-1", "resp_1", ())
    assert [word for word in conversation.progress if word] == ["text", "text"]
    assert (body["store"], body["stream"], body["max_output_tokens"]) == (False, True, 1000)
    assert body["instructions"] == "Be brief."
    assert body["tools"][0]["strict"] is False
    assert "tool_choice" not in body
    head = conversation.server.visits[0].head.decode()
    assert head.startswith("POST /v1/responses HTTP/1.1")
    assert f"Bearer {KEY}" in head


@pytest.mark.parametrize(
    ("path", "query", "target"),
    [
        ("", "", b"/v1/responses"),
        ("/v1/", "", b"/v1/responses"),
        ("/v1/responses", "", b"/v1/responses"),
        ("/openai/v1", "?api-version=preview", b"/openai/v1/responses?api-version=preview"),
    ],
)
async def test_the_address_is_understood_as_operators_write_it(path: str, query: str, target: bytes) -> None:
    async with talk("openai-responses", FINE, path=path, query=query) as conversation:
        replied(await conversation.call())
        assert conversation.server.visits[0].head.split(b" ")[1] == target


async def test_thoughts_and_parallel_calls_go_back_unchanged() -> None:
    # R4.8
    async with talk("openai-responses", streamed(*WORK), FINE) as conversation:
        reply = replied(await conversation.call())
        assert reply.finish is FinishReason.TOOL_USE
        calls = reply.message.tool_uses
        assert [(call.id, call.arguments) for call in calls] == [("call_1", {"a": 1}), ("call_2", {"a": 2})]
        assert isinstance(reply.message.blocks[0], OpaqueBlock)
        stored = message_from_json(json.loads(json.dumps(message_to_json(reply.message), sort_keys=True)))
        words: list[Block] = [TextBlock("By the way.")]
        words += [ToolResultBlock(call.id, f"result {call.id}") for call in calls]
        replied(await conversation.call(history(stored, Message("user", tuple(words)))))
        sent = conversation.sent()["input"]
    assert sent[1:4] == WORK[-1]["response"]["output"]
    assert sent[1]["encrypted_content"] == "c2VhbGVk"
    assert [(item["type"], item.get("call_id")) for item in sent[4:]] == [
        ("function_call_output", "call_1"),
        ("function_call_output", "call_2"),
        ("message", None),
    ]
    assert set(conversation.progress) >= {"thinking", "tool_use", "text"}


async def test_what_nobody_touched_leaves_byte_identical() -> None:
    # R4.8
    async with talk("openai-responses", FINE) as conversation:
        messages = HELLO.messages
        for turn in range(4):
            reply = replied(await conversation.call(replace(HELLO, messages=messages)))
            messages = (*messages, reply.message, Message("user", (TextBlock(f"Go on, {turn}."),)))
        bodies = [conversation.server.visits[number].body for number in range(4)]
    for earlier, later in pairwise(bodies):
        start = earlier.index(b'"input":[')
        kept = earlier[start : earlier.index(b'],"instructions"')]
        assert later[start:].startswith(kept)


def test_a_thought_that_cannot_be_read_again_stays_at_home() -> None:
    # a20: alone, unsealed, or of another model; an id ties what follows to a thought that is not there
    call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    bare = {"type": "reasoning", "id": "rs_1", "summary": []}

    def sent(content: list[dict[str, Any]], model: str = "model-1") -> list[dict[str, Any]]:
        wire = {"protocol": "openai-responses", "model": model, "content": content}
        found: list[dict[str, Any]] = encoded(history(Message("assistant", (), wire)))["input"][1:]
        return found

    nameless = {name: value for name, value in call.items() if name != "id"}
    assert sent([sealed, call]) == [sealed, call]
    assert sent([bare, call]) == [nameless]
    assert sent([sealed]) == []
    assert sent([call, sealed]) == [nameless]
    assert sent([sealed, call], model="another") == [nameless]


def test_a_message_of_another_protocol_is_made_of_its_blocks() -> None:
    long_id = "toolu_" + "x" * 100
    blocks = (
        OpaqueBlock("anthropic", {"type": "thinking"}),
        TextBlock("Looking."),
        ToolUseBlock(long_id, "f", {"a": 1}),
        ToolUseBlock("b", "f", None, "{bad"),
    )
    other = Message("assistant", blocks, {"protocol": "anthropic", "model": "m", "content": []})
    results = Message("user", (ToolResultBlock(long_id, "one"), ToolResultBlock("b", "two")))
    said_, first, second, one, two = encoded(history(other, results))["input"][1:]
    assert said_["content"] == [{"type": "output_text", "text": "Looking."}]
    assert first["call_id"] == one["call_id"]
    assert len(first["call_id"]) <= 64
    assert json.loads(second["arguments"]) == {"invalid_json": "{bad"}
    assert (two["call_id"], two["output"]) == ("b", "two")


def test_what_the_services_differ_in() -> None:
    # models that think nothing refuse the wish for sealed thoughts; less than 16 tokens are refused
    assert encoded(HELLO)["include"] == ["reasoning.encrypted_content"]
    assert "include" not in encoded(HELLO, model="gpt-4.1-mini")
    assert encoded(replace(HELLO, max_tokens=1))["max_output_tokens"] == 16
    last = encoded(replace(HELLO, tool_choice="none"))
    assert (last["tool_choice"], len(last["tools"])) == ("none", 1)
    assert "tool_choice" not in encoded(replace(HELLO, tool_choice="none", tools=()))
    azure = Endpoint("primary", "https://x.openai.azure.com", "m", lambda: None, Clients(), 0, 0, lambda: 0.0)
    assert azure.bearer("k") == {"api-key": "k"}


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", FinishReason.LENGTH), ("something_new", FinishReason.LENGTH)],
)
async def test_an_incomplete_answer_is_what_was_said(reason: str, finish: FinishReason) -> None:
    # b62: a clean end, no broken stream; what it used is counted
    details = {"reason": reason}
    usage = {"input_tokens": 120, "input_tokens_details": {"cached_tokens": 100}, "output_tokens": 16384}
    answer = r_answer(r_text(0, "Half"), status="incomplete", incomplete_details=details, usage=usage)
    reply = replied(await ask("openai-responses", streamed(*answer)))
    assert (reply.finish, reply.message.text, reply.usage) == (finish, "Half", Usage(20, 16384, 100))


async def test_deltas_alone_are_an_answer() -> None:
    # b62: some servers send neither items nor indices, and an end without output
    events = [
        {"type": "response.output_text.delta", "delta": "Half an "},
        {"type": "response.output_text.delta", "delta": "answer"},
        {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}},
    ]
    reply = replied(await ask("openai-responses", streamed(*events)))
    assert (reply.finish, reply.message.text) == (FinishReason.LENGTH, "Half an answer")
    again = encoded(history(reply.message))["input"][1]
    assert (again["role"], again["content"][0]["text"]) == ("assistant", "Half an answer")


async def test_a_call_cut_by_the_length_limit_is_no_call() -> None:
    # R3.7
    opening = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "write", "arguments": ""}
    delta = {"type": "response.function_call_arguments.delta", "delta": '{"path": "a'}
    call = r_item(0, opening, delta, status="incomplete", arguments='{"path": "a')
    details = {"reason": "max_output_tokens"}
    failure = said(
        await ask("openai-responses", streamed(*r_answer(call, status="incomplete", incomplete_details=details)))
    )
    assert (failure.call_cut, failure.finish, failure.ended) == (True, "length", "complete")
    assert "'write'" in failure.message


@pytest.mark.parametrize(
    ("events", "finish"),
    [
        (
            r_answer(r_text(0, "x"), status="incomplete", incomplete_details={"reason": "content_filter"}),
            "content_filter",
        ),
        (
            r_answer(
                r_item(
                    0,
                    {"type": "message", "id": "msg_1", "role": "assistant", "content": []},
                    {"type": "response.refusal.delta", "delta": "I will not."},
                    content=[{"type": "refusal", "refusal": "I will not."}],
                )
            ),
            "refusal",
        ),
    ],
)
async def test_a_refused_answer_is_no_answer(events: list[Any], finish: str) -> None:
    failure = said(await ask("openai-responses", streamed(*events)))
    assert (failure.finish, failure.ended, failure.status) == (finish, "complete", 200)
    if finish == "refusal":
        assert "I will not." in failure.message


@pytest.mark.parametrize(
    ("event", "code", "words"),
    [
        ({"type": "error", "code": "server_error", "message": "Sorry.", "param": None}, "server_error", "Sorry."),
        ({"type": "error", "error": {"code": "too_long", "message": "Too long."}}, "too_long", "Too long."),
        (r_end(status="failed", error={"code": "slow_down", "message": "Slow down."}), "slow_down", "Slow down."),
        (r_end(status="cancelled"), None, "the response cancelled"),
    ],
)
async def test_an_error_inside_the_answer(event: dict[str, Any], code: str | None, words: str) -> None:
    # R3.7, b06
    failure = said(await ask("openai-responses", streamed(r_start(), *r_text(0, "Half"), event)))
    assert (failure.ended, failure.status, failure.code, failure.message) == ("error", 200, code, words)


@pytest.mark.parametrize("tail", [[], ["[DONE]"]])
async def test_a_close_without_a_terminal_event_is_a_cut(tail: list[Any]) -> None:
    # R3.7, b64: whatever had come whole before
    failure = said(await ask("openai-responses", streamed(r_start(), *r_text(0, "All well."), *tail)))
    assert (failure.ended, failure.status) == ("cut", 200)


async def test_one_json_body_in_place_of_a_stream() -> None:
    whole = WORK[-1]["response"]
    reply = replied(await ask("openai-responses", answered(200, whole)))
    assert [call.id for call in reply.message.tool_uses] == ["call_1", "call_2"]
    failure = said(
        await ask("openai-responses", answered(200, whole | {"status": "failed", "error": {"message": "No."}}))
    )
    assert (failure.ended, failure.message) == ("error", "No.")


async def test_equal_and_missing_call_ids_are_made_distinct() -> None:
    events = r_answer(r_call(0, "same", "f", "{}"), r_call(1, "same", "f", "{}"), r_call(2, "", "f", "{}"))
    reply = replied(await ask("openai-responses", streamed(*events)))
    ids = [call.id for call in reply.message.tool_uses]
    assert len(set(ids)) == 3
    assert [item["call_id"] for item in encoded(history(reply.message))["input"][1:]] == ids


async def test_usage_of_a_broken_answer_is_told() -> None:
    failure = said(await ask("openai-responses", streamed(r_start(), r_end(status="failed", error={"message": "No."}))))
    assert failure.usage == Usage(20, 5)
