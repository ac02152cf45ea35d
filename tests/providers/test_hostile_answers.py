"""Answers by a hostile service: any JSON in any place gives an answer, an error or nonsense, never a crash of ours."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.domain.failure import Failure
from harnessd.domain.messages import Message, ModelReply, message_from_json, message_to_json
from harnessd.net import Clients, Redactor
from harnessd.providers import Endpoint
from harnessd.providers.answer import Answer, StreamError, conclude
from harnessd.providers.anthropic import encode as encode_anthropic
from harnessd.providers.anthropic_stream import AnthropicReader
from harnessd.providers.evidence import Witness
from harnessd.providers.openai_chat import encode as encode_openai_chat
from harnessd.providers.openai_chat_stream import OpenAIChatReader
from harnessd.providers.openai_responses import encode as encode_openai_responses
from harnessd.providers.openai_responses_stream import OpenAIResponsesReader
from harnessd.providers.recorded.foreign import ForeignReader
from harnessd.providers.sse import SseEvent
from harnessd.providers.wire import dump
from tests.providers.speech import (
    HELLO,
    a_call,
    a_end,
    a_start,
    a_text,
    o_call,
    o_chunk,
    o_usage,
    r_answer,
    r_call,
    r_text,
    r_thought,
)

READERS: dict[str, type[AnthropicReader | OpenAIChatReader | OpenAIResponsesReader | ForeignReader]] = {
    "anthropic": AnthropicReader,
    "openai-chat": OpenAIChatReader,
    "openai-responses": OpenAIResponsesReader,
    "gemini": ForeignReader,
}
SPEECH: dict[str, list[dict[str, Any]]] = {
    "anthropic": [a_start(), *a_text(0, "Hi."), *a_call(1, "toolu_1", "f", '{"a": 1}'), *a_end("tool_use")],
    "openai-chat": [
        o_chunk({"role": "assistant", "content": "Hi.", "reasoning_content": "Hm."}),
        o_call(0, "c1", "f", '{"a": 1}'),
        o_chunk(finish="tool_calls"),
        o_usage(3, 4, prompt_tokens_details={"cached_tokens": 1}),
    ],
    "openai-responses": r_answer(r_thought(0, "Hm."), r_text(1, "Hi."), r_call(2, "c1", "f", '{"a": 1}')),
    "gemini": [
        {"candidates": [{"content": {"parts": [{"text": "Hi."}]}}]},
        {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 3}},
    ],
}
WHOLE: dict[str, dict[str, Any]] = {
    "anthropic": {
        "id": "msg_1",
        "type": "message",
        "content": [{"type": "text", "text": "Hi."}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3},
    },
    "openai-chat": {
        "id": "x",
        "choices": [{"message": {"content": "Hi.", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}}],
        "usage": {"prompt_tokens": 3},
    },
    "openai-responses": r_answer(r_thought(0, "Hm."), r_text(1, "Hi."), r_call(2, "c1", "f", "{}"))[-1]["response"],
    "gemini": {"candidates": [{"content": {"parts": [{"text": "Hi."}]}, "finishReason": "STOP"}]},
}
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.just(1e308) | st.text(max_size=3) | st.just("\ud83d"),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "id", "index"]), inner)
    ),
    max_leaves=4,
) | st.just(json.loads("[" * 200 + "]" * 200))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of a JSON value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, part in parts for place in places(part, (*path, name)))]


def replaced(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    """The value with something else at a path."""
    if not path:
        return junk
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], junk)
    return copy


def usable(protocol: str, answer: Answer) -> None:
    """What came of it can be stored, given back and sent, to its own service and to the other."""
    witness = Witness("model/primary", protocol, Redactor(()), 100, lambda: 0.0)
    result = conclude(answer, witness, 200, {})
    message = Message("assistant", answer.blocks, {"protocol": protocol, "model": "m", "content": answer.content})
    again = message_from_json(json.loads(json.dumps(message_to_json(message), ensure_ascii=False).encode()))
    for model in ("m", "other"):
        endpoint = Endpoint("primary", "http://127.0.0.1:1", model, lambda: None, Clients(), 0, 0, lambda: 0.0)
        request = type(HELLO)("primary", "", (*HELLO.messages, again), (), 10)
        assert dump(encode_anthropic(request, endpoint))
        assert dump(encode_openai_chat(request, endpoint))
        assert dump(encode_openai_responses(request, endpoint))
    assert isinstance(result, ModelReply | Failure)


@pytest.mark.parametrize("protocol", sorted(READERS))
@given(data=st.data())
def test_any_json_in_any_place_of_a_stream(protocol: str, data: st.DataObject) -> None:
    # S11
    events = list(SPEECH[protocol])
    for _ in range(data.draw(st.integers(1, 3))):
        number = data.draw(st.integers(0, len(events) - 1))
        place = data.draw(st.sampled_from(places(events[number])))
        events[number] = replaced(events[number], place, data.draw(JUNK))
    reader = READERS[protocol]("m")
    with suppress(ValueError, StreamError):
        for event in events:
            reader.read(SseEvent("", json.dumps(event)))
    if reader.whole:
        usable(protocol, reader.answer())


@pytest.mark.parametrize("protocol", sorted(READERS))
@given(data=st.data())
def test_any_json_in_any_place_of_a_body(protocol: str, data: st.DataObject) -> None:
    body = WHOLE[protocol]
    place = data.draw(st.sampled_from([place for place in places(body) if place]))
    reader = READERS[protocol]("m")
    with suppress(ValueError, StreamError):
        reader.read_whole(json.loads(json.dumps(replaced(body, place, data.draw(JUNK)))))
    if reader.whole:
        usable(protocol, reader.answer())


@given(
    body=JUNK | st.dictionaries(st.sampled_from(["error", "message", "detail", "code", "status"]), JUNK),
    status=st.integers(300, 599),
)
def test_any_json_as_an_error(body: Any, status: int) -> None:
    witness = Witness("model/primary", "anthropic", Redactor(()), 100, lambda: 0.0)
    failure = witness.refusal(status, {}, json.dumps(body).encode())
    assert failure.status == status
    assert failure.message
    assert json.dumps([failure.message, failure.code, failure.type, failure.body], ensure_ascii=False).encode()
