"""Why: what decided, on what evidence, and what else could have been, told by the running daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

SCRIPT = {
    "busy": {
        "turns": [{"say": "Done."}],
        "faults": {"plan": [{"at": {"turn": 0, "times": 1}, "do": {"overloaded": True}}]},
    }
}


def test_why_names_the_rule_the_evidence_and_what_came_of_it(tmp_path: Path) -> None:
    # R1.3, R7.4
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"busy": "anthropic"}))
        client = daemon.start()
        space = str(daemon.workspace("a"))
        assert daemon.ctl("submit", "Say it.", "--workspace", space, "--wait").returncode == 0
        (row,) = client.get("/v1/tasks")["tasks"]
        told = daemon.ctl("why", row["task"])
        assert told.returncode == 0, told.stderr
        for words in ("1 decision", "model/busy answered 529", "overloaded", "retry.yaml:", "try 2 of 11", "r1"):
            assert words in told.stdout, told.stdout
        assert "answered at" in told.stdout
        as_json = daemon.ctl_json("why", row["task"])
        (decision,) = as_json["decisions"]
        assert (decision["do"], decision["error_class"]) == ("retry", "overloaded")
        assert decision["evidence"]["classified_by"]["rule"].startswith("overloaded")
        assert daemon.ctl("why", row["task"], "n77").returncode == 4
