"""The Responses API: what it refuses and what it answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.simulated import SimulatedService
from tests.simulator.asking import Reply, post, user

CALL = {"type": "function_call", "call_id": "call_1", "name": "bash", "arguments": '{"command": "ls"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"}
TOOLS = [{"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}}]


def respond(service: SimulatedService, model: str, items: Any, **more: Any) -> Reply:
    body = {"model": model, "input": items, "store": False, "tools": TOOLS} | more
    return post(service, "/v1/responses", body)


REFUSED: dict[str, tuple[Any, str]] = {
    "no item": ([], "Invalid 'input': empty array."),
    "unknown role": ([{"role": "tool", "content": "x"}], "Invalid value: 'tool'."),
    "wrong part": (
        [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}],
        "Invalid value: 'input_text'",
    ),
    "output without call": ([user("Hi."), OUTPUT], "No tool call found for function call output with call_id call_1."),
    "call without output": ([user("Hi."), CALL], "No tool output found for function call call_1."),
    "two outputs": ([user("Hi."), CALL, OUTPUT, OUTPUT], "Duplicate function call output with call_id call_1."),
    "call twice": ([user("Hi."), CALL, CALL, OUTPUT], "Duplicate function call with call_id call_1."),
    "arguments cut": ([user("Hi."), CALL | {"arguments": "{"}, OUTPUT], "expected a JSON object in a string"),
    "item id": ([user("Hi."), CALL | {"id": "call_1"}, OUTPUT], "Expected an ID that begins with 'fc'."),
    "leaked key": ([user("Hi.") | {"node": 1}], "Unknown parameter: 'input[0].node'."),
    "thought alone": ([user("Hi."), THOUGHT, user("Again.")], "without its required following item"),
    "foreign thought": ([user("Hi."), THOUGHT, CALL, OUTPUT], "could not be verified"),
    "thought not stored": (
        [user("Hi."), {"type": "reasoning", "id": "rs_1", "summary": []}, CALL, OUTPUT],
        "Items are not persisted when `store` is set to false.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(service: SimulatedService, case: str) -> None:
    items, words = REFUSED[case]
    reply = respond(service, "echo", items)
    assert (reply.status in (400, 404), words in reply.message) == (True, True), reply.message


def test_refuses_fields(service: SimulatedService) -> None:
    assert "max_output_tokens" in respond(service, "echo", "Hi.", max_output_tokens=3).message
    assert "Unknown parameter: 'messages'." in respond(service, "echo", "Hi.", messages=[]).message
    lost = respond(service, "echo", "Hi.", previous_response_id="resp_1")
    assert lost.body["error"]["code"] == "previous_response_not_found"
    service.control_now(scripts={"models": {"small": {"window": 1000, "turns": [{"say": "x"}]}}})
    assert respond(service, "small", "word " * 1000).body["error"]["code"] == "context_length_exceeded"


@pytest.fixture
def calling(service: SimulatedService) -> str:
    turns = [
        {
            "when": {"first": True},
            "think": "Look.",
            "say": "I look.",
            "call": {"tool": "bash", "args": {"command": "ls"}},
        },
        {"when": {"matches": "(?P<name>.+)"}, "say": "Found {name}."},
    ]
    service.control_now(scripts={"models": {"c": {"history": "append_only", "turns": turns}}})
    return "c"


def test_stream_and_document_say_the_same(service: SimulatedService, calling: str) -> None:
    whole = respond(service, calling, "Go.").body
    events = respond(service, calling, "Go.", stream=True).events
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message", "function_call"]
    arguments = "".join(e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta")
    assert json.loads(arguments) == json.loads(whole["output"][2]["arguments"]) == {"command": "ls"}
    assert events[-1]["response"]["usage"] == whole["usage"]


def test_a_conversation_goes_round(service: SimulatedService, calling: str) -> None:
    output = respond(service, calling, "Go.").body["output"]
    answered = {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "a.txt"}
    reply = respond(service, calling, [user("Go."), *output, answered])
    assert reply.body["output"][0]["content"][0]["text"] == "Found a.txt."
    assert service.requests_now()["violations"] == []


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
def test_endings(service: SimulatedService, finish: str, status: str, reason: str | None) -> None:
    service.control_now(scripts={"models": {"f": {"turns": [{"say": "Half", "finish": finish}]}}})
    ended = respond(service, "f", "Hi.", stream=True).events[-1]
    assert (ended["type"], ended["response"]["status"]) == (f"response.{status}", status)
    assert (ended["response"]["incomplete_details"] or {}).get("reason") == reason


def test_faults_speak_this_protocol_too(service: SimulatedService) -> None:
    service.control_now(
        faults={"model": "echo", "plan": [{"request": 1, "do": {"error_event": "overflow", "after": 2}}]}
    )
    reply = respond(service, "echo", "Hi.", stream=True)
    assert (reply.status, reply.events[-1]["type"]) == (200, "error")
    assert reply.events[-1]["error"]["code"] == "context_length_exceeded"
    service.control_now(faults={"model": "echo", "plan": [{"request": 2, "do": "done_without_finish"}]})
    assert respond(service, "echo", "Hi.", stream=True).events[-1]["type"] == "response.output_item.done"
