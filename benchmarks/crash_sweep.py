"""Crash sweep: kill -9 a real daemon at seeded moments of a six-step task, start it again, and check the books.

    python benchmarks/crash_sweep.py --runs 200 --seed 1

Half of the runs kill at a moment in time, half at a named crash point (`HARNESSD_CRASH`). Checked after each: the task
completes, each acknowledged submit exists once, no node that was seen is lost or changed, no step ran twice, the strict
simulator refused nothing, the store's own checks pass.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harnessd.cli.client import Client, Problem
from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator

STEPS = 6
TASK = f"steps-{STEPS}"
# Points that a task of this kind passes, with the most often one is passed in it.
POINTS: Mapping[str, int] = {
    "J1": 1, "J2": 1, "J3": 2, "J4": 7, "J6": 40, "J7": 7, "J9": 6, "J12": 6, "J14-before": 6, "J14-after": 6,
    "J21": 1, "J21-before": 1, "J21-after": 1, "J27-begin": 20, "J27-before": 20, "J27-after": 20,
}  # fmt: skip
IN_TIME_S = 1.5


@dataclass(slots=True)
class Books:
    """What was acknowledged or seen before the crash."""

    acknowledged: list[str] = field(default_factory=list)
    nodes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One run: how it was killed, and every promise that did not hold."""

    seed: int
    how: str
    broken: tuple[str, ...]
    took_s: float


def one_run(seed: int, folder: Path, service: SimulatedService, protocol: str = "anthropic") -> Verdict:
    """Kill once, recover, check."""
    luck = random.Random(seed)
    began = time.monotonic()
    point = luck.choice(list(POINTS)) if luck.random() < 0.5 else None
    environment = {}
    how = f"after {luck.random() * IN_TIME_S:.3f} s"
    if point is not None:
        how = f"{point}:{luck.randint(1, POINTS[point])}"
        environment = {"HARNESSD_CRASH": how}
    books = Books()
    with running(folder) as daemon:
        daemon.configure(settings(folder, service.url, {TASK: protocol}))
        space = daemon.workspace("space")
        body = {"prompt": f"Do your steps, run {seed}.", "agent": TASK, "workspace": str(space), "key": f"run-{seed}"}
        crashed = _until_crash(daemon, body, books, how, environment, by_time=point is None)
        broken = list(_recover(daemon, body, books))
        broken += _check_disk(daemon, space, seed, service)
    label = how if crashed else f"{how} (not reached)"
    return Verdict(seed, label, tuple(broken), time.monotonic() - began)


def _until_crash(
    daemon: Running, body: Mapping[str, Any], books: Books, how: str, environment: Mapping[str, str], *, by_time: bool
) -> bool:
    try:
        client = daemon.start(**environment)
        books.acknowledged.append(str(client.post("/v1/tasks", body)["task"]))
        until = time.monotonic() + (float(how.split()[1]) if by_time else 30.0)
        while time.monotonic() < until:
            row = client.get(f"/v1/tasks/{books.acknowledged[0]}")
            _see(client, books)
            if row["state"] in ("completed", "stopped"):
                break
            time.sleep(0.01)
    except (Problem, AssertionError):
        # The daemon died in the middle, as it was meant to; the kernel may need a moment to say so.
        with contextlib.suppress(subprocess.TimeoutExpired):
            if daemon.process is not None:
                daemon.process.wait(5)
    process = daemon.process
    assert process is not None
    died = process.poll() is not None
    if not died:
        daemon.kill()
    assert process.returncode == -signal.SIGKILL, f"the daemon ended by itself: {process.returncode}\n{daemon.log}"
    return died or by_time


def _see(client: Client, books: Books) -> None:
    for task in books.acknowledged:
        for node in client.get(f"/v1/tasks/{task}/nodes")["nodes"]:
            books.nodes[node["node"]] = _content(node)


def _content(node: Mapping[str, Any]) -> str:
    """A node as it was written; its checkpoint and what was done there are rows of their own, and come later."""
    return json.dumps(
        {name: value for name, value in node.items() if name not in ("checkpoint", "outward")}, sort_keys=True
    )


def _recover(daemon: Running, body: Mapping[str, Any], books: Books) -> Iterator[str]:
    client = daemon.start()
    # A client that got no answer asks again with the same key; one that did must get the same task.
    task = str(client.post("/v1/tasks", body)["task"])
    if books.acknowledged and books.acknowledged != [task]:
        yield f"acknowledged {books.acknowledged}, and the same key is now {task}"
    rows = client.get("/v1/tasks")["tasks"]
    if len(rows) != 1:
        yield f"{len(rows)} tasks for one key"
    row = daemon.until_ended(client, task)
    if row["state"] != "completed":
        yield f"ended as {row['state']} {row.get('reason')}: {row.get('sentence')}"
    now = {node["node"]: _content(node) for node in client.get(f"/v1/tasks/{task}/nodes")["nodes"]}
    for node, content in books.nodes.items():
        if now.get(node) != content:
            yield f"node {node} was {'lost' if node not in now else 'changed'}"
    numbers = sorted(int(node[1:]) for node in now)
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"nodes have holes: {numbers}"
    if (status := daemon.stop()) != 0:
        yield f"the daemon ended with {status}"


def _check_disk(daemon: Running, space: Path, seed: int, service: SimulatedService) -> Iterator[str]:
    ledger = (space / "ledger.txt").read_text().split("\n") if (space / "ledger.txt").exists() else []
    counts = Counter(line for line in ledger if line)
    for step in range(1, STEPS + 1):
        times = counts.pop(f"step {step}", 0)
        if times != 1:
            yield f"step {step} ran {times} times"
    if counts:
        yield f"the ledger holds strange lines: {dict(counts)}"
    database = sqlite3.connect(f"file:{daemon.folder / 'state' / 'harnessd.db'}?mode=ro", uri=True)
    try:
        (health,) = database.execute("PRAGMA integrity_check").fetchone()
    finally:
        database.close()
    if health != "ok":
        yield f"integrity_check: {health}"
    mine = f"run {seed}."
    seen = service.requests_now(last=500)
    for entry in [*seen["violations"], *seen["refusals"]]:
        if mine in json.dumps(entry) or "first_user" not in entry:
            yield f"the service refused: {entry}"


def sweep(runs: int, seed: int, *, say: bool = True) -> list[Verdict]:
    """Many runs on one simulator."""
    verdicts = []
    with ExitStack() as stack:
        service = stack.enter_context(running_simulator())
        for number in range(seed, seed + runs):
            service.reset_now()
            with tempfile.TemporaryDirectory(prefix="crash-") as folder:
                verdict = one_run(number, Path(folder), service)
            verdicts.append(verdict)
            if say:
                state = "ok" if not verdict.broken else "BROKEN: " + "; ".join(verdict.broken)
                print(f"seed {verdict.seed:4}  {verdict.how:28} {verdict.took_s:5.1f} s  {state}", flush=True)
    return verdicts


def main() -> int:
    """Run the sweep and print its books."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    verdicts = sweep(asked.runs, asked.seed)
    broken = [verdict for verdict in verdicts if verdict.broken]
    reached = sum("not reached" not in verdict.how for verdict in verdicts)
    print(f"{len(verdicts)} runs, {reached} killed before the task's end, {len(broken)} broke a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
