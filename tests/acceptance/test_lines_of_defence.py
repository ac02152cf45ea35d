"""The lines of defence on a running daemon: another model answers, a loop is nudged and then put to a person."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

BUSY = {
    "busy": {
        "turns": [{"say": "Done by the first."}],
        "faults": {"plan": [{"at": {"turn": 0, "times": 50}, "do": {"overloaded": True}}]},
    },
    "spare": {"turns": [{"say": "Done by the spare one."}]},
}
CIRCLING = {"circling": {"turns": [{"say": "Once more.", "call": {"tool": "list_files", "args": {"path": "."}}}]}}
FALLBACK = "kind: fallback\nchains: {model/busy: [model/spare]}\n"
QUICK = "kind: retry\nmodel: {base: 10ms, classes: {overloaded: {switch_after: 2}}}\n"


def test_another_model_answers_where_the_first_does_not(tmp_path: Path) -> None:
    # R3.4
    with running_simulator(BUSY) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"busy": "anthropic", "spare": "openai-chat"}))
        folder = tmp_path / "policies"
        folder.mkdir()
        (folder / "own.yaml").write_text(f"{FALLBACK}---\n{QUICK}")
        client = daemon.start()
        done = daemon.ctl("submit", "Say it.", "--workspace", str(daemon.workspace("a")), "--wait")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Done by the spare one." in done.stdout
        (row,) = client.get("/v1/tasks")["tasks"]
        why = daemon.ctl("why", row["task"])
        assert "fallback to model/spare" in why.stdout, why.stdout
        logs = daemon.ctl("logs", row["task"])
        assert "degraded" in logs.stdout, logs.stdout
        counts = [entry["model"] for entry in service.requests_now()["last"]]
        assert counts == ["busy", "busy", "spare"]


def test_the_status_says_who_answers_for_whom(tmp_path: Path) -> None:
    # R3.4
    slow = {"turns": [{"when": {"first": True}, "call": {"tool": "bash", "args": {"command": "sleep 60"}}}]}
    with running_simulator({**BUSY, "spare": slow}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"busy": "anthropic", "spare": "openai-chat"}))
        folder = tmp_path / "policies"
        folder.mkdir()
        (folder / "own.yaml").write_text(f"{FALLBACK}---\n{QUICK}")
        client = daemon.start()
        body = {"prompt": "Wait.", "agent": "busy", "workspace": str(daemon.workspace("a"))}
        task = client.post("/v1/tasks", body)["task"]
        until = time.monotonic() + 20
        while client.get(f"/v1/tasks/{task}")["tool_calls"] == 0:
            assert time.monotonic() < until
            time.sleep(0.05)
        daemon_wide, of_task = daemon.ctl("status").stdout, daemon.ctl("status", task).stdout
        assert "degraded: model/spare answers for 1 running task" in daemon_wide, daemon_wide
        assert "degraded model/spare answers for model/busy" in of_task, of_task
        assert daemon.ctl("cancel", task).returncode == 0


def test_an_agent_in_circles_is_nudged_and_then_put_to_a_person(tmp_path: Path) -> None:
    # R3.10
    with running_simulator(CIRCLING) as service, running(tmp_path) as daemon:
        agent = {"model": "circling", "system": "You work.", "tools": ["list_files"]}
        document = settings(tmp_path, service.url, {"circling": "anthropic"}, agents={"circling": agent})
        daemon.configure(document)
        client = daemon.start()
        daemon.ctl("submit", "Look.", "--workspace", str(daemon.workspace("a")), "--wait")
        (row,) = client.get("/v1/tasks")["tasks"]
        assert row["state"] == "waiting", row
        logs = daemon.ctl("logs", row["task"]).stdout
        assert "nudge" in logs, logs
        inbox = daemon.ctl("inbox").stdout
        assert "goes in circles" in inbox, inbox
