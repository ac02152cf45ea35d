"""Tools pass limits and breakers too: told to the model with the time left, and counted by calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ToolSpec
from harnessd.domain.ports import ToolContext, ToolLimits, ToolOutcome
from harnessd.domain.task import Task, TaskDraft, TaskState
from harnessd.engine.protocol import CallTool
from harnessd.runtime.toolbox import Toolbox
from harnessd.tools import Jobs, partial_output
from tests.runtime.traffic_scene import Scene, scene

QUICK = "kind: breaker\nrules: [{for: tool/web_search, consecutive: 2, open: 90s, failure_rate: none}]"


class Search:
    """A tool that asks somebody else's service: the world's edge. `answers` come in order, then it works."""

    spec = ToolSpec("web_search", "Searches.", {"type": "object"})
    effect = EffectClass.READ_ONLY

    def __init__(self, *answers: Failure | ToolOutcome) -> None:
        self.answers = list(answers)
        self.calls = 0
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        self.calls += 1
        await self.let_go.wait()
        return self.answers.pop(0) if self.answers else ToolOutcome("found")


def down(hint: ErrorClass = ErrorClass.UNAVAILABLE) -> Failure:
    return Failure("tool", "tool/web_search", "no route to the service", hint=hint)


class Desk:
    """A toolbox with one tool, and a task that calls it."""

    def __init__(self, one: Scene, tool: Search, folder: Path, name: str = "web_search") -> None:
        self.toolbox = Toolbox(
            {name: tool},
            partial_output=partial_output,
            environment=lambda *_: {},
            artefacts=folder / "artefacts",
            jobs=Jobs(),
            traffic=one.traffic,
        )
        self.task = Task("t1", TaskDraft("Find.", "builder", str(folder)), TaskState.RUNNING, 0.0)
        self.name = name

    async def call(self) -> ToolOutcome | Failure:
        return await self.toolbox.perform(self.task, CallTool("e1", "c1", self.name, {}, ToolLimits()))


async def test_an_open_breaker_is_told_with_the_time_left(tmp_path: Path) -> None:  # R3.5
    async with scene(tmp_path, QUICK) as one:
        tool = Search(down(), down())
        desk = Desk(one, tool, tmp_path)
        await desk.call()
        await desk.call()
        one.clock.at += 30
        refused = await desk.call()
        assert isinstance(refused, Failure)
        assert (refused.source, refused.hint, refused.code) == ("tool", ErrorClass.UNAVAILABLE, "breaker_open")
        assert (refused.retry_after_s, tool.calls) == (60, 2)
        assert refused.message == (
            "the breaker of tool/web_search is open for 1m more: 2 failures in a row, last: unavailable"
        )
        one.clock.at += 60
        assert await desk.call() == ToolOutcome("found")


@pytest.mark.parametrize("hint", [ErrorClass.INVALID_ARGUMENTS, ErrorClass.EXECUTION_FAILED])
async def test_what_is_the_models_fault_opens_nothing(tmp_path: Path, hint: ErrorClass) -> None:  # R3.5
    async with scene(tmp_path, QUICK) as one:
        tool = Search(*(down(hint) for _ in range(4)))
        desk = Desk(one, tool, tmp_path)
        for _ in range(5):
            await desk.call()
        assert tool.calls == 5


async def test_this_machines_own_tools_have_a_breaker_only_where_a_rule_names_them(tmp_path: Path) -> None:  # R3.5
    async with scene(tmp_path, "kind: breaker\nrules: [{consecutive: 2}]") as one:
        tool = Search(*(down(ErrorClass.TIMEOUT) for _ in range(4)))
        desk = Desk(one, tool, tmp_path, "bash")
        for _ in range(3):
            await desk.call()
        assert tool.calls == 3  # a long command is nobody's outage
        one.set("kind: breaker\nrules: [{for: tool/bash, consecutive: 1}]")
        await desk.call()
        refused = await desk.call()
        assert isinstance(refused, Failure)
        assert refused.code == "breaker_open"


async def test_a_tools_calls_wait_for_its_limits(tmp_path: Path) -> None:  # R3.15, A3
    text = "kind: limits\nrules: [{for: tool/web_search, concurrency: 1, requests_per_minute: 2}]"
    async with scene(tmp_path, text) as one:
        tool = Search()
        tool.let_go.clear()
        desk = Desk(one, tool, tmp_path)
        calls = [asyncio.create_task(desk.call()) for _ in range(3)]
        await one.spin(lambda: tool.calls == 1 and one.traffic.desk.waiting("tool/web_search") == 2)
        tool.let_go.set()
        await one.spin(lambda: tool.calls == 2 and one.traffic.desk.waiting("tool/web_search") == 1)
        one.clock.at += 61
        one.traffic.changed()
        assert await asyncio.gather(*calls) == [ToolOutcome("found")] * 3
