"""A history that lost, altered or forged something is noticed; one that only grew is not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.simulated import SimulatedService
from tests.simulator.asking import ask, tools, user

TURNS = [
    {"when": {"turn": {"max": 2}}, "say": "Step {step}.", "call": {"tool": "bash", "args": {"command": "echo {step}"}}}
]
SCRIPT = {"history": "append_only", "turns": [*TURNS, {"say": "Done."}]}


def play_on(service: SimulatedService, messages: list[Any], turns: int, **more: Any) -> list[Any]:
    """The conversation some turns later."""
    for _ in range(turns):
        content = ask(service, "m", messages, **({"tools": tools("bash")} | more)).body["content"]
        result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": f"ran {len(messages)}"}
        messages = [*messages, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    return messages


def violations(service: SimulatedService) -> list[str]:
    return [entry["what"] for entry in service.requests_now()["violations"]]


@pytest.fixture(autouse=True)
def script(service: SimulatedService) -> None:
    service.control_now(scripts={"models": {"m": SCRIPT}})


def test_growth_and_repeats_are_fine(service: SimulatedService) -> None:
    messages = play_on(service, [user("Go.")], 2)
    for _ in range(3):
        ask(service, "m", messages, tools=tools("bash"))
    play_on(service, messages, 1)
    play_on(service, [user("Another task.")], 2)
    assert violations(service) == []


def test_a_lost_tail_is_noticed(service: SimulatedService) -> None:
    messages = play_on(service, [user("Go.")], 3)
    ask(service, "m", messages, tools=tools("bash"))
    ask(service, "m", messages[:-2], tools=tools("bash"))
    assert violations(service) == ["history shrank from 7 to 5 messages"]


def test_an_altered_result_is_noticed(service: SimulatedService) -> None:
    messages = play_on(service, [user("Go.")], 2)
    ask(service, "m", messages, tools=tools("bash"))
    altered = copy.deepcopy(messages)
    altered[2]["content"][0]["content"] = "something else"
    ask(service, "m", altered, tools=tools("bash"))
    assert "message 2 was altered" in violations(service)


def test_a_forged_answer_is_noticed(service: SimulatedService) -> None:
    messages = play_on(service, [user("Go.")], 1)
    messages[1]["content"][0]["text"] = "I never said this."
    ask(service, "m", messages, tools=tools("bash"))
    assert violations(service) == ["message 1 is not what was answered there"]


def test_a_changed_system_prompt_is_noticed(service: SimulatedService) -> None:
    # R4.8
    messages = play_on(service, [user("Go.")], 1, system="Be brief.")
    play_on(service, messages, 1, system="Be long.")
    assert violations(service) == ["system prompt changed within a conversation"]


def test_a_rollback_is_fine_where_allowed(service: SimulatedService) -> None:
    service.control_now(scripts={"models": {"m": SCRIPT | {"allow": ["branch"]}}})
    messages = play_on(service, [user("Go.")], 3)
    branch = [*messages[:3], user("The last way failed; try another.")]
    branch[2:4] = [{"role": "user", "content": [*messages[2]["content"], {"type": "text", "text": "Try another."}]}]
    ask(service, "m", branch, tools=tools("bash"))
    assert violations(service) == []


def test_a_last_word_without_tools_stands_beside(service: SimulatedService) -> None:
    messages = play_on(service, [user("Go.")], 2)
    ask(service, "m", messages, tools=tools("bash"), tool_choice={"type": "none"})
    play_on(service, messages, 1)
    assert violations(service) == []


def test_a_marker_names_the_conversation(service: SimulatedService) -> None:
    service.control_now(scripts={"models": {"m": SCRIPT | {"marker": r"task \w+"}}})
    ask(service, "m", play_on(service, [user("Go on with task k1.")], 2), tools=tools("bash"))
    ask(service, "m", [user("Summary of task k1.")], tools=tools("bash"))
    assert violations(service) == ["message 0 was altered"]
