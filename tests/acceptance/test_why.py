"""Why: what decided, on what evidence, and what else could have been, told by the running daemon."""

from __future__ import annotations

import json
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


FAULTS = {
    "busy": {"overloaded": True, "retry_after": 1},
    "error-page": {"html_502": True},
    "cut": {"cut_after": 3, "end": "reset"},
    "told": {"error_event": "overloaded_error", "after": 1},
    "key": {"auth": True, "echo_key": True},
}
KEY = "sk-live-0123456789abcdef"


def test_evidence_is_the_file_that_policy_classify_reads(tmp_path: Path) -> None:
    # R1.3, A22: the operator's way from a wrong class to a rule
    scripts = {
        name: {"turns": [{"say": "Done."}], "faults": {"rate": [{"p": 1.0, "do": do}]}} for name, do in FAULTS.items()
    }
    with running_simulator(scripts) as service, running(tmp_path) as daemon:
        document = settings(tmp_path, service.url, dict.fromkeys(scripts, "anthropic"))
        for model in document["models"].values():
            model["key"] = {"env": "SOME_KEY"}
        daemon.configure(document)
        (tmp_path / "policies").mkdir()
        (tmp_path / "policies" / "own.yaml").write_text("kind: retry\nmodel: {retries: 0, base: 10ms}\n")
        client = daemon.start(SOME_KEY=KEY)
        tasks = {
            name: daemon.submit(client, prompt="Say it.", agent=name, workspace=str(daemon.workspace(name)))
            for name in scripts
        }
        for name, task in tasks.items():
            daemon.until(client, task, ("parked", "stopped"))
            decided = client.get(f"/v1/tasks/{task}/decisions")["decisions"][-1]
            told = daemon.ctl("why", task, "--evidence")
            assert told.returncode == 0, f"{name}: {told.stderr}"
            assert KEY not in told.stdout
            file = tmp_path / f"{name}.json"
            file.write_text(told.stdout)
            verdict = json.loads(daemon.ctl("policy", "classify", str(file), "--json").stdout)
            assert verdict["class"] == decided["error_class"], f"{name}: {told.stdout}"
            assert verdict["rule"]["rule"] == decided["evidence"]["classified_by"]["rule"], name
        nothing = daemon.ctl("why", tasks["busy"], "n77", "--evidence")
        assert nothing.returncode == 4
