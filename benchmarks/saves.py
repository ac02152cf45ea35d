"""Saving a policy: how soon it is in force, once a save, never torn; beside how soon watchfiles tells of a change."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
from watchfiles import awatch

from benchmarks.gate import Gate
from benchmarks.measuring import percentile
from harnessd.config.files import builtin_folder
from harnessd.config.load import load
from harnessd.config.reload import Candidate, Outcome, Reloader
from harnessd.runtime.daemon import WallClock
from harnessd.runtime.host.latency import keep_the_loop_quick
from harnessd.runtime.policies.in_force import InForce
from harnessd.runtime.policies.keeper import Keeper
from harnessd.stores import open_store

SAVES_EACH = 40
RELOADS = 120
WAIT_S = 5.0
QUIET_S = 0.4
HARNESS = """\
models:
  primary: {protocol: anthropic, base_url: "http://127.0.0.1:9", model: unused, window: 200k, prices: free}
agents:
  coder: {model: primary}
policies: {dir: ./policies}
"""


def text(turns: int) -> str:
    """A policy that can be told from any other, long enough to be written in more than one piece."""
    return f"kind: budget\nlimits: {{turns: {turns}}}\n" + "# a comment that makes the file longer\n" * 400


def in_place(path: Path, content: str) -> None:
    """Truncate and write, in pieces: a reader may see half of it."""
    with path.open("w", encoding="utf-8", buffering=1024) as file:
        file.write(content)


def rename_over(path: Path, content: str) -> None:
    """Write beside it, then rename: what careful programs do."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)


def as_an_editor(path: Path, content: str) -> None:
    """Keep a backup, write a new file, sync it: for a moment there is no file of that name."""
    path.replace(path.with_name(f"{path.name}~"))
    with path.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    path.with_name(f"{path.name}~").unlink()


PATTERNS: tuple[Callable[[Path, str], None], ...] = (in_place, rename_over, as_an_editor)


class Ours:
    """A reloader that really watches, and what it tells."""

    def __init__(self, root: Path) -> None:
        """Nothing is watched yet."""
        self.told: list[tuple[float, Outcome]] = []
        self.reloader = Reloader(load(root / "harness.yaml", {}), {}, self._tell)

    async def _tell(self, outcome: Outcome) -> None:
        self.told.append((time.perf_counter(), outcome))


async def measure(folder: Path) -> tuple[list[float], list[float], int, int]:
    """Milliseconds of ours and of watchfiles; how many reloads were not one a save; how many sets were torn."""
    for name in ("ours", "theirs"):
        (folder / name / "policies").mkdir(parents=True)
        (folder / name / "harness.yaml").write_text(HARNESS, encoding="utf-8")
        (folder / name / "policies" / "budget.yaml").write_text(text(1), encoding="utf-8")
    ours = Ours(folder / "ours")
    watching = asyncio.create_task(ours.reloader.run())
    await ours.reloader.ready.wait()
    changes = awatch(folder / "theirs" / "policies", force_polling=False)
    waits: tuple[list[float], list[float]] = ([], [])
    uneven = torn = 0
    for number in range(SAVES_EACH * len(PATTERNS)):
        save = PATTERNS[number % len(PATTERNS)]
        ours.told.clear()
        save(folder / "ours" / "policies" / "budget.yaml", text(100 + number))
        saved = time.perf_counter()
        while not ours.told and time.perf_counter() - saved < WAIT_S:
            await asyncio.sleep(0.002)
        waits[0].append(((ours.told[0][0] if ours.told else time.perf_counter()) - saved) * 1e3)
        await asyncio.sleep(QUIET_S)
        uneven += len(ours.told) != 1
        torn += any(not is_whole(outcome, 100 + number) for _, outcome in ours.told)

        heard = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(QUIET_S)
        save(folder / "theirs" / "policies" / "budget.yaml", text(100 + number))
        saved = time.perf_counter()
        await asyncio.wait_for(heard, WAIT_S)
        waits[1].append((time.perf_counter() - saved) * 1e3)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return *waits, uneven, torn


async def lag(during: Callable[[], Awaitable[object]]) -> list[float]:
    """How late a timer of 1 ms was, each time, while something else went on: milliseconds.

    Nothing is read at a tick but the clock: each file it opened would hand Python's lock to the thread that reads the
    policies, and the probe would measure its own waiting. What a busy machine adds is told by the idle figure beside.
    """
    late: list[float] = []
    over = False

    async def tick() -> None:
        while not over:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append((time.perf_counter() - began) * 1e3 - 1.0)

    ticking = asyncio.create_task(tick())
    await during()
    over = True
    await ticking
    return late


async def measure_lag(root: Path) -> tuple[list[float], list[float]]:
    """The loop's lag while the full shipped set is read, judged, stored and put in force, and while nothing happens."""
    shutil.copytree(builtin_folder(), root / "policies")
    (root / "harness.yaml").write_text(HARNESS, encoding="utf-8")
    loaded, clock = load(root / "harness.yaml", {}), WallClock()
    store = open_store(root / "harnessd.db")
    await store.open("benchmark")
    in_force = InForce(loaded.policies, lambda _: {}, clock.now())
    keeper = Keeper(store, in_force, clock, running=list, guard=0.1, agents_changed=lambda _: None)
    reloader = Reloader(loaded, {}, keeper.take)

    async def reloads() -> None:
        for number in range(RELOADS):
            await asyncio.to_thread(as_an_editor, root / "policies" / "budget.yaml", text(100 + number))
            await reloader.reload("reload")
        assert in_force.policies.revision == RELOADS, "each was put in force"

    keep_the_loop_quick()  # as the daemon does at its start
    busy = await lag(reloads)
    idle = await lag(lambda: asyncio.sleep(2.0))
    await store.close()
    return busy, idle


def is_whole(outcome: Outcome, turns: int) -> bool:
    """The set that is handed over is the one that was saved."""
    return isinstance(outcome, Candidate) and outcome.policies.policies["budget", "default"].shape.limits.turns == turns


def gates() -> Iterator[Gate]:
    """The gates on saving a policy."""
    with TemporaryDirectory(prefix="bench-") as name:
        ours, theirs, uneven, torn = asyncio.run(measure(Path(name)))
    saves = len(ours)
    yield Gate(
        "policy saved to in force: p99",
        percentile(ours, 0.99), percentile(theirs, 0.99), 1.5, "at most", "ms", "ms watchfiles default",
    )  # fmt: skip
    yield Gate(f"{saves} saves that were not one reload", uneven, None, 0, "at most")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with TemporaryDirectory(prefix="bench-") as name:
        busy, idle = asyncio.run(measure_lag(Path(name)))
    what = f"loop's lag in {RELOADS} reloads of the full set"
    for word, share in (("p99", 0.99), ("max", 1.0)):
        beside = f"{percentile(idle, share):.1f} ms idle"
        yield Gate(f"{what}: {word} ({beside})", percentile(busy, share), None, 10, "at most", "ms")
    yield Gate(f"{saves} saves: torn or refused sets", torn, None, 0, "at most")
