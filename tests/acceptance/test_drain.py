"""drain: no new work, step borders, background jobs waited for, what was cut listed, and a way back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance

SCRIPT = {
    "step": {
        "turns": [
            {
                "when": {"first": True},
                "call": {"tool": "bash", "args": {"command": "touch begun; sleep 1; echo a >>a"}},
            },
            {"when": {"results": {"max": 1}}, "call": {"tool": "bash", "args": {"command": "echo b >>b"}}},
            {"say": "Done."},
        ]
    },
    "job": {
        "turns": [
            {"when": {"first": True}, "call": {"tool": "bash", "args": {"command": "touch begun; sleep 60"}}},
            {"say": "I wait for it."},
        ]
    },
}
# A command of more than a second goes on in the background.
TOOLS = "kind: tools\nrules: [{for: tool/bash, timeout: {after: 2s}}]\n"


def _configured(daemon: Running, service: SimulatedService, tmp_path: Path) -> None:
    daemon.configure(settings(tmp_path, service.url, dict.fromkeys(SCRIPT, "anthropic")))
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "tools.yaml").write_text(TOOLS)


def _begun(daemon: Running, name: str) -> None:
    ends = time.monotonic() + 30
    while not (daemon.workspace(name) / "begun").exists():
        assert time.monotonic() < ends, daemon.log
        time.sleep(0.02)


def test_a_drained_daemon_is_empty_takes_nothing_and_can_be_called_back(tmp_path: Path) -> None:
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon:
        _configured(daemon, service, tmp_path)
        client = daemon.start()
        task = daemon.submit(client, prompt="Work.", agent="step", workspace=str(daemon.workspace("a")))
        _begun(daemon, "a")
        done = daemon.ctl("drain", "--timeout", "60s")
        assert (done.returncode, "nothing was cut, no attempt charged" in done.stdout) == (0, True), done.stdout
        assert client.get(f"/v1/tasks/{task}")["state"] == "queued"
        assert (daemon.workspace("a") / "a").read_text() == "a\n", "the call that ran was let end"
        assert not (daemon.workspace("a") / "b").exists()
        other = daemon.submit(client, prompt="Work.", agent="step", workspace=str(daemon.workspace("b")))
        shown = daemon.ctl("status").stdout
        assert "draining" in shown
        assert "drain --cancel" in shown
        assert client.get(f"/v1/tasks/{other}")["state"] == "queued"
        missing = daemon.ctl("drain", "--node", "nobody")
        assert (missing.returncode, "no node" in missing.stderr) == (4, True), missing.stderr
        assert daemon.ctl("drain", "--cancel").returncode == 0
        for each, name in ((task, "a"), (other, "b")):
            assert daemon.until_ended(client, each)["state"] == "completed"
            assert (daemon.workspace(name) / "a").read_text() == "a\n", "nothing ran twice"
        assert not daemon.ctl_json("status")["draining"]
        assert daemon.stop() == 0


def test_a_job_in_the_background_is_waited_for_and_cut_at_the_timeout(tmp_path: Path) -> None:
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon:
        _configured(daemon, service, tmp_path)
        client = daemon.start()
        task = daemon.submit(client, prompt="Work.", agent="job", workspace=str(daemon.workspace("a")))
        _begun(daemon, "a")
        daemon.until(client, task, ("parked", "waiting", "paused"))
        done = daemon.ctl("drain", "--timeout", "3s")
        assert done.returncode == 1, done.stdout
        assert "in background" in done.stdout, done.stdout
        assert "1 job cut, no attempt charged" in done.stdout, done.stdout
        assert client.get("/v1/drain")["jobs"] == []
        assert daemon.ctl("drain", "--cancel").returncode == 0
        assert daemon.until_ended(client, task)["state"] == "completed"
