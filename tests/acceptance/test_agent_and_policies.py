"""An agent that goes for the policies: naming them is refused, and a change while its tools ran is told with its id."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance


def script(folder: Path) -> dict[str, Any]:
    more = "kind: budget\\nlimits: {tool_calls: 9999}\\n"
    tries = [
        f"printf '{more}' > {folder}/policies/budget.yaml; echo tried",
        f"printf '{more}' > ../../policies/budget.yaml; sleep 1; echo sly",
    ]
    turns: list[dict[str, Any]] = [
        {"when": {"results": number}, "say": "I help myself.", "call": {"tool": "bash", "args": {"command": words}}}
        for number, words in enumerate(tries)
    ]
    return {"sly": {"turns": [*turns, {"say": "Done."}]}}


def test_who_wrote_the_policies_is_in_the_event_log(tmp_path: Path) -> None:
    # Case h22
    with running_simulator(script(tmp_path)) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"sly": "anthropic"}))
        (tmp_path / "policies").mkdir()
        client = daemon.start()
        task = daemon.submit(client, prompt="Go.", agent="sly", workspace=str(daemon.workspace("a")))
        assert daemon.until_ended(client, task)["state"] == "completed"
        nodes = client.get(f"/v1/tasks/{task}/nodes")["nodes"]
        first = next(node for node in nodes if node["kind"] == "tool_result")
        assert "permission_denied" in first["text"]
        assert "not for agents" in first["text"]
        until = time.monotonic() + 15
        applied: list[dict[str, Any]] = []
        while not applied:
            assert time.monotonic() < until, daemon.log
            frames = [frame.data for frame in client.stream([("after", 0)]) if isinstance(frame.data, dict)]
            applied = [frame["data"] for frame in frames if frame.get("type") == "policy_applied"]
            time.sleep(0.05)
        assert applied[-1]["while_tools_ran"] == [task]
