"""The watchdog's rungs on a real pool: cancel the call, end the turn, restart the worker; others go on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import Failure
from harnessd.domain.messages import ModelReply, ModelRequest, ToolSpec
from harnessd.domain.ports import (
    CallClocks,
    ModelProvider,
    Progress,
    Refused,
    Submitted,
    Tool,
    ToolContext,
    ToolOutcome,
)
from harnessd.domain.task import Task, TaskDraft
from harnessd.engine.protocol import ModelFacts
from harnessd.runtime.catalog import AgentFacts, Catalog
from harnessd.runtime.daemon import WallClock
from harnessd.runtime.gateway import Gateway, Prices, Service
from harnessd.runtime.runner import Surroundings
from harnessd.runtime.toolbox import Toolbox
from harnessd.runtime.watchdog import Rungs, Watchdog
from harnessd.runtime.worker import Pool, PoolSettings
from harnessd.stores import SqlStore, open_store
from harnessd.tools import Jobs, partial_output
from tests.engine.scenery import calls, policies, says

POLICY = "kind: tools\nrules: [{for: tool/stubborn, effect: reversible, silence: 5s}]\n"
FAST = Rungs(model_grace_s=0.3, end_turn_s=0.3, restart_s=0.6)


class Stubborn(Tool):
    """A tool at the world's edge that hangs; `deaf` ones swallow their cancellation as well."""

    effect = EffectClass.REVERSIBLE
    spec = ToolSpec("stubborn", "Hangs.", {"type": "object", "properties": {}})

    def __init__(self, *, deaf: bool) -> None:
        self.deaf = deaf
        self.free = asyncio.Event()

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        del arguments, context
        while not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                if not self.deaf:
                    raise
        return ToolOutcome("too late")


class Speaker(ModelProvider):
    """A model: one call of the tool, then words. `hang`: the first answer never comes."""

    def __init__(self, *, hang: bool = False) -> None:
        self.hang = hang
        self.asked: list[ModelRequest] = []

    async def call(self, request: ModelRequest, clocks: CallClocks, progress: Progress) -> ModelReply | Failure:
        del clocks, progress
        self.asked.append(request)
        if self.hang and len(self.asked) == 1:
            await asyncio.sleep(3600)
        if len(request.messages) > 1 or self.hang:
            return says("Went on.")
        return calls(("stubborn", {}))

    async def aclose(self) -> None:
        """Nothing is open."""


class Scene:
    """A pool under a watchdog, with one agent whose tool hangs and one that only speaks."""

    def __init__(self, store: SqlStore, folder: Path, tool: Stubborn, speaker: Speaker, policy: str = POLICY) -> None:
        jobs = Jobs()
        self.store, self.tool = store, tool
        toolbox = Toolbox(
            {"stubborn": tool},
            partial_output=partial_output,
            environment=lambda *_: {},
            artefacts=folder / "artefacts",
            jobs=jobs,
        )
        clocks = CallClocks(0.1, 0.2, 0.2, 0.3)
        services = {
            "m": Service(speaker, Prices(), clocks),
            "quick": Service(Speaker(hang=False), Prices(), clocks),
        }
        begun: Callable[[], None] = lambda: self.watchdog.wake()  # noqa: E731, PLW0108 - made below
        gateway = Gateway(services)
        around = Surroundings(store, gateway, toolbox, WallClock(), watching=begun)
        catalog = Catalog(
            {"m": AgentFacts("m", "You work.", ("stubborn",), "m"), "quick": AgentFacts("quick", "", (), "quick")},
            {name: ModelFacts(name, 100_000, 1000) for name in services},
            {"stubborn": tool},
        )
        set_ = policies(policy)
        self.stuck_once = False
        self.pool = Pool(store, around, lambda: catalog, lambda _: set_, PoolSettings("a1", 4, 1.5, 0.3), self._prepare)
        self.watchdog = Watchdog(
            lambda: self.pool.running,
            jobs,
            WallClock(),
            preparing=lambda: self.pool.preparing,
            model_silence_s=gateway.silence_s,
            told=lambda task, data: self.pool.note(task, "rung", data),
            restart=self.pool.restart,
            rungs=FAST,
        )
        self.hang_in_preparation = False
        self.over = asyncio.Event()

    async def _prepare(self, _: Task) -> Refused | None:
        if self.hang_in_preparation and not self.stuck_once:
            self.stuck_once = True
            while not self.over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await self.over.wait()
        return None

    async def submit(self, agent: str, folder: Path) -> str:
        folder.mkdir(exist_ok=True)
        answer = await self.store.submit(TaskDraft("Work.", agent, str(folder)), time.time())
        assert isinstance(answer, Submitted)
        self.pool.wake()
        return answer.task.id

    async def ended(self, task: str, timeout_s: float = 20.0) -> Task:
        async with asyncio.timeout(timeout_s):
            while True:
                row = await self.store.find(task)
                assert isinstance(row, Task)
                if row.state.ended:
                    return row
                await asyncio.sleep(0.02)
                await self.store.sweep(time.time())
                self.pool.wake()

    async def rungs(self, task: str) -> list[str]:
        return [str(event.data["rung"]) for event in await self.store.events(task=task) if event.type == "rung"]


