"""Policies on a running daemon: raised limits let a task go on, lowered ones stop it, the guard and the hold keep."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance

COUNTER = {
    "count-*": {
        "turns": [
            {"when": {"no_tools": True}, "say": "That is all."},
            {"when": {"results": {"min": 8}}, "say": "Counted to eight."},
            {"say": "On.", "delay": "150ms", "call": {"tool": "bash", "args": {"command": "echo {step} >> count.txt"}}},
        ]
    }
}


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with running_simulator(COUNTER) as found:
        yield found


@pytest.fixture
def daemon(tmp_path: Path, service: SimulatedService) -> Iterator[Running]:
    with running(tmp_path) as found:
        models = {f"count-{letter}": "anthropic" for letter in "abcd"}
        found.configure(settings(tmp_path, service.url, models))
        (tmp_path / "policies").mkdir()
        yield found


def write(daemon: Running, name: str, text: str) -> None:
    """As careful editors save: a new file in the place of the old one."""
    path = daemon.folder / "policies" / name
    draft = path.with_name(f".{name}.new")
    draft.write_text(text)
    draft.replace(path)


def until_revision(client: Client, number: int) -> dict[str, Any]:
    until = time.monotonic() + 15
    facts: dict[str, Any] = {}
    while time.monotonic() < until:
        facts = client.get("/v1/policies")
        if facts["revision"] == number:
            return facts
        time.sleep(0.02)
    raise AssertionError(facts)


def count(daemon: Running, client: Client, name: str, least: int) -> str:
    """Submit a counting task and wait until it has done a few steps."""
    space = daemon.workspace(name)
    task = daemon.submit(client, prompt=f"Count, {name}.", agent=name, workspace=str(space))
    until = time.monotonic() + 30
    while client.get(f"/v1/tasks/{task}")["tool_calls"] < least:
        assert time.monotonic() < until, daemon.log
        time.sleep(0.02)
    return task


def test_a_raised_limit_lets_a_running_task_go_on(daemon: Running) -> None:
    # R7.2, R3.9
    write(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 5}\n")
    client = daemon.start()
    task = count(daemon, client, "count-a", 2)
    write(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 50}\n")
    until_revision(client, 2)
    row = daemon.until_ended(client, task)
    assert (row["state"], row["tool_calls"]) == ("completed", 8)


def test_a_lowered_limit_stops_it_with_the_reason_and_the_line(daemon: Running) -> None:
    # R7.2, R7.4, R1.3
    client = daemon.start()
    task = count(daemon, client, "count-a", 3)
    write(daemon, "budget.yaml", "kind: budget\nnote: INC-7\nlimits: {tool_calls: 2}\n")
    row = daemon.until_ended(client, task)
    assert (row["state"], row["reason"]) == ("stopped", "budget_exhausted")
    assert "tool_calls" in row["sentence"]
    decisions = client.get(f"/v1/tasks/{task}/decisions")["decisions"]
    rule = decisions[-1]["rule"]
    assert rule["file"].endswith("budget.yaml")
    assert (rule["line"], rule["revision"]) == (3, 2)


def test_a_broken_save_keeps_the_last_good_set_and_says_where(daemon: Running) -> None:
    # R7.2
    write(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 40}\n")
    client = daemon.start()
    write(daemon, "budget.yaml", "kind: budget\nlimits: {tool_cals: 30}\n")
    until = time.monotonic() + 15
    while "refused" not in (facts := client.get("/v1/policies")):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert facts["revision"] == 1
    assert "budget.yaml:2:10" in facts["refused"]["problems"][0]
    told = daemon.ctl("status")
    assert "budget.yaml:2:10" in told.stdout
    write(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 30}\n")
    facts = until_revision(client, 3)
    assert "refused" not in facts


def test_the_last_good_set_survives_a_restart_with_broken_files(daemon: Running) -> None:
    # R7.2
    write(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 3}\n")
    daemon.start()
    assert daemon.stop() == 0
    write(daemon, "budget.yaml", "kind: [budget")
    client = daemon.start()
    until = time.monotonic() + 15
    while "refused" not in (facts := client.get("/v1/policies")):
        assert time.monotonic() < until, facts
        time.sleep(0.02)
    assert facts["revision"] == 1
    task = count(daemon, client, "count-a", 1)
    row = daemon.until_ended(client, task)
    assert (row["reason"], row["tool_calls"]) == ("budget_exhausted", 3)
    assert daemon.stop() == 0
    daemon.spawn("--strict")
    assert daemon.process is not None
    assert daemon.process.wait(20) == 78


def test_the_guard_holds_a_set_that_would_stop_many(daemon: Running) -> None:
    # policies.md, "Guard"
    client = daemon.start()
    tasks = [count(daemon, client, f"count-{letter}", 2) for letter in "abc"]
    write(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 1}\n")
    until = time.monotonic() + 15
    while "held" not in (facts := client.get("/v1/policies")):
        assert time.monotonic() < until, daemon.log[-2000:]
        time.sleep(0.01)
    assert facts["revision"] == 1
    assert len(facts["held"]["stops"]) == 3
    done = client.post("/v1/policies/reload", {"yes": True, "note": "meant so"})
    assert done["result"] == "applied", done
    for task in tasks:
        assert daemon.until_ended(client, task)["reason"] in ("budget_exhausted", "completed")


def test_revert_holds_until_a_reload_over_a_restart(daemon: Running) -> None:
    # R7.4
    write(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 70}\n")
    client = daemon.start()
    write(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 60}\n")
    until_revision(client, 2)
    assert client.post("/v1/policies/revert", {"revision": "r1", "note": "harmful"})["result"] == "applied"
    write(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 50}\n")
    until = time.monotonic() + 15
    while "held" not in (facts := client.get("/v1/policies")):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert (facts["revision"], facts["hold"]) == (1, True)
    assert daemon.stop() == 0
    client = daemon.start()
    facts = client.get("/v1/policies")
    assert (facts["revision"], facts["hold"]) == (1, True)
    done = client.post("/v1/policies/reload", {})
    assert done["result"] == "applied", json.dumps(done)
    facts = client.get("/v1/policies")
    assert (facts["hold"], "held" in facts) == (False, False)
    history = client.get("/v1/policies/revisions")["revisions"]
    assert history[0]["state"] == "in_force"
