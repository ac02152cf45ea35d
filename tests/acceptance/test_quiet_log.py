"""A service that is down: every task's log tells the whole failure, the daemon's log says it once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

DOWN = {"down": {"turns": [{"say": "Never."}], "faults": {"rate": [{"p": 1.0, "do": "unavailable"}]}}}
TASKS = 10


def test_many_tasks_on_a_dead_service_do_not_fill_the_log(tmp_path: Path) -> None:
    # Cases j15, j16
    with running_simulator(DOWN) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"down": "anthropic"}, workers=TASKS))
        client = daemon.start()
        tasks = [
            daemon.submit(client, prompt="Ask.", agent="down", workspace=str(daemon.workspace(f"w{number}")))
            for number in range(TASKS)
        ]
        for task in tasks:
            daemon.until(client, task, ("parked",))
        lines = [json.loads(line) for line in daemon.log.splitlines()]
        failures = [line for line in lines if line["event"] == "model_failed" and line.get("status")]
        assert len(failures) == 1, failures
        assert len(lines) < TASKS, "what is the same for all is said once"
        assert failures[0]["dependency"] == "model/down"
        assert failures[0]["status"] == 503
        assert failures[0]["request"].startswith("req_")
        assert failures[0]["words"]
        for task in (tasks[0], tasks[-1]):
            told = daemon.ctl("logs", task).stdout
            assert "until" in told, "each task's own log says what is done next, and when"
            last = client.get(f"/v1/tasks/{task}")["last_failure"]
            assert last["dependency"] == "model/down"
            assert last["class"]
            assert last["provider_message"] not in ("", "None", "Provider returned error")
