"""Background jobs: the model is woken when one ends, and none is left unseen: not by a crash, a stop, a cancel."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

POLICY = "kind: tools\nrules: [{for: tool/bash, timeout: {after: 1s, max: 10s, do: background, life: 60s}}]\n"


@pytest.fixture
def needle() -> Iterator[str]:
    """Seconds that nobody else sleeps for; whoever still sleeps for them at the end was left behind."""
    needle = f"88{secrets.randbelow(10**9):09d}"
    yield needle
    _until(lambda: not pids_of(needle), 5.0)


def pids_of(needle: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if needle.encode() in words:
                found.append(int(entry.name))
    return found


def _until(condition: Callable[[], object], timeout_s: float = 15.0) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "the condition did not come"
        time.sleep(0.02)


def _script(command: str, *then: str) -> dict[str, Any]:
    first = {"when": {"first": True}, "call": {"tool": "bash", "args": {"command": command}}}
    woken = [{"when": {"user_matches": "Job e"}, "say": words} for words in then[1:]]
    return {"m": {"turns": [first, *woken, {"say": then[0]}]}}


def _ready(daemon: Running, tmp_path: Path, url: str) -> Client:
    daemon.configure(settings(tmp_path, url, {"m": "anthropic"}))
    (tmp_path / "policies").mkdir(exist_ok=True)
    (tmp_path / "policies" / "tools.yaml").write_text(POLICY)
    return daemon.start()


def _nodes(client: Client, task: str) -> list[Mapping[str, Any]]:
    nodes: list[Mapping[str, Any]] = client.get(f"/v1/tasks/{task}/nodes")["nodes"]
    return nodes


def _notice(client: Client, task: str) -> str:
    return "\n".join(str(node["text"]) for node in _nodes(client, task) if node["kind"] == "notice")


def test_a_task_that_waits_for_its_job_is_parked_and_woken(tmp_path: Path) -> None:
    # R3.12
    script = _script("echo begun; sleep 3; echo built; exit 3", "I wait for the build.", "The build failed.")
    with running_simulator(script) as service, running(tmp_path) as daemon:
        client = _ready(daemon, tmp_path, service.url)
        task = daemon.submit(client, prompt="Build.", agent="m", workspace=str(daemon.workspace("a")))
        row = daemon.until(client, task, ("parked",))
        assert "waits for its background job" in row["why"]
        assert client.get("/v1/status")["running"] == 0
        row = daemon.until_ended(client, task)
        assert (row["state"], row["sentence"]) == ("completed", "The build failed.")
        notice = _notice(client, task)
        assert "ended with exit code 3" in notice
        assert "built" in notice
        assert service.requests_now()["total"] == 3


def test_a_job_dies_with_a_killed_daemon_and_its_task_is_told(tmp_path: Path, needle: str) -> None:
    # R3.12, R6.1
    script = _script(f"echo begun; setsid sleep {needle} & sleep {needle}", "I wait.", "It is gone, then.")
    with running_simulator(script) as service, running(tmp_path) as daemon:
        client = _ready(daemon, tmp_path, service.url)
        task = daemon.submit(client, prompt="Build.", agent="m", workspace=str(daemon.workspace("a")))
        daemon.until(client, task, ("parked",))
        assert pids_of(needle)
        daemon.kill()
        client = daemon.start()
        row = daemon.until_ended(client, task)
        assert (row["state"], row["sentence"]) == ("completed", "It is gone, then.")
        assert pids_of(needle) == []
        notice = _notice(client, task)
        assert "lost: harnessd ended without warning" in notice
        assert "begun" in notice, "its output until then is kept"
        logged = daemon.ctl("logs", task, "--json").stdout
        assert (logged.count('"job_started"'), logged.count('"job_ended"')) == (1, 1)


def test_a_planned_stop_ends_jobs_and_costs_no_recovery(tmp_path: Path, needle: str) -> None:
    # R3.12, R6.1a
    script = _script(f"echo begun; sleep {needle}", "I wait.", "It is gone, then.")
    with running_simulator(script) as service, running(tmp_path) as daemon:
        client = _ready(daemon, tmp_path, service.url)
        task = daemon.submit(client, prompt="Build.", agent="m", workspace=str(daemon.workspace("a")))
        daemon.until(client, task, ("parked",))
        assert daemon.stop() == 0
        assert pids_of(needle) == []
        client = daemon.start()
        assert daemon.until_ended(client, task)["sentence"] == "It is gone, then."
        assert "harnessd was shut down" in _notice(client, task)


def test_a_cancelled_parked_task_leaves_no_job(tmp_path: Path, needle: str) -> None:
    # R3.12
    script = _script(f"setsid sleep {needle} & sleep {needle}", "I wait.")
    with running_simulator(script) as service, running(tmp_path) as daemon:
        client = _ready(daemon, tmp_path, service.url)
        task = daemon.submit(client, prompt="Build.", agent="m", workspace=str(daemon.workspace("a")))
        daemon.until(client, task, ("parked",))
        assert daemon.ctl("cancel", task).returncode == 0
        _until(lambda: not pids_of(needle))
        assert "ended with its task" in daemon.ctl("logs", task, "--json").stdout


def test_what_a_command_leaves_behind_ends_with_the_task_and_holds_nobody(tmp_path: Path, needle: str) -> None:
    # R3.12, d15
    script = _script(f"nohup sleep {needle} >/dev/null 2>&1 & echo up", "The server is up.")
    with running_simulator(script) as service, running(tmp_path) as daemon:
        client = _ready(daemon, tmp_path, service.url)
        task = daemon.submit(client, prompt="Serve.", agent="m", workspace=str(daemon.workspace("a")))
        assert daemon.until_ended(client, task)["state"] == "completed"
        _until(lambda: not pids_of(needle), 5.0)
        assert service.requests_now()["total"] == 2
