"""Holding answers back, faults at run time, and what is reported."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.simulated import SimulatedService, simulator
from tests.simulator.asking import Reply, ask, tools, user


def in_background(service: SimulatedService, word: str, **more: Any) -> asyncio.Task[Reply]:
    return asyncio.create_task(asyncio.to_thread(ask, service, "echo", [user(word)], **more))


async def test_answers_are_held_and_let_go(service: SimulatedService) -> None:
    await service.control(hold=True)
    waiting = [in_background(service, word) for word in ("one", "two")]
    await service.wait_held(2)
    assert [entry["ended"] for entry in (await service.requests())["last"]] == ["held", "held"]
    await service.control(release=1)
    done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(left)) == (1, 1)
    await service.control(release=True)
    assert [(await task).status for task in waiting] == [200, 200]
    assert ask(service, "echo", [user("three")]).status == 200
    assert (await service.requests())["peak"] == 2


async def test_an_answer_is_held_in_mid_stream(service: SimulatedService) -> None:
    await service.control(hold={"model": "echo", "turn": 0, "after": 2})
    task = in_background(service, "one", stream=True)
    await service.wait_held(1)
    assert not task.done()
    await service.control(release=True)
    assert (await task).events[-1]["type"] == "message_stop"


async def test_a_hold_concerns_its_model(service: SimulatedService) -> None:
    await service.control(hold={"model": "other-*"})
    assert ask(service, "echo", [user("Hi.")]).status == 200


async def test_faults_at_run_time(service: SimulatedService) -> None:
    await service.control(faults={"model": "ec*", "plan": [{"at": {"times": "always"}, "do": "overloaded"}]})
    assert ask(service, "echo", [user("Hi.")]).status == 529
    await service.control(clear_faults=True)
    assert ask(service, "echo", [user("Hi.")]).status == 200


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"hodl": True}, "control.hodl: unknown key; did you mean hold?"),
        ({"faults": {"plan": [{"request": 1, "do": "overlaoded"}]}}, "did you mean overloaded?"),
        ({"faults": {"plan": [{"do": "reset"}]}}, "either `request: N` or `at:"),
        ({"faults": {"rate": [{"p": 7, "do": "reset"}]}}, "a ratio between 0 and 1"),
        ({"scripts": {"models": {"m": {"turns": [{"wen": {}}]}}}}, "turns[0].wen: unknown key; did you mean when?"),
        ({"scripts": {"models": {"m": {"turns": [{"when": {"matches": "("}}]}}}}, "not a regular expression"),
        ({"scripts": {"models": {"m": {"turns": [{"delay": "soon"}]}}}}, "'soon' is no duration"),
    ],
)
async def test_a_wrong_order_is_explained(service: SimulatedService, order: dict[str, Any], words: str) -> None:
    with pytest.raises(AssertionError) as caught:
        await service.control(**order)
    assert words in str(caught.value)


async def test_counts(service: SimulatedService) -> None:
    ask(service, "echo", [user("Hi.")])
    ask(service, "echo", [user("Hi.")])
    ask(service, "nobody", [user("Hi.")])
    seen = await service.requests()
    assert (seen["total"], seen["by_model"], seen["by_status"]) == (3, {"echo": 2, "nobody": 1}, {"200": 2, "404": 1})
    assert list(seen["by_position"].values()) == [2]
    assert [entry["attempt"] for entry in seen["last"]] == [1, 2, 0]
    await service.reset()
    assert (await service.requests())["total"] == 0


async def test_what_the_model_was_shown_can_be_read(service: SimulatedService) -> None:
    messages = [
        user("Look."),
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True}]},
    ]
    ask(service, "echo", messages, tools=tools("bash"), system="Be brief.")
    entry = (await service.requests(shown=True))["last"][-1]
    assert entry["shown"] == {
        "system": "Be brief.",
        "tools": ["bash"],
        "messages": [
            {"role": "user", "text": "Look.", "calls": [], "results": []},
            {
                "role": "assistant",
                "text": "",
                "calls": [{"tool": "bash", "arguments": {"command": "ls"}, "id": "t1"}],
                "results": [],
            },
            {
                "role": "user",
                "text": "",
                "calls": [],
                "results": [{"tool": "bash", "text": "no", "failed": True, "id": "t1"}],
            },
        ],
    }
    assert entry["said"] == "Look."
    assert "shown" not in (await service.requests())["last"][-1]


async def test_the_kit_starts_and_ends_a_process_of_its_own() -> None:
    async with simulator({"hello": {"turns": [{"say": "Hello."}]}}) as service:
        assert ask(service, "hello", [user("Hi.")]).body["content"][0]["text"] == "Hello."
        assert (await service.requests())["by_model"] == {"hello": 1}


async def test_a_bad_count_is_refused_at_load(service: SimulatedService) -> None:
    with pytest.raises(AssertionError, match=r"turns\[0\]\.when\.turn: 'two' is no count"):
        await service.control(scripts={"models": {"m": {"turns": [{"when": {"turn": "two"}, "say": "x"}]}}})
