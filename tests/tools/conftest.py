"""Fixtures of the tools' tests: a real workspace, real processes, and a look at what is left of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.failure import Failure
from harnessd.domain.ports import Tool, ToolContext, ToolLimits, ToolOutcome
from harnessd.tools import Jobs, builtin_tools
from harnessd.tools.process import adopt_orphans
from harnessd.workspace.confine import confine


def pids_of(needle: str) -> list[int]:
    """Pids of live processes whose command line holds the needle."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if needle.encode() in words:
                found.append(int(entry.name))
    return found


class Bench:
    """One task's tools, ready to be called."""

    def __init__(self, folder: Path, scrub: Callable[[Path], None] = lambda _: None) -> None:
        self.workspace = folder / "ws"
        self.artefacts = folder / "artefacts"
        self.workspace.mkdir()
        self.jobs = Jobs(scrub=scrub)
        self.tools: Mapping[str, Tool] = builtin_tools(confine, self.jobs)
        self._numbers = itertools.count(1)

    def context(self, call_id: str | None = None, task: str = "t1", **limits: Any) -> ToolContext:
        return ToolContext(
            task,
            call_id or f"call_{next(self._numbers)}",
            str(self.workspace),
            str(self.artefacts),
            ToolLimits(**limits),
            {"PATH": os.environ["PATH"], "HOME": str(self.workspace), "LANG": "C.UTF-8"},
        )

    async def call(self, tool: str, context: ToolContext | None = None, **arguments: Any) -> ToolOutcome | Failure:
        return await self.tools[tool].run(arguments, context or self.context())

    async def done(self, tool: str, context: ToolContext | None = None, **arguments: Any) -> ToolOutcome:
        outcome = await self.call(tool, context, **arguments)
        assert isinstance(outcome, ToolOutcome), outcome
        return outcome

    async def failed(self, tool: str, context: ToolContext | None = None, **arguments: Any) -> Failure:
        outcome = await self.call(tool, context, **arguments)
        assert isinstance(outcome, Failure), outcome
        return outcome


@pytest.fixture(scope="session", autouse=True)
def _subreaper() -> None:
    adopt_orphans()


@pytest.fixture
async def bench(tmp_path: Path, needle: str) -> AsyncIterator[Bench]:  # `needle` first: it is looked for last
    bench = Bench(tmp_path)
    yield bench
    await bench.jobs.aclose()


@pytest.fixture
def needle() -> Iterator[str]:
    """A number of seconds nobody else sleeps for: `sleep {needle}` is found again by it, and may not be left."""
    needle = f"77{secrets.randbelow(10**9):09d}.5"
    yield needle
    deadline = time.monotonic() + 2
    while (left := pids_of(needle)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []


@pytest.fixture
def alive() -> Callable[[str], list[int]]:
    return pids_of


@pytest.fixture
def until() -> Callable[[Callable[[], object]], Any]:
    """Wait for a condition with a deadline, and say so when it does not come."""

    async def wait(condition: Callable[[], object], seconds: float = 5.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come"
            await asyncio.sleep(0.01)

    return wait
