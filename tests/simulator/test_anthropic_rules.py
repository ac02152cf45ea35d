"""What the Messages API refuses, in its own words."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from tests.simulated import SimulatedService
from tests.simulator.asking import VERSION, ask, post, tools, user

CALL = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "ls"}}
OTHER = CALL | {"id": "toolu_2"}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.txt"}


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def told(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


REFUSED: dict[str, tuple[list[Any], str]] = {
    "no message": ([], "messages: at least one message is required"),
    "assistant first": ([said(text("Hi.")), user("Hi.")], 'messages: first message must use the "user" role'),
    "prefill": ([user("Hi."), said(text("I"))], "does not support assistant message prefill"),
    "system inside": ([user("Hi."), {"role": "system", "content": "x"}], 'messages: Unexpected role "system".'),
    "unknown role": ([{"role": "tool", "content": "x"}], "messages.0.role: Input should be 'user' or 'assistant'"),
    "empty content": ([{"role": "user", "content": []}], "messages.0: all messages must have non-empty content"),
    "blank text": ([user("  \n")], "messages: text content blocks must contain non-whitespace text"),
    "empty text": ([told(text(""))], "messages: text content blocks must be non-empty"),
    "leaked key": ([user("Hi.") | {"node": 7}], "messages.0.node: Extra inputs are not permitted"),
    "leaked block key": (
        [told(text("Hi.") | {"seq": 7})],
        "messages.0.content.0.text.seq: Extra inputs are not permitted",
    ),
    "unknown block": ([told({"type": "opaque"})], "messages.0.content.0: Input tag 'opaque' found using 'type'"),
    "call of a user": ([told(CALL)], "`tool_use` blocks can only be in `assistant` messages"),
    "no result": (
        [user("Hi."), said(CALL), user("And?")],
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1. Each",
    ),
    "one of two results": (
        [user("Hi."), said(CALL, OTHER), told(RESULT)],
        "`tool_use` ids were found without `tool_result` blocks immediately after: toolu_2.",
    ),
    "words before the result": (
        [user("Hi."), said(CALL), told(text("Here:"), RESULT)],
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1.",
    ),
    "result without call": (
        [user("Hi."), said(text("Ok.")), told(RESULT)],
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1.",
    ),
    "two results": (
        [user("Hi."), said(CALL), told(RESULT, RESULT)],
        "messages.2.content.1: each tool_use must have a single result.",
    ),
    "id twice": ([user("Hi."), said(CALL, CALL), told(RESULT)], "messages: `tool_use` ids must be unique"),
    "input is a string": (
        [user("Hi."), said(CALL | {"input": "{}"}), told(RESULT)],
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
    ),
    "id of another service": (
        [user("Hi."), said(CALL | {"id": "call|1"}), told(RESULT)],
        "messages.1.content.0.tool_use.id: String should match pattern",
    ),
    "foreign thinking": (
        [user("Hi."), said({"type": "thinking", "thinking": "Hm.", "signature": "abc"}, text("Ok.")), user("Go.")],
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(service: SimulatedService, case: str) -> None:
    messages, words = REFUSED[case]
    reply = ask(service, "echo", messages, tools=tools("bash"))
    assert reply.status == 400
    assert reply.body["type"] == "error"
    assert reply.body["error"]["type"] == "invalid_request_error"
    assert words in reply.message
    assert service.requests_now()["refusals"][0]["message"] == reply.message


@pytest.mark.parametrize(
    "messages",
    [
        [user("Hi."), user("Again.")],  # neighbours of one role are merged
        [
            user("Hi."),
            said(text("One."), CALL, OTHER),
            told(RESULT | {"tool_use_id": "toolu_2"}, RESULT, text("Go on.")),
        ],
        [user("Hi."), said(CALL), told(RESULT | {"is_error": True, "content": [text("no such file")]})],
    ],
)
def test_takes_what_is_legal(service: SimulatedService, messages: list[Any]) -> None:
    assert ask(service, "echo", messages, tools=tools("bash")).status == 200


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"max_tokens": None}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        (
            {"max_tokens": 64001},
            "max_tokens: 64001 > 64000, which is the maximum allowed number of output tokens for echo",
        ),
        ({"task": "8k3v"}, "task: Extra inputs are not permitted"),
        ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "tools.0.custom.name: String should match"),
        ({"tools": [{"name": "a"}]}, "tools.0.custom.input_schema: Field required"),
        ({"tools": [{"name": "a", "input_schema": {"type": "string"}}]}, "input_schema.type: Input should be 'object'"),
        ({"tools": tools("a", "a")}, "tools: Tool names must be unique."),
        ({"tool_choice": {"type": "none"}}, "tool_choice may only be specified while providing tools"),
        ({"system": [{"type": "text", "text": ""}]}, "system: text content blocks must be non-empty"),
    ],
)
def test_refuses_fields(service: SimulatedService, more: dict[str, Any], words: str) -> None:
    reply = ask(service, "echo", [user("Hi.")], **more)
    assert (reply.status, words in reply.message) == (400, True), reply.message


def test_max_tokens_is_demanded(service: SimulatedService) -> None:
    reply = post(service, "/v1/messages", {"model": "echo", "messages": [user("Hi.")]}, VERSION)
    assert reply.message == "max_tokens: Field required"


def test_a_history_with_calls_needs_its_tools(service: SimulatedService) -> None:
    messages = [user("Hi."), said(CALL), told(RESULT)]
    assert "must define tools" in ask(service, "echo", messages).message
    last = ask(service, "echo", messages, tools=tools("bash"), tool_choice={"type": "none"})
    assert last.status == 200


def test_at_most_four_cache_marks(service: SimulatedService) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    reply = ask(service, "echo", [told(*(text(str(n)) | mark for n in range(5)))])
    assert reply.message == "A maximum of 4 blocks with cache_control may be provided. Found 5."


def test_overflow_names_both_figures(service: SimulatedService) -> None:
    service.control_now(scripts={"models": {"small": {"window": 3000, "max_output": 2000, "turns": [{"say": "Ok."}]}}})
    reply = ask(service, "small", [user("word " * 3000)], max_tokens=100)
    assert reply.message == "prompt is too long: 3757 tokens > 3000 maximum"
    near = ask(service, "small", [user("word " * 1000)], max_tokens=2000)
    assert near.message.startswith("input length and `max_tokens` exceed context limit: 1257 + 2000 > 3000")


def test_edited_thinking_is_noticed_and_true_thinking_is_taken(service: SimulatedService) -> None:
    service.control_now(scripts={"models": {"t": {"turns": [{"think": "Let me see.", "say": "Ok."}]}}})
    content = ask(service, "t", [user("Hi.")]).body["content"]
    assert content[0]["type"] == "thinking"
    history = [user("Hi."), {"role": "assistant", "content": content}, user("Go.")]
    assert ask(service, "t", history).status == 200
    content[0]["thinking"] = "Let me sea."
    assert "Invalid `signature`" in ask(service, "t", history).message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model": ', "The request body is not valid JSON: "),
        (b'{"model": "\xff"}', "The request body is not valid JSON: "),
        (b'{"model": "echo", "max_tokens": NaN}', "The request body is not valid JSON: unexpected character"),
        (b'{"model": "echo\\ud83d"}', "no low surrogate in string"),
        (b"[]", "The request body is not valid JSON"),
    ],
)
def test_refuses_what_is_not_json(service: SimulatedService, body: bytes, words: str) -> None:
    reply = post(service, "/v1/messages", body, VERSION)
    assert (reply.status, words in reply.message) == (400, True), reply.message


def test_unknown_model_wrong_key_and_missing_version(service: SimulatedService) -> None:
    service.control_now(scripts={"models": {"locked": {"key": "sk-right", "turns": [{"say": "Ok."}]}}})
    unknown = ask(service, "nobody", [user("Hi.")])
    assert (unknown.status, unknown.body["error"]["type"], unknown.message) == (404, "not_found_error", "model: nobody")
    missing = ask(service, "locked", [user("Hi.")])
    assert (missing.status, missing.message) == (401, "x-api-key header is required")
    wrong = ask(service, "locked", [user("Hi.")], headers={"x-api-key": "sk-wrong"})
    assert (wrong.status, wrong.message) == (401, "invalid x-api-key")
    assert ask(service, "locked", [user("Hi.")], headers={"x-api-key": "sk-right"}).status == 200
    bare = post(service, "/v1/messages", {"model": "echo", "max_tokens": 9, "messages": [user("Hi.")]})
    assert bare.message == "anthropic-version: header is required"
    assert "sk-" not in str(service.requests_now())


def test_a_body_over_32_mb_is_too_large(service: SimulatedService) -> None:
    reply = post(service, "/v1/messages", b'{"model": "echo"' + b" " * (32 * 1024 * 1024), VERSION)
    assert (reply.status, reply.body["error"]["type"]) == (413, "request_too_large")


def png(width: int, height: int) -> dict[str, Any]:
    """A picture that is only a header."""
    header = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + bytes(9)
    data = base64.b64encode(header).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def test_pictures_and_papers_have_limits(service: SimulatedService) -> None:
    assert ask(service, "echo", [told(text("Look."), png(3000, 100))]).status == 200
    many = ask(service, "echo", [told(text("Look."), *[png(3000, 100)] * 21)])
    assert "exceed max allowed size for many-image requests: 2000 pixels" in many.message
    assert "8000 pixels" in ask(service, "echo", [told(png(9000, 10))]).message
    broken = png(1, 1)
    broken["source"]["data"] = "no base64!"
    inside = {**RESULT, "content": [broken]}
    reply = ask(service, "echo", [user("Hi."), said(CALL), told(inside)], tools=tools("bash"))
    assert "messages.2.content.0.tool_result.content.0.image.source.base64.data: Invalid base64 data" in reply.message
    pages = base64.b64encode(b"%PDF-1.7 " + b"/Type /Page " * 101).decode()
    paper = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": pages}}
    assert "A maximum of 100 PDF pages" in ask(service, "echo", [told(paper)]).message
