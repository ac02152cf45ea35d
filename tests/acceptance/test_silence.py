"""Silence, not age, is the sign of a hang: a stuck call dies, a busy or a talking one lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

WORDS = {
    "stuck": "echo begun; sleep 301",
    "busy": "python3 -c 'import time; t=time.monotonic()+9\nwhile time.monotonic()<t: sum(range(1000))'; echo counted",
    "talking": "for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 1; done; echo talked",
}
SCRIPT = {
    name: {"turns": [{"when": {"first": True}, "call": {"tool": "bash", "args": {"command": words}}}, {"say": "Seen."}]}
    for name, words in WORDS.items()
}
POLICY = "kind: tools\nrules: [{for: tool/bash, silence: 5s}]\n"


def test_only_the_silent_call_is_ended(tmp_path: Path) -> None:
    # R3.11
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, dict.fromkeys(WORDS, "anthropic")))
        (tmp_path / "policies").mkdir()
        (tmp_path / "policies" / "tools.yaml").write_text(POLICY)
        client = daemon.start()
        tasks = {
            name: daemon.submit(client, prompt="Go.", agent=name, workspace=str(daemon.workspace(name)))
            for name in WORDS
        }
        said = {}
        for name, task in tasks.items():
            assert daemon.until_ended(client, task)["state"] == "completed"
            nodes = client.get(f"/v1/tasks/{task}/nodes")["nodes"]
            said[name] = next(node for node in nodes if node["kind"] == "tool_result")
        assert "silent for" in said["stuck"]["text"]
        assert "timeout" in said["stuck"]["text"]
        assert "begun" in said["stuck"]["text"], "what it had written is kept"
        assert "counted" in said["busy"]["text"]
        assert "talked" in said["talking"]["text"]
        assert not said["busy"]["is_error"]
        assert not said["talking"]["is_error"]
