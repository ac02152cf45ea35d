"""A configuration on disk, and a reloader that really watches it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harnessd.config.load import Loaded, load
from harnessd.config.reload import Candidate, Outcome, Refusal, Reloader

HARNESS = """\
models:
  primary: {protocol: anthropic, base_url: "http://127.0.0.1:1", model: m, window: 200k, prices: free}
agents:
  coder: {model: primary}
policies: {dir: ./policies, settle: 20ms}
"""


@dataclass
class Site:
    """A folder with harness.yaml and policies/."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def policies(self) -> Path:
        return self.root / "policies"

    @property
    def config(self) -> Path:
        return self.root / "harness.yaml"

    def write(self, name: str, text: str) -> None:
        """As a careful writer does it: another name, then rename."""
        temporary = self.policies / f".{name}.tmp"
        temporary.write_text(text)
        temporary.replace(self.policies / name)

    def turns(self, turns: int) -> None:
        self.write("budget.yaml", f"kind: budget\nlimits: {{turns: {turns}}}\n")

    def load(self) -> Loaded:
        return load(self.config, self.environ)


@dataclass
class Watched:
    """What a running reloader has told."""

    reloader: Reloader
    told: list[tuple[float, Outcome]] = field(default_factory=list)

    @property
    def candidates(self) -> list[Candidate]:
        return [outcome for _, outcome in self.told if isinstance(outcome, Candidate)]

    @property
    def refusals(self) -> list[Refusal]:
        return [outcome for _, outcome in self.told if isinstance(outcome, Refusal)]

    @property
    def turns(self) -> list[int]:
        return [turns_of(candidate) for candidate in self.candidates]

    async def until(self, holds: Callable[[], bool], within_s: float = 10.0) -> None:
        """Wait for something that must come."""
        end = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < end, [outcome for _, outcome in self.told]
            await asyncio.sleep(0.005)

    async def quiet(self, for_s: float = 0.3) -> None:
        """Long enough for anything that is still to come."""
        await asyncio.sleep(for_s)


def turns_of(candidate: Candidate) -> int:
    policy = candidate.policies.get("budget")
    assert policy is not None
    turns: int = policy.shape.limits.turns
    return turns


@asynccontextmanager
async def watching(site: Site, recheck_s: float = 30.0) -> AsyncIterator[Watched]:
    """A reloader at work; its first look at the files is over."""
    watched: Watched

    async def tell(outcome: Outcome) -> None:
        watched.told.append((time.monotonic(), outcome))

    reloader = Reloader(site.load(), site.environ, tell, recheck_s=recheck_s)
    watched = Watched(reloader)
    task = asyncio.create_task(reloader.run())
    await asyncio.wait_for(reloader.ready.wait(), 10)
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path, {"HOME": str(tmp_path)})
    made.policies.mkdir()
    made.config.write_text(HARNESS)
    made.turns(50)
    return made
