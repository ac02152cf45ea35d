"""Cancel: `aborted` within 2 s, no process left, the session intact and resumable."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

SLEEPER = {
    "sleeper": {
        "turns": [
            {"when": {"shown_matches": "slept"}, "say": "Slept."},
            {
                "when": {"results": {"min": 1}},
                "say": "Once more.",
                "call": {"tool": "bash", "args": {"command": "echo slept"}},
            },
            {
                "when": {"first": True},
                "say": "I sleep.",
                "call": {"tool": "bash", "args": {"command": "echo begun; setsid sleep 313 & sleep 312"}},
            },
        ]
    },
    "slow": {"turns": [{"say": "At last."}]},
}


def sleepers(*marks: str) -> list[int]:
    """Processes of this machine whose command line holds one of the marks."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:1] == [b"sleep"] and any(mark.encode() in words for mark in marks):
                found.append(int(entry.name))
    return found


def legal(nodes: list[dict[str, Any]]) -> bool:
    """Each call has exactly one result."""
    calls = [block["id"] for node in nodes for block in node["payload"]["blocks"] if block["type"] == "tool_use"]
    results = [
        block["tool_use_id"] for node in nodes for block in node["payload"]["blocks"] if block["type"] == "tool_result"
    ]
    return sorted(calls) == sorted(results)


def _nodes(daemon: Running, task: str) -> list[dict[str, Any]]:
    client = daemon.clients[-1]
    names = [node["node"] for node in client.get(f"/v1/tasks/{task}/nodes")["nodes"]]
    return [client.get(f"/v1/tasks/{task}/nodes/{name}") for name in names]


def test_cancel_during_a_tool_call_ends_its_whole_tree(tmp_path: Path) -> None:
    # R3.8, R3.12, R2.2
    with running_simulator(SLEEPER) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"sleeper": "anthropic"}))
        client = daemon.start()
        task = daemon.submit(client, prompt="Sleep.", agent="sleeper", workspace=str(daemon.workspace("a")))
        until = time.monotonic() + 20
        while not (sleepers("312") and sleepers("313")):
            assert time.monotonic() < until, daemon.log
            time.sleep(0.02)
        asked = time.monotonic()
        done = daemon.ctl("cancel", task)
        assert done.returncode == 0, done.stderr
        row = daemon.until_ended(client, task, 10)
        took_s = time.monotonic() - asked
        assert (row["state"], row["reason"]) == ("stopped", "aborted")
        assert took_s < 2 + 1.5, "2 s for the task, the rest for starting the client on a busy machine"
        assert sleepers("312", "313") == []
        nodes = _nodes(daemon, task)
        assert legal(nodes)
        assert "begun" in str(nodes[-1]["payload"]), "what the call had written is kept"

        assert daemon.ctl("resume", task).returncode == 0
        waited = daemon.ctl("wait", task)
        assert waited.returncode == 0, waited.stdout + waited.stderr
        assert legal(_nodes(daemon, task))
        seen = service.requests_now()
        assert (seen["refusals"], seen["violations"]) == ([], [])


@pytest.mark.parametrize("protocol", ["anthropic", "openai-chat"])
def test_cancel_during_a_model_call(tmp_path: Path, protocol: str) -> None:
    # R3.8
    with running_simulator(SLEEPER) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"slow": protocol}))
        client = daemon.start()
        service.control_now(hold=True)
        task = daemon.submit(client, prompt="Take your time.", agent="slow", workspace=str(daemon.workspace("a")))
        while service.requests_now()["held"] == 0:
            time.sleep(0.02)
        asked = time.monotonic()
        client.post(f"/v1/tasks/{task}/cancel", {})
        row = daemon.until_ended(client, task, 10)
        assert time.monotonic() - asked < 2
        assert (row["state"], row["reason"]) == ("stopped", "aborted")
        service.control_now(release=True)
        client.post(f"/v1/tasks/{task}/resume", {})
        row = daemon.until_ended(client, task, 20)
        assert row["state"] == "completed"
        assert service.requests_now()["refusals"] == []
        assert daemon.process is not None
        assert not _children(daemon.process.pid), "no process is left"


def _children(pid: int) -> list[str]:
    return [
        child for thread in Path(f"/proc/{pid}/task").iterdir() for child in (thread / "children").read_text().split()
    ]
