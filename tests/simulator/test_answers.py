"""What the two services answer: order of events, pieces, usage, cache, finish reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.simulated import SimulatedService
from tests.simulator.asking import VERSION, ask, chat, functions, post, tools, user

TWO_CALLS = {
    "turns": [
        {
            "think": "Both at once.",
            "say": "I look at both files, 两个都看。",
            "call": [
                {"tool": "read_file", "args": {"path": "a.txt"}},
                {"tool": "read_file", "args": {"path": "{first_user}", "limit": "{step:int}"}},
            ],
        }
    ]
}


@pytest.fixture(autouse=True)
def scripts(service: SimulatedService) -> None:
    service.control_now(scripts={"models": {"two": TWO_CALLS}})


def test_messages_stream_in_the_real_order(service: SimulatedService) -> None:
    reply = ask(service, "two", [user("b.txt")], tools=tools("read_file"), stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    kinds = [event["type"] for event in reply.events]
    assert kinds[:3] == ["message_start", "content_block_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    opened = [event["content_block"]["type"] for event in reply.events if event["type"] == "content_block_start"]
    assert opened == ["thinking", "text", "tool_use", "tool_use"]
    assert [event["index"] for event in reply.events if event["type"] == "content_block_stop"] == [0, 1, 2, 3]
    assert reply.events[-2]["delta"]["stop_reason"] == "tool_use"


def test_messages_stream_and_document_say_the_same(service: SimulatedService) -> None:
    whole = ask(service, "two", [user("b.txt")], tools=tools("read_file")).body
    events = ask(service, "two", [user("b.txt")], tools=tools("read_file"), stream=True).events
    parts: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            words = delta.get("text", delta.get("partial_json", delta.get("thinking", "")))
            parts[event["index"]] = parts.get(event["index"], "") + words
    assert parts[0] == whole["content"][0]["thinking"]
    assert parts[1] == whole["content"][1]["text"]
    assert json.loads(parts[2]) == whole["content"][2]["input"] == {"path": "a.txt"}
    assert json.loads(parts[3]) == whole["content"][3]["input"] == {"path": "b.txt", "limit": 1}
    # The delta's output is a running total that replaces the first figure.
    assert events[0]["message"]["usage"]["output_tokens"] == 1
    assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_chat_stream_and_document_say_the_same(service: SimulatedService) -> None:
    more: dict[str, Any] = {"tools": functions("read_file")}
    message = chat(service, "two", [user("b.txt")], **more).body["choices"][0]["message"]
    usage = {"include_usage": True}
    reply = chat(service, "two", [user("b.txt")], stream=True, stream_options=usage, **more)
    assert reply.body.endswith("data: [DONE]\n\n")
    deltas = [choice["delta"] for event in reply.events for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas:
        for part in delta.get("tool_calls", []):
            call = calls.setdefault(part["index"], {"id": part.get("id", ""), "name": "", "arguments": ""})
            call["name"] += part["function"].get("name", "")
            call["arguments"] += part["function"]["arguments"]
    assert [call["arguments"] for call in calls.values()] == [c["function"]["arguments"] for c in message["tool_calls"]]
    assert [call["id"] for call in calls.values()] == [call["id"] for call in message["tool_calls"]]
    assert sum(1 for delta in deltas for part in delta.get("tool_calls", []) if "id" in part) == 2
    assert reply.events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert (reply.events[-1]["choices"], reply.events[-1]["usage"]["total_tokens"] > 0) == ([], True)
    assert [event["usage"] for event in reply.events[:-1]] == [None] * (len(reply.events) - 1)


def test_chat_stream_without_usage_has_none(service: SimulatedService) -> None:
    reply = chat(service, "echo", [user("Hi.")], stream=True)
    assert all("usage" not in event for event in reply.events)


@pytest.mark.parametrize(
    ("finish", "anthropic", "openai"),
    [
        ("stop", "end_turn", "stop"),
        ("length", "max_tokens", "length"),
        ("refusal", "refusal", "stop"),
        ("content_filter", "refusal", "content_filter"),
    ],
)
def test_finish_reasons(service: SimulatedService, finish: str, anthropic: str, openai: str) -> None:
    service.control_now(scripts={"models": {"f": {"turns": [{"say": "No.", "finish": finish}]}}})
    assert ask(service, "f", [user("Hi.")]).body["stop_reason"] == anthropic
    choice = chat(service, "f", [user("Hi.")]).body["choices"][0]
    assert choice["finish_reason"] == openai
    assert (choice["message"]["refusal"] is not None) == (finish == "refusal")


def test_an_answer_over_max_tokens_is_cut(service: SimulatedService) -> None:
    service.control_now(
        scripts={
            "models": {
                "long": {"turns": [{"call": {"tool": "write_file", "args": {"path": "a", "content": "x" * 4000}}}]},
                "talk": {"turns": [{"say": "word " * 200}]},
            }
        }
    )
    said = ask(service, "talk", [user("Hi.")], max_tokens=10).body
    assert (said["stop_reason"], len(said["content"][0]["text"])) == ("max_tokens", 40)
    reply = ask(service, "long", [user("Hi.")], max_tokens=100, tools=tools("write_file"), stream=True)
    written = "".join(
        event["delta"].get("partial_json", "") for event in reply.events if "index" in event and "delta" in event
    )
    assert reply.events[-2]["delta"]["stop_reason"] == "max_tokens"
    with pytest.raises(json.JSONDecodeError):
        json.loads(written)


def test_same_transcript_same_answer_and_ids(service: SimulatedService) -> None:
    one = ask(service, "two", [user("b.txt")], tools=tools("read_file")).body["content"]
    two = ask(service, "two", [user("b.txt")], tools=tools("read_file")).body["content"]
    assert one == two
    service.control_now(scripts={"models": {"two": TWO_CALLS | {"ids": "fresh"}}})
    three = ask(service, "two", [user("b.txt")], tools=tools("read_file")).body["content"]
    assert [block["input"] for block in three[2:]] == [block["input"] for block in one[2:]]
    assert three[2]["id"] != one[2]["id"]


def test_anthropic_cache_follows_the_bytes(service: SimulatedService) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": "Rule. " * 1000} | mark]
    first = ask(service, "echo", [user("Hi.")], system=system).body["usage"]
    assert (first["cache_read_input_tokens"], first["cache_creation_input_tokens"] > 1400) == (0, True)
    again = ask(service, "echo", [user("Other words.")], system=system).body["usage"]
    assert again["cache_read_input_tokens"] == first["cache_creation_input_tokens"]
    assert again["cache_creation_input_tokens"] == 0
    longer = [
        user("Hi."),
        {"role": "assistant", "content": [{"type": "text", "text": "Hi." * 900} | mark]},
        user("Go."),
    ]
    moved = ask(service, "echo", longer, system=system).body["usage"]
    assert moved["cache_read_input_tokens"] == first["cache_creation_input_tokens"]
    assert moved["cache_creation_input_tokens"] > 600
    altered = [{"type": "text", "text": "Rule! " * 1000} | mark]
    assert ask(service, "echo", [user("Hi.")], system=altered).body["usage"]["cache_read_input_tokens"] == 0
    unmarked = ask(service, "echo", [user("Hi.")], system="Rule. " * 1000).body["usage"]
    assert unmarked["cache_read_input_tokens"] == unmarked["cache_creation_input_tokens"] == 0


def test_openai_cache_is_part_of_the_prompt(service: SimulatedService) -> None:
    messages = [{"role": "system", "content": "Rule. " * 1000}, user("Hi.")]
    first = chat(service, "echo", messages).body["usage"]
    again = chat(service, "echo", [*messages, {"role": "assistant", "content": "Hi."}, user("Go.")]).body["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert 1400 < again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]


def test_a_script_may_state_its_usage(service: SimulatedService) -> None:
    usage = {"input": 100, "cache_read": 20000, "cache_write": 700, "output": 50}
    service.control_now(scripts={"models": {"u": {"turns": [{"say": "Ok.", "usage": usage}]}}})
    found = ask(service, "u", [user("Hi.")]).body["usage"]
    assert (found["input_tokens"], found["cache_read_input_tokens"], found["output_tokens"]) == (100, 20000, 50)
    assert chat(service, "u", [user("Hi.")]).body["usage"]["prompt_tokens"] == 20800


def test_headers_name_the_request_and_the_limits(service: SimulatedService) -> None:
    one = ask(service, "echo", [user("Hi.")]).headers
    assert one["request-id"].startswith("req_")
    assert one["anthropic-ratelimit-requests-reset"].endswith("Z")
    other = chat(service, "echo", [user("Hi.")]).headers
    assert (other["x-ratelimit-reset-tokens"], other["x-request-id"] != one["request-id"]) == ("6m0s", True)


def test_models_are_listed_in_the_form_asked_for(service: SimulatedService) -> None:
    assert service.ask_now("GET", "/v1/models")["object"] == "list"
    names = [entry["id"] for entry in service.ask_now("GET", "/v1/models")["data"]]
    assert {"fix-test", "mend", "report", "echo"} <= set(names)


def test_a_turn_needs_its_tools_offered(service: SimulatedService) -> None:
    turns = [
        {"call": {"tool": "bash", "args": {}}},
        {"when": {"user_matches": "please"}, "say": "Without tools, then."},
    ]
    service.control_now(scripts={"models": {"b": {"turns": turns}}})
    reply = ask(service, "b", [user("please")], tools=tools("read_file"))
    assert reply.body["content"] == [{"type": "text", "text": "Without tools, then."}]
    assert service.requests_now()["violations"] == []
    none = ask(service, "b", [user("go")], tools=tools("read_file")).body
    assert none["content"][0]["text"] == "I have no line for this point of the conversation."
    assert [entry["what"] for entry in service.requests_now()["violations"]] == ["turn 0: bash was not offered"]


def test_without_tools_a_model_sums_up(service: SimulatedService) -> None:
    said = ask(service, "fix-test", [user("Summarise the work on the parser.")]).body["content"][0]["text"]
    assert [line for line in said.splitlines() if line.startswith("## ")] == [
        *("## Goal", "## Progress", "## Decisions", "## Files", "## Next steps")
    ]
    assert "the parser" in said


def test_malformed_arguments_by_script(service: SimulatedService) -> None:
    turns = [{"call": {"tool": "bash", "raw_args": '{"command": '}}]
    service.control_now(scripts={"models": {"raw": {"turns": turns}}})
    call = chat(service, "raw", [user("Hi.")], tools=functions("bash")).body["choices"][0]["message"]["tool_calls"][0]
    assert call["function"]["arguments"] == '{"command": '


def test_keep_alive_serves_many_requests(service: SimulatedService) -> None:
    for n in range(3):
        body = {"model": "echo", "max_tokens": 50, "messages": [user(f"No {n}.")]}
        assert post(service, "/v1/messages", body, VERSION).body["content"][0]["text"] == f"No {n}."
