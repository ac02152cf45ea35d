"""What Chat Completions refuses, in its own words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulated import SimulatedService
from tests.simulator.asking import chat, functions, post, user

CALL = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
OTHER = CALL | {"id": "call_2"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"}


def called(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def with_function(**change: str) -> dict[str, Any]:
    function = {"name": "bash", "arguments": "{}"} | change
    return CALL | {"function": function}


REFUSED: dict[str, tuple[list[Any], str]] = {
    "no message": ([], "Invalid 'messages': empty array."),
    "unknown role": ([{"role": "agent", "content": "x"}], "Invalid value: 'agent'. Supported values are: 'system',"),
    "no content": ([{"role": "user", "content": None}], "Invalid value for 'content': expected a string, got null."),
    "empty assistant": ([user("Hi."), {"role": "assistant", "content": ""}], "expected a non-empty string"),
    "content is an object": (
        [user("Hi."), called(CALL), RESULT | {"content": {"a": 1}}],
        "Invalid type for 'messages[2].content'",
    ),
    "tool without call": (
        [user("Hi."), RESULT],
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    ),
    "call without tool": (
        [user("Hi."), called(CALL, OTHER), RESULT, user("And?")],
        "The following tool_call_ids did not have response messages: call_2",
    ),
    "call at the end": ([user("Hi."), called(CALL)], "did not have response messages: call_1"),
    "two results": ([user("Hi."), called(CALL), RESULT, RESULT], "Duplicate value for 'tool_call_id' of 'call_1'"),
    "id twice": ([user("Hi."), called(CALL, CALL), RESULT], "Duplicate value for 'tool_call_id' of 'call_1'"),
    "no id": ([user("Hi."), called(CALL), {"role": "tool", "content": "x"}], "Missing required parameter:"),
    "empty calls": (
        [user("Hi."), {"role": "assistant", "content": "x", "tool_calls": []}],
        "[1].tool_calls': empty array",
    ),
    "arguments cut": ([user("Hi."), called(with_function(arguments='{"a": ')), RESULT], "expected a JSON object"),
    "blank name": ([user("Hi."), called(with_function(name="")), RESULT], "string does not match pattern"),
    "long id": ([user("Hi."), called(CALL | {"id": "x" * 41}), RESULT], "string too long."),
    "leaked key": ([user("Hi.") | {"node": 7}], "Unknown parameter: 'messages[0].node'."),
    "NUL": ([user("Hi."), called(CALL), RESULT | {"content": "a\x00b"}], "null character"),
    "assistant last": ([user("Hi."), {"role": "assistant", "content": "x"}], "Expected last role User or Tool"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(service: SimulatedService, case: str) -> None:
    messages, words = REFUSED[case]
    reply = chat(service, "echo", messages, tools=functions("bash"))
    assert (reply.status, words in reply.message) == (400, True), reply.message
    assert reply.body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": []}, "Invalid 'tools': empty array."),
        ({"tool_choice": "none"}, "'tool_choice' is only allowed when 'tools' are specified."),
        ({"stream_options": {"include_usage": True}}, "only allowed when 'stream' is enabled"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "at the same time is not supported"),
        ({"max_tokens": 64001}, "max_tokens is too large: 64001."),
        ({"max_tokens": 0}, "integer below minimum value"),
        ({"max_tokens": "9"}, "Invalid type for 'max_tokens': expected an integer, but got a string instead."),
        ({"task": 1}, "Unknown parameter: 'task'."),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]},
            "Invalid schema for function 'a'",
        ),
    ],
)
def test_refuses_fields(service: SimulatedService, more: dict[str, Any], words: str) -> None:
    reply = chat(service, "echo", [user("Hi.")], **more)
    assert (reply.status, words in reply.message) == (400, True), reply.message


def test_overflow_has_its_code(service: SimulatedService) -> None:
    service.control_now(scripts={"models": {"small": {"window": 8192, "turns": [{"say": "Ok."}]}}})
    reply = chat(service, "small", [user("word " * 7000)])
    assert reply.body["error"] == {
        "message": (
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 8757 tokens. "
            "Please reduce the length of the messages."
        ),
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    both = chat(service, "small", [user("word " * 5000)], max_tokens=4000)
    assert "you requested 10257 tokens (6257 in the messages, 4000 in the completion)" in both.message


def test_unknown_model_and_keys(service: SimulatedService) -> None:
    service.control_now(scripts={"models": {"locked": {"key": "sk-right-key-0001", "turns": [{"say": "Ok."}]}}})
    assert chat(service, "nobody", [user("Hi.")]).body["error"]["code"] == "model_not_found"
    assert chat(service, "locked", [user("Hi.")]).status == 401
    wrong = chat(service, "locked", [user("Hi.")], headers={"authorization": "Bearer sk-wrong-key-0001"})
    assert (wrong.status, wrong.body["error"]["code"]) == (401, "invalid_api_key")
    assert "wrong-key" not in wrong.message
    assert chat(service, "locked", [user("Hi.")], headers={"authorization": "Bearer sk-right-key-0001"}).status == 200


def test_bad_json(service: SimulatedService) -> None:
    reply = post(service, "/v1/chat/completions", b"{")
    assert (reply.status, "could not parse the JSON body" in reply.message) == (400, True)


@pytest.mark.parametrize(
    ("dialect", "messages", "words"),
    [
        ("mistral", [user("Hi."), called(CALL), RESULT], "must be a-z, A-Z, 0-9, with a length of 9"),
        ("deepseek-thinking", [user("Hi."), called(CALL), RESULT], "Missing `reasoning_content` field"),
        ("strict-alternation", [user("Hi."), user("Again.")], "must alternate user/assistant"),
        ("strict-alternation", [user("Hi."), {"role": "system", "content": "x"}], "must be at the beginning"),
    ],
)
def test_dialects(service: SimulatedService, dialect: str, messages: list[Any], words: str) -> None:
    plain = chat(service, "echo", messages, tools=functions("bash"))
    assert plain.status == 200
    service.control_now(scripts={"models": {"d": {"dialect": dialect, "turns": [{"say": "Ok."}]}}})
    assert words in chat(service, "d", messages, tools=functions("bash")).message
