"""What `status TASK` lists beside the task itself: background jobs that still run, named policies that are gone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

TOOLS = "kind: tools\nrules: [{for: tool/bash, timeout: {after: 1s, max: 10s, do: background, life: 60s}}]\n"
SCRIPT = {
    "m": {
        "turns": [
            {"when": {"first": True}, "call": {"tool": "bash", "args": {"command": "sleep 600"}}},
            {"say": "I wait for it."},
        ]
    }
}


def _until_shown(daemon: Running, task: str, words: str) -> str:
    ends = time.monotonic() + 30
    while words not in (shown := daemon.ctl("status", task).stdout):
        assert time.monotonic() < ends, f"{words!r} is not in:\n{shown}"
        time.sleep(0.1)
    return shown


def _missing(daemon: Running, task: str) -> list[str]:
    lines = daemon.ctl("logs", task).stdout.splitlines()
    return [line for line in lines if "policy_missing" in line or "is gone; the next one in line" in line]


def test_jobs_that_run_and_policies_that_are_gone_are_listed(tmp_path: Path) -> None:  # R3.12, R7.1
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"m": "anthropic"}))
        folder = tmp_path / "policies"
        folder.mkdir(exist_ok=True)
        (folder / "tools.yaml").write_text(TOOLS)
        (folder / "nightly.yaml").write_text("kind: budget\nname: nightly\nlimits: {turns: 40}\n")
        client = daemon.start()
        place = str(daemon.workspace("a"))
        task = daemon.submit(client, prompt="Sleep.", agent="m", workspace=place, policies={"budget": "nightly"})
        shown = _until_shown(daemon, task, " runs for ")
        assert any(line.startswith("job ") and line.endswith(": sleep 600") for line in shown.splitlines())
        assert "is gone" not in shown
        (folder / "nightly.yaml").unlink()
        assert daemon.ctl("policy", "reload").returncode == 0
        shown = _until_shown(daemon, task, "is gone; the next one in line holds instead")
        assert "budget/nightly" in shown
        daemon.ctl("send", task, "How is it?")  # a worker takes the task again
        ends = time.monotonic() + 20
        while not _missing(daemon, task):
            assert time.monotonic() < ends, daemon.log[-3000:] + daemon.ctl("status", task).stdout
            time.sleep(0.1)
        (told,) = _missing(daemon, task)
        assert "budget/nightly" in told
        daemon.ctl("cancel", task)
        daemon.until_ended(client, task)
        assert " runs for " not in daemon.ctl("status", task).stdout
