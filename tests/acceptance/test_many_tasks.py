"""Two hundred tasks at once on one daemon with 32 workers: all complete, memory bounded, no lock error."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

TASKS = 200
# What 200 finished tasks may leave behind, and 32 running ones hold (bytes); a bound against leaks, not a gate.
GROWTH_MAX = 160 * 1024 * 1024


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_two_hundred_tasks_all_complete(tmp_path: Path) -> None:
    # R6.1a, R6.1
    with running_simulator() as service, running(tmp_path) as daemon:
        models = {"steps-write-3": "anthropic"}
        daemon.configure(settings(tmp_path, service.url, models, workers=32))
        client = daemon.start()
        assert daemon.process is not None
        before = _resident(daemon.process.pid)
        for number in range(TASKS):
            space = daemon.workspace(f"w{number}")
            daemon.submit(
                client,
                prompt=f"Do your steps, task {number}.",
                agent="steps-write-3",
                workspace=str(space),
                key=f"k{number}",
            )
        until = time.monotonic() + 240
        counts: Counter[str] = Counter()
        while time.monotonic() < until and counts["completed"] < TASKS:
            time.sleep(0.5)
            counts = Counter(row["state"] for row in client.get("/v1/tasks", [("limit", 1000)])["tasks"])
        assert counts == {"completed": TASKS}, daemon.log[-3000:]
        assert _resident(daemon.process.pid) - before < GROWTH_MAX
        for number in range(TASKS):
            assert sorted(path.name for path in (daemon.workspace(f"w{number}") / "steps").iterdir()) == [
                "1.txt",
                "2.txt",
                "3.txt",
            ]
        seen = service.requests_now()
        assert (seen["violations"], seen["refusals"]) == ([], [])
        assert daemon.stop() == 0
        assert "locked" not in daemon.log
        assert "Traceback" not in daemon.log
