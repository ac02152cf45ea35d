"""A long task: 2,000 steps in a window of 32,000 tokens, a real daemon and the strict simulator.

What is promised: it runs to its end, request and receipts are still shown, and a late step costs the daemon's CPU what
an early one did. CPU is read from the scheduler's own count, so that a busy machine does not matter much.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gate import Gate
from tests.running import Running, running, settings
from tests.simulated import ROOT, SimulatedService, running_simulator

STEPS, WINDOW, SUMMARY = 2_000, 32_000, "4k"
PROMPT = "Do the steps. All of them, in order, and never touch the attic."
# Steps whose CPU is compared: around number 20, and the last ones. The view of a late step is as full as any.
EARLY, LATE = (10, 60), 200
WAIT_S = 3_000.0
POLICIES = f"""\
kind: compaction
reserve: 4k
summary: {{max_tokens: {SUMMARY}}}
---
kind: budget
limits: {{tool_calls: none, turns: none, tokens: none, cost_usd: none, working_time: none, wall_time: none}}
---
kind: loop
no_progress: none
repeat_call: none
"""


@dataclass(frozen=True, slots=True)
class Course:
    """What a run came to. `cpu_ms`: of one step, by step."""

    cpu_ms: list[float]
    row: dict[str, Any]
    window: dict[str, Any]
    seen: dict[str, Any]
    shown: str
    written: int
    summaries: list[dict[str, Any]]
    cached: float


def course(steps: int = STEPS, window: int = WINDOW) -> Course:
    """Run the task."""
    shipped = yaml.safe_load((ROOT / "harnessd/simulator/scripts/steps.yaml").read_text())["models"]["steps-write-*"]
    script = {"steps-write-*": {**shipped, "window": window, "marker": r"Do the steps\. All"}}
    name = f"steps-write-{steps}"
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as where,
        running_simulator(script) as service,
        running(Path(where)) as daemon,
    ):
        document = settings(Path(where), service.url, {name: "anthropic"})
        prices = {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75}
        document["models"][name] |= {"window": window, "max_output": 4_000, "prices": prices}
        daemon.configure(document)
        (Path(where) / "policies").mkdir()
        (Path(where) / "policies" / "own.yaml").write_text(POLICIES)
        return _run(daemon, service, steps)


def _run(daemon: Running, service: SimulatedService, steps: int) -> Course:
    client, folder = daemon.start(), daemon.workspace("a")
    task = daemon.submit(client, prompt=PROMPT, workspace=str(folder))
    assert daemon.process is not None
    marks = _follow(daemon.process.pid, folder / "steps", steps)
    row = dict(daemon.until_ended(client, task, timeout_s=60))
    found = daemon.ctl_json("context", task)["context"]
    effects = client.get(f"/v1/tasks/{task}/effects")["effects"]
    shown = json.dumps(service.requests_now(2, shown=True)["last"][-1], ensure_ascii=False)
    nodes = client.get(f"/v1/tasks/{task}/nodes")["nodes"]
    answers = [client.get(f"/v1/tasks/{task}/nodes/{n['node']}") for n in nodes[-400:] if n["kind"] == "assistant"]
    usage = [answer["payload"]["facts"]["usage"] for answer in answers]
    read = sum(one["cache_read"] for one in usage)
    whole = sum(one["input"] + one["cache_read"] + one["cache_write"] for one in usage)
    return Course(
        cpu_ms=[1e3 * (b - a) for a, b in itertools.pairwise(marks)],
        row=row,
        window=found,
        seen=service.requests_now(),
        shown=shown,
        written=len(list((folder / "steps").iterdir())),
        summaries=[one for one in effects if (one["arguments"] or {}).get("purpose") == "summary"],
        cached=read / max(1, whole),
    )


def _follow(pid: int, folder: Path, steps: int) -> list[float]:
    """CPU seconds of the daemon when each step's file was first seen; the daemon itself is not asked."""
    marks = [_cpu_s(pid)]
    until = time.monotonic() + WAIT_S
    while len(marks) <= steps and time.monotonic() < until:
        done = sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
        now = _cpu_s(pid)
        missing = done + 1 - len(marks)
        before = marks[-1]
        marks += [before + (now - before) * (n + 1) / missing for n in range(missing)]
        time.sleep(0.005)
    return marks


def _cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process."""
    found = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in found) / 1e9


def gates() -> list[Gate]:
    """A late step beside an early one, and what must still be shown."""
    run = course()
    early, late = statistics.mean(run.cpu_ms[slice(*EARLY)]), statistics.mean(run.cpu_ms[-LATE:])
    told = f"{run.window['compactions']['made']} compactions, {run.row['cost_usd']:.2f} USD"
    print(f"  {told}, {len(run.summaries)} summaries, {run.cached:.0%} of the last answers' input from the cache")
    print(f"  {run.row['state']}: {run.row['sentence']}; {run.seen['by_status']}, violations {run.seen['violations']}")
    kept = "never touch the attic" in run.shown and "steps/{1-" in run.shown
    return [
        Gate("long task: steps done", float(run.written), float(STEPS), 1.0, "at least"),
        Gate("long task: request and receipts shown", float(kept), None, 1.0, "at least"),
        Gate(f"long task: CPU of step {STEPS:,}", late, early, 1.3, "at most", "ms", "step 20"),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--window", type=int, default=WINDOW)
    options = parser.parse_args()
    done = course(options.steps, options.window)
    for start in range(0, len(done.cpu_ms), 100):
        part = done.cpu_ms[start : start + 100]
        print(f"{start:5} {statistics.mean(part):6.2f} ms  median {statistics.median(part):6.2f}")
    print(done.row["state"], done.row["sentence"], done.row["cost_usd"], done.window["compactions"])
    print(done.written, "files;", done.seen["by_status"], done.seen["violations"], f"cache {done.cached:.0%}")
    print("steps/{1-" in done.shown, "never touch the attic" in done.shown, len(done.summaries), "summaries")
