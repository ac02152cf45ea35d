"""Hedging: a second request where the first has no event yet, and only for calls without tools."""

from __future__ import annotations

import asyncio
from pathlib import Path

from harnessd.domain.failure import Failure
from harnessd.domain.messages import FinishReason, Message, ModelReply, ModelRequest, TextBlock, ToolSpec, Usage
from harnessd.domain.ports import CallClocks, Progress
from harnessd.policy import TaskFacts, TaskPolicies
from harnessd.runtime.gateway import Gateway, Prices, Service
from harnessd.runtime.traffic.caller import Caller
from tests.policy.written import policies
from tests.runtime.traffic_scene import failed, request, scene

HEDGED = policies("kind: retry\nmodel: {hedge_after: 1s}").for_task(TaskFacts("t1", "builder"), {}, {}, {})
PLAIN = policies().for_task(TaskFacts("t1", "builder"), {}, {}, {})


class Waiting:
    """A model service: the world's edge. For each request an answer, or seconds until a good one."""

    def __init__(self, *plays: ModelReply | Failure | float, event: bool = False) -> None:
        self.plays, self.event, self.ended = plays, event, 0
        self.calls = 0

    async def call(self, request: ModelRequest, clocks: CallClocks, progress: Progress) -> ModelReply | Failure:
        number, self.calls = self.calls, self.calls + 1
        play = self.plays[number]
        if self.event:
            progress("text")
        if not isinstance(play, float):
            return play
        try:
            await asyncio.sleep(play)
        except asyncio.CancelledError:
            self.ended += 1
            raise
        return good(f"{number} of {request.model} within {clocks.call_s:g}s")

    async def aclose(self) -> None:
        pass


def good(text: str) -> ModelReply:
    return ModelReply(Message("assistant", (TextBlock(text),)), FinishReason.STOP, Usage(1, 1))


async def answer(
    service: Waiting, folder: Path, wanted: ModelRequest, policy: TaskPolicies = HEDGED
) -> ModelReply | Failure:
    async with scene(folder) as one:
        gateway = Gateway({"primary": Service(service, Prices())}, traffic=one.traffic)
        found = await gateway.call(wanted, lambda _: None, Caller("t1", "builder", policies=policy))
        assert one.traffic.desk.running("model/primary") == 0
        return found


async def test_the_second_answers_and_the_first_is_ended(tmp_path: Path) -> None:  # R3.16
    service = Waiting(30.0, 0.0)
    found = await answer(service, tmp_path, request())
    assert isinstance(found, ModelReply)
    assert found.message.text.startswith("1 of")
    assert (service.calls, service.ended) == (2, 1)


async def test_a_first_event_in_time_needs_no_second(tmp_path: Path) -> None:  # R3.16
    service = Waiting(1.2, 0.0, event=True)
    assert isinstance(await answer(service, tmp_path, request()), ModelReply)
    assert service.calls == 1


async def test_nothing_is_hedged_with_tools_or_without_a_policy(tmp_path: Path) -> None:  # R3.16
    tools = (ToolSpec("bash", "Runs.", {"type": "object"}),)
    with_tools = ModelRequest("primary", "", request().messages, tools, 100)
    for wanted, policy in ((with_tools, HEDGED), (request(), PLAIN)):
        service = Waiting(1.2, 0.0)
        assert isinstance(await answer(service, tmp_path, wanted, policy), ModelReply)
        assert service.calls == 1


async def test_a_failure_counts_only_where_both_failed(tmp_path: Path) -> None:  # R3.16
    first = Waiting(1.5, failed(529))
    assert isinstance(await answer(first, tmp_path, request()), ModelReply)
    assert first.calls == 2
    quick = Waiting(failed(500))
    assert isinstance(await answer(quick, tmp_path, request()), Failure)
    assert quick.calls == 1  # a failure in time is the engine's to decide about
