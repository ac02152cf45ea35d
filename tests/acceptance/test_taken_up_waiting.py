"""A task that is taken up in the middle of a wait says since when it stands there, in this daemon."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

SCRIPT = {
    "busy": {
        "turns": [{"say": "Done."}],
        "faults": {"plan": [{"request": {"min": 1}, "do": {"rate_limited": True, "retry_after": 90}}]},
    }
}


def test_the_time_of_a_wait_is_not_counted_from_the_start_of_the_machine(tmp_path: Path) -> None:
    # C1, R6.1
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"busy": "anthropic"}))
        client = daemon.start()
        begun = time.time()
        done = daemon.ctl("submit", "Say it.", "-q", "--workspace", str(daemon.workspace("a")))
        task = done.stdout.strip()
        for attempt in ("before", "after"):
            while not ((seen := client.get(f"/v1/tasks/{task}"))["progress"] and "before try" in seen["doing"]):
                assert time.time() < begun + 30, (attempt, seen)
                time.sleep(0.05)
            progress = seen["progress"]
            assert begun - 1 <= progress["since"] <= time.time(), attempt
            assert 0 <= progress["life_s"] < 30, attempt
            if attempt == "before":
                assert daemon.stop() == 0
                client = daemon.start()
