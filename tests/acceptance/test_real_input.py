"""Real input: on a copy of a real source tree the model finds the failing test, edits the file and runs the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance


@pytest.mark.parametrize("protocol", ["anthropic", "openai-chat"])
def test_a_failing_test_is_found_and_mended_through_the_real_tools(tmp_path: Path, protocol: str) -> None:
    # R6.1, R4.8, R3.6
    with running_simulator() as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"fix-test": protocol}))
        space = daemon.workspace("project")
        subprocess.run([sys.executable, "-m", "harnessd.simulator", "--lay-out", "fix-test", str(space)], check=True)
        tests = [sys.executable, "-m", "unittest", "-q", "test_stats"]
        assert subprocess.run(tests, cwd=space, capture_output=True, check=False).returncode != 0

        client = daemon.start()
        told = daemon.ctl("submit", "Make the tests of this project pass.", "--workspace", str(space), "--wait")
        assert told.returncode == 0, told.stdout + told.stderr

        assert subprocess.run(tests, cwd=space, capture_output=True, check=False).returncode == 0
        assert "if values else 0" in (space / "stats.py").read_text()
        seen = service.requests_now()
        assert seen["violations"] == []
        assert seen["refusals"] == []
        (row,) = client.get("/v1/tasks")["tasks"]
        assert row["state"] == "completed"
        assert "The tests pass." in row["sentence"]
        assert daemon.stop() == 0
