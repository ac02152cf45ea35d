"""Any history: whatever is deleted, doubled, moved or cut off, the view is legal and real results keep their calls."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnessd.defence.line3_repair.transcript import receiver, repair
from harnessd.simulator.protocols.anthropic_rules import sign
from harnessd.simulator.protocols.responses_rules import seal
from tests.transcripts import PROTOCOLS, calls, refusal, results, spoken

TARGETS = {
    "anthropic": ("", "strict-alternation"),
    "openai-chat": ("", "strict-alternation", "mistral", "deepseek-thinking"),
    "openai-responses": ("", "strict-adjacency"),
}
CASES = [(protocol, target) for protocol in PROTOCOLS for target in TARGETS[protocol]]
REAL = "the real words of "


@st.composite
def talks(draw: st.DrawFn, protocol: str) -> list[Any]:
    """A valid transcript: words, calls made together, their results in any order, signed thoughts."""
    turns: list[Mapping[str, Any]] = []
    number = 0
    for round_ in range(draw(st.integers(1, 4))):
        turns.append({"user": f"Wish {round_}."})
        for _ in range(draw(st.integers(0, 2))):
            names = [f"c{number + n}" for n in range(draw(st.integers(1, 3)))]
            number += len(names)
            turns.append({"say": draw(st.sampled_from(["", "Working."])), "calls": names})
            turns.append({"results": [[name, REAL + name] for name in draw(st.permutations(names))]})
        turns.append({"say": f"Answer {round_}."})
    turns.append({"user": "The last wish."})
    return thoughtful(spoken(turns, protocol), protocol, draw(st.booleans()))


def thoughtful(messages: list[Any], protocol: str, thinks: bool) -> list[Any]:
    if not thinks or protocol == "openai-chat":
        return messages
    if protocol == "openai-responses":
        thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": seal("Hm.")}
        place = next((n for n, m in enumerate(messages) if m.get("role") == "assistant"), len(messages))
        return [*messages[:place], thought, *messages[place:]]
    for message in messages:
        if message["role"] == "assistant":
            message["content"].insert(0, {"type": "thinking", "thinking": "Hm.", "signature": sign("Hm.")})
            break
    return messages


@st.composite
def mangled(draw: st.DrawFn, messages: list[Any]) -> list[Any]:
    """Messages and blocks deleted, doubled, moved, shuffled, cut off."""
    for _ in range(draw(st.integers(1, 5))):
        if not messages:
            break
        at = draw(st.integers(0, len(messages) - 1))
        to = draw(st.integers(0, len(messages)))
        match draw(st.sampled_from(["delete", "double", "move", "head", "tail", "block"])):
            case "delete":
                del messages[at]
            case "double":
                messages.insert(to, copy.deepcopy(messages[at]))
            case "move":
                messages.insert(to, messages.pop(at))
            case "head":
                messages = messages[at:]
            case "tail":
                messages = messages[: at + 1]
            case _:
                _blocks(draw, messages, at)
    return messages


def _blocks(draw: st.DrawFn, messages: list[Any], at: int) -> None:
    content = messages[at].get("content")
    blocks = content if isinstance(content, list) else messages[at].get("tool_calls")
    if not blocks:
        return
    place = draw(st.integers(0, len(blocks) - 1))
    match draw(st.sampled_from(["delete", "double", "shuffle", "move"])):
        case "delete":
            del blocks[place]
        case "double":
            blocks.append(copy.deepcopy(blocks[place]))
        case "shuffle":
            blocks.reverse()
        case _:
            others = [m["content"] for m in messages if isinstance(m.get("content"), list) and m["content"]]
            if isinstance(content, list) and others:
                others[draw(st.integers(0, len(others) - 1))].append(blocks.pop(place))


@pytest.mark.parametrize(("protocol", "target"), CASES)
@given(data=st.data())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_damage_gives_a_legal_view(protocol: str, target: str, data: st.DataObject) -> None:
    # R4.7
    messages = data.draw(talks(protocol))
    damaged = data.draw(mangled(copy.deepcopy(messages)))
    before = copy.deepcopy(damaged)
    to = receiver(protocol, (target,) if target else ())
    found = repair(damaged, to)
    assert damaged == before
    assert refusal(found.messages, protocol, target) == ""
    names = {id_: arguments["cmd"] for id_, _, arguments in calls(found.messages)}
    shown = {}
    for call, words, _ in results(found.messages):
        if words.startswith(REAL):
            shown[words] = names[call]
            assert words == REAL + names[call]  # a result stands beside its own call
    asked = {arguments["cmd"] for _, _, arguments in calls(before)}
    for _, words, _ in results(before):
        name = words.removeprefix(REAL)
        if name in asked:
            assert words in shown, f"the result of {name} is lost"
    again = repair(found.messages, to)
    assert again.notes == ()
    assert json.dumps(again.messages) == json.dumps(found.messages)


@pytest.mark.parametrize(("protocol", "target"), CASES)
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_valid_talk_stays_as_it_is(protocol: str, target: str, data: st.DataObject) -> None:
    messages = data.draw(talks(protocol))
    if refusal(messages, protocol, target):
        return
    found = repair(messages, receiver(protocol, (target,) if target else ()))
    assert found.notes == ()
    assert all(one is other for one, other in zip(found.messages, messages, strict=True))


FIELDS = st.sampled_from([
    *("type", "role", "content", "text", "id", "call_id", "tool_use_id", "tool_call_id", "tool_calls", "function"),
    *("name", "arguments", "input", "output", "is_error", "source", "data", "thinking", "signature", "summary"),
])  # fmt: skip
WORDS = st.sampled_from([
    *("user", "assistant", "tool", "system", "text", "tool_use", "tool_result", "function_call", "reasoning"),
    *("function_call_output", "image", "message", "thinking", "c1"),
])  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["\x00", "\ud83d", " ", "{}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)
NEAR = st.dictionaries(FIELDS, WORDS | JUNK | st.lists(st.dictionaries(FIELDS, WORDS | JUNK, max_size=4), max_size=3))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(messages=st.lists(NEAR | JUNK, max_size=6))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_anything_at_all_gives_a_legal_view(protocol: str, messages: list[Any]) -> None:
    to = receiver(protocol)
    found = repair(messages, to)
    assert refusal(found.messages, protocol) == ""
    assert repair(found.messages, to).notes == ()
