"""An agent that goes for the policies: naming their path is refused; what its tools wrote waits for a person."""

from __future__ import annotations

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


def test_an_agent_cannot_raise_its_own_budget_in_the_files(tmp_path: Path) -> None:
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
        assert 9999 not in {one["limit"] for one in client.get(f"/v1/tasks/{task}")["budgets"]}
        facts = client.get("/v1/policies")
        assert facts["revision"] == 1
        assert task in facts["held"]["why"]
        frames = [frame.data for frame in client.stream([("after", 0)]) if isinstance(frame.data, dict)]
        (held,) = [frame["data"] for frame in frames if frame.get("type") == "policy_held"]
        assert task in held["what"]
        done = client.post("/v1/policies/reload", {"yes": True, "note": "it was right"})
        assert done["result"] == "applied", "a person may still say so"