@contextlib.asynccontextmanager
async def at_work(scene: Scene) -> AsyncIterator[None]:
    work = [asyncio.create_task(scene.pool.run()), asyncio.create_task(scene.watchdog.run())]
    try:
        yield
    finally:
        scene.over.set()
        scene.tool.free.set()  # whatever was left behind ends now
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await scene.pool.abandon()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    found = open_store(f"sqlite:{tmp_path}/harnessd.db")
    await found.open("a1")
    yield found
    await found.close()


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_silent_call_is_cancelled_and_a_deaf_one_is_left_behind(
    store: SqlStore, tmp_path: Path, deaf: bool
) -> None:
    # R3.11: rungs one and two; the history is intact, and the task goes on
    tool = Stubborn(deaf=deaf)
    scene = Scene(store, tmp_path, tool, Speaker())
    async with at_work(scene):
        task = await scene.submit("m", tmp_path / "a")
        row = await scene.ended(task)
        assert row.sentence == "Went on."
        found = await scene.rungs(task)
        assert found == (["cancel the call", "end the turn"] if deaf else ["cancel the call"])
        history = await store.history(task)
        result = next(node for node in history.path if node.kind == "tool_result")
        assert "silent for" in str(result.payload)
        assert await store.verify(task) is None
        tool.free.set()
    assert not scene.pool.lost.done()


async def test_a_model_call_that_its_own_clocks_do_not_end_is_ended(store: SqlStore, tmp_path: Path) -> None:
    # R3.11: classified like any other, so that it is tried again
    speaker = Speaker(hang=True)
    scene = Scene(store, tmp_path, Stubborn(deaf=False), speaker)
    async with at_work(scene):
        task = await scene.submit("m", tmp_path / "a")
        assert (await scene.ended(task)).sentence == "Went on."
        assert await scene.rungs(task) == ["cancel the call"]
        assert len(speaker.asked) == 2
        decisions = await store.decisions(task)
        assert decisions[0].decision["error_class"] == "timeout"
        assert decisions[0].decision["do"] == "retry"


async def test_a_worker_that_does_not_move_is_given_up_and_another_one_takes_the_task(
    store: SqlStore, tmp_path: Path
) -> None:
    # R3.11, R6.1a: rung three; its lease runs out, the recovery is charged, nobody else waits for it
    tool = Stubborn(deaf=False)
    tool.free.set()
    scene = Scene(store, tmp_path, tool, Speaker())
    scene.hang_in_preparation = True
    async with at_work(scene):
        task = await scene.submit("m", tmp_path / "a")
        await asyncio.sleep(0.2)
        other = await scene.submit("quick", tmp_path / "b")
        started = time.monotonic()
        await scene.ended(other, 10.0)
        assert time.monotonic() - started < 5.0
        row = await scene.ended(task)
        assert (row.sentence, row.recoveries) == ("Went on.", 1)
        assert await scene.rungs(task) == ["restart the worker"]
