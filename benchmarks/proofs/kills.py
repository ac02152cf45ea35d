"""Kills: the daemon is killed with SIGKILL at seeded moments, 10,000 times, and nothing acknowledged is lost (G1, G7).

    python benchmarks/proofs/kills.py --runs 10000 --seed 1

A chunk is one state folder: clients submit tasks of every kind, the daemon dies at a seeded moment (a tenth of the
times before it is even ready), starts again, and goes on with what it finds; after 25 deaths it may heal, and all three
books (clients, store, world outside) are compared. After every single death the store must be sound: see `invariants`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.proofs.history import Classes
from benchmarks.proofs.living import Died, Living, living
from benchmarks.proofs.outside import Outside, outside
from benchmarks.proofs.scripts import STEPS, scripts
from benchmarks.proofs.warm import Warm, warm
from harnessd.cli.client import Problem
from tests.simulated import SimulatedService, running_simulator

CHUNK = 25  # deaths of one state folder
# A life is measured by how long its start took, so that a busy machine gets as far in it as an idle one.
LIFE_STARTS = 3.0
EARLY_STARTS = 1.2
# What is submitted, by weight: bash and what it starts are dear.
KINDS = ("payer",) * 5 + ("asker",) * 2 + (STEPS, "caller", "bulky", "frugal")


@dataclass(slots=True)
class Stage:
    """What all chunks share: one model service, one world outside, one process that forks daemons."""

    warm: Warm
    service: SimulatedService
    outside: Outside
    totals: Classes = field(default_factory=Classes)


@contextlib.contextmanager
def stage(package: Path | None = None) -> Iterator[Stage]:
    """Everything that a sweep needs; `package` is another harnessd than this repository's."""
    with ExitStack() as stack:
        world = stack.enter_context(outside())
        service = stack.enter_context(running_simulator(scripts(world)))
        yield Stage(stack.enter_context(warm() if package is None else warm(package)), service, world)


def chunk(on: Stage, folder: Path, seed: int, deaths: int = CHUNK) -> Classes:
    """One folder and its deaths; the books at its end. What breaks at one death is told with that death."""
    luck = random.Random(seed)
    on.outside.reset()
    on.service.reset_now()
    with living(folder, on.warm, on.outside, on.service.url) as one:
        problems: list[str] = []
        for death in range(deaths):
            how = _life(one, luck, f"s{seed}-{death}")
            problems += [f"{how}: {words}" for words in one.broken_now()]
        one.spawn()
        one.await_ready()
        with contextlib.suppress(AssertionError):  # who did not end is named by the books
            one.heal()
        if (status := one.stop()) != 0:
            problems.append(f"the last daemon ended with {status}")
        found = one.books()
        problems += refused(on.service)
        found.broken = [f"seed {seed}: {words}" for words in dict.fromkeys([*problems, *found.broken])]
        if found.broken:
            found.broken.append(f"seed {seed}: the log ends with {one.running.log[-1500:]}")
    return found


def refused(service: SimulatedService) -> list[str]:
    """What the strict model service was not content with."""
    seen = service.requests_now(last=1)
    return [f"I5: the service objects to {entry}" for entry in (*seen["violations"], *seen["refusals"])]


def _life(one: Living, luck: random.Random, name: str) -> str:
    """One life, from its start to a SIGKILL at a seeded moment; says how it died."""
    early = luck.random() < 0.1
    lives = luck.uniform(0.0, EARLY_STARTS if early else LIFE_STARTS)
    how = f"{name} killed {'in its start' if early else 'at work'} after {lives:.3f} of a start's time"
    one.spawn()
    killer = None if not early else one.kill_after(lives * one.start_s)
    try:
        one.await_ready()
        killer = killer or one.kill_after(lives * one.start_s)
        one.submit_again()
        for number in range(luck.choice((1, 1, 2))):
            one.submit(f"{name}-{number}", luck.choice(KINDS))
        while True:
            one.tend()
            one.look(luck)
            time.sleep(0.05)
    except Died:
        assert killer is not None, f"{how}: the daemon died by itself:\n{one.running.log[-3000:]}"
        killer.join()
    except Problem as problem:
        raise AssertionError(f"{how}: {problem.message}") from problem
    one.kill(how)
    return how


def sweep(runs: int, seed: int, *, size: int = CHUNK, say: bool = True) -> Classes:
    """All chunks, on one stage."""
    with stage() as on:
        begun = time.monotonic()
        while on.totals.kills < runs:
            with tempfile.TemporaryDirectory(prefix="kills-") as folder:
                found = chunk(on, Path(folder), seed, min(size, runs - on.totals.kills))
            on.totals.add(found)
            if say:
                took_s = time.monotonic() - begun
                print(f"seed {seed}: {on.totals.line()}; {took_s / on.totals.kills:.2f} s a kill", flush=True)
                for words in found.broken:
                    print(f"  BROKEN {words}", flush=True)
            seed += 1
        return on.totals


def main() -> int:
    """Run the sweep and print its books."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="kills in all")
    parser.add_argument("--seed", type=int, default=1, help="of the first folder; the next one has the next")
    parser.add_argument("--size", type=int, default=CHUNK, help="kills of one folder")
    asked = parser.parse_args()
    found = sweep(asked.runs, asked.seed, size=asked.size)
    print(found.line())
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
