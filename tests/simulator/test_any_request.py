"""Whatever a client sends, the rules answer: a transcript, or a refusal in words; never a fault of ours."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnessd.simulator.protocols import BY_PATH
from harnessd.simulator.protocols.wire import Limits, Refused
from tests.simulator.asking import functions, tools

WORDS = st.sampled_from(
    ["user", "assistant", "system", "tool", "text", "tool_use", "tool_result", "image", "{}", "", " ", "x"]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS | st.just("type"), inner, max_size=2),
    max_leaves=4,
)
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        "model": "m",
        "max_tokens": 100,
        "stream": True,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": tools("bash", "read_file"),
        "tool_choice": {"type": "auto"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Go."}, PICTURE]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a"}, PICTURE]},
                    {"type": "text", "text": "Go on."},
                ],
            },
        ],
    },
    "/v1/chat/completions": {
        "model": "m",
        "max_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": functions("bash", "read_file"),
        "tool_choice": "auto",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "Go."}, {"type": "image_url", "image_url": {"url": "x"}}],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a"}]},
        ],
    },
    "/v1/responses": {
        "model": "m",
        "instructions": "Be brief.",
        "max_output_tokens": 100,
        "stream": True,
        "store": False,
        "tools": [{"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}}],
        "tool_choice": "auto",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Go."}]},
            {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}", "id": "fc_1"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Ok."}]},
            {"role": "user", "content": "On."},
        ],
    },
}


def spoil(data: st.DataObject, value: Any) -> Any:
    """The same JSON with one place changed: replaced, taken out, or doubled."""
    inside = isinstance(value, (dict, list)) and bool(value)
    if not inside or data.draw(st.integers(0, 9)) == 0:
        return data.draw(VALUES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = data.draw(st.sampled_from(keys))
    act = data.draw(st.sampled_from(["within", "within", "within", "within", "without", "twice"]))
    if act == "without":
        del value[key]
    elif act == "twice" and isinstance(value, list):
        value.insert(key, copy.deepcopy(value[key]))
    else:
        value[key] = spoil(data, value[key])
    return value


@pytest.mark.parametrize("path", BODIES)
def test_the_bodies_are_legal_before_they_are_spoilt(path: str) -> None:
    transcript = BY_PATH[path].read(copy.deepcopy(BODIES[path]), Limits())
    assert [result.tool for result in transcript.results] == ["bash"]


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rules_answer_anything(path: str, data: st.DataObject) -> None:
    body = copy.deepcopy(BODIES[path])
    for _ in range(data.draw(st.integers(1, 2))):
        field = data.draw(st.sampled_from(list(body)))
        body[field] = spoil(data, body[field])
    body["model"] = "m"
    refusal = None
    try:
        assert BY_PATH[path].read(body, Limits()).fingerprint
    except Refused as refused:
        refusal = refused.problem
    assert refusal is None or (refusal.message and 400 <= refusal.status < 500)
