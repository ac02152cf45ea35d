"""Dependencies on a running daemon: breakers by hand, a revoked key, limits on tasks at once, the day's money."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance

SCRIPTS = {
    "quick": {"turns": [{"say": "Done."}]},
    "slow": {
        "turns": [
            {"when": {"results": {"min": 1}}, "say": "Done."},
            {"say": "On.", "call": {"tool": "bash", "args": {"command": "sleep 0.5"}}},
        ]
    },
}


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with running_simulator(SCRIPTS) as found:
        yield found


@pytest.fixture
def daemon(tmp_path: Path, service: SimulatedService) -> Iterator[Running]:
    with running(tmp_path) as found:
        found.configure(settings(tmp_path, service.url, {"quick": "anthropic", "slow": "anthropic"}))
        (tmp_path / "policies").mkdir()
        yield found


def policy(daemon: Running, text: str) -> None:
    (daemon.folder / "policies" / "own.yaml").write_text(text)


def submit(daemon: Running, client: Client, agent: str, name: str, **more: Any) -> str:
    return daemon.submit(client, prompt="Go.", agent=agent, workspace=str(daemon.workspace(name)), **more)


def events(daemon: Running) -> list[Mapping[str, Any]]:
    client = Client(daemon.socket)
    try:
        return [one.data for one in client.stream([("after", 0)]) if one.name]
    finally:
        client.close()


def test_a_breaker_is_tripped_and_reset_by_hand(daemon: Running) -> None:  # A1, R3.5
    client = daemon.start()
    done = daemon.ctl("breaker", "trip", "model/quick", "--for", "2h", "--note", "status page 4711")
    assert (done.returncode, done.stdout.split("  ")[:2]) == (0, ["model/quick", "tripped"]), done.stderr
    task = submit(daemon, client, "quick", "one")
    row = daemon.until(client, task, ("parked",))
    assert "status page 4711" in row["why"]
    shown = daemon.ctl("status").stdout
    assert "BREAKER" in shown
    assert "tripped" in shown
    assert 'status page 4711"' in shown
    daemon.kill()
    client = daemon.start()  # it stays open over a crash
    listed = daemon.ctl_json("breaker", "list")["breakers"]
    assert {one["name"]: one["state"] for one in listed} == {"model/quick": "tripped", "model/slow": "closed"}
    assert daemon.ctl("breaker", "reset", "model/quick").returncode == 0
    assert daemon.until_ended(client, task)["state"] == "completed"
    words = [event["type"] for event in events(daemon)]
    assert words.count("breaker_opened") == words.count("breaker_closed") == 1


def test_a_name_that_is_no_dependency_is_told_what_is_meant(daemon: Running) -> None:
    daemon.start()
    done = daemon.ctl("breaker", "trip", "quick")
    assert (done.returncode, done.stderr.splitlines()) == (
        4,
        ["There is no dependency 'quick'.", "Did you mean model/quick?"],
    )
    assert daemon.ctl("breaker", "trip", "model/quick", "--for", "soon").returncode == 2
    assert daemon.ctl("model", "check", "nobody").returncode == 4
    assert daemon.ctl("tool", "check", "nothing").returncode == 4
    assert daemon.ctl("tool", "check", "bash").stdout == "ok   tool/bash can be called.\n"
    assert daemon.ctl("tool", "list").stdout.startswith("TOOL")


def test_a_revoked_key_parks_and_a_check_wakes(daemon: Running, service: SimulatedService) -> None:  # A2, R3.3
    client = daemon.start()
    service.control_now(faults={"model": "quick", "plan": [{"at": {"times": "always"}, "do": "auth"}]})
    task = submit(daemon, client, "quick", "one")
    assert daemon.until(client, task, ("parked",))["state"] == "parked"
    bad = daemon.ctl("model", "check", "quick")
    assert bad.returncode == 1
    assert "auth (401)" in bad.stdout
    assert "no restart is needed" in bad.stdout
    service.control_now(clear_faults=True)
    good = daemon.ctl("model", "check", "quick")
    assert (good.returncode, good.stdout.splitlines()[1].strip()) == (0, "1 parked task woken"), good.stdout
    assert daemon.until_ended(client, task)["state"] == "completed"


def test_no_more_tasks_of_a_label_at_once_than_limits_allow(daemon: Running) -> None:  # A19, A20, R3.15
    policy(daemon, 'kind: limits\nrules: [{for: "label/batch=*", concurrency: 1}]\n')
    client = daemon.start()
    tasks = [submit(daemon, client, "slow", f"b{n}", labels={"batch": "7"}) for n in range(3)]
    other = submit(daemon, client, "quick", "other")
    most, ended = 0, 0
    until = time.monotonic() + 30
    while ended < len(tasks):
        assert time.monotonic() < until, daemon.log
        rows = [client.get(f"/v1/tasks/{task}") for task in tasks]
        most = max(most, sum(row["state"] == "running" for row in rows))
        ended = sum(row["state"] == "completed" for row in rows)
        time.sleep(0.02)
    assert most == 1
    assert daemon.until_ended(client, other)["state"] == "completed"


def test_an_agent_that_spent_its_day_is_parked_until_midnight_and_a_raised_limit_lets_it_go_on(
    tmp_path: Path, service: SimulatedService
) -> None:  # A3, R7.2
    with running(tmp_path) as daemon:
        document = settings(tmp_path, service.url, {"quick": "anthropic"})
        document["models"]["quick"]["prices"] = {"input": 100, "output": 100}
        daemon.configure(document)
        (tmp_path / "policies").mkdir()
        policy(daemon, "kind: limits\nrules: [{for: agent/quick, cost_usd_per_day: 0.01, do: park}]\n")
        client = daemon.start()
        task = submit(daemon, client, "quick", "one")
        row = daemon.until(client, task, ("parked",))
        assert row["until"] % 86400 == pytest.approx(0, abs=1)
        assert "agent/quick" in row["why"]
        policy(daemon, "kind: limits\nrules: [{for: agent/quick, cost_usd_per_day: 50, do: park}]\n")
        assert daemon.until_ended(client, task)["state"] == "completed"
        models = daemon.ctl_json("model", "list")["models"]
        assert models[0]["cost_usd_today"] > 0
        assert "ceiling_reached" in [event["type"] for event in events(daemon)]


def test_one_model_call_is_as_many_requests_as_policy_says(daemon: Running, service: SimulatedService) -> None:
    # R3.6, R3.2, c13: no layer below brings retries of its own
    policy(
        daemon,
        "kind: retry\nmodel: {retries: 3, base: 100ms, classes: {rate_limited: {do: [retry, stop]}}}\n",
    )
    client = daemon.start()
    service.control_now(faults={"model": "quick", "plan": [{"at": {"times": "always"}, "do": "rate_limited"}]})
    task = submit(daemon, client, "quick", "one")
    row = daemon.until_ended(client, task)
    assert row["reason"] == "service_unavailable"
    assert service.requests_now()["total"] == 4
    waits = [event["data"]["after_s"] for event in events(daemon) if event["type"] == "retry_wait"]
    assert len(waits) == 3
    assert waits == sorted(waits)
    assert all(0.1 * 2**n <= wait <= 0.125 * 2**n + 0.001 for n, wait in enumerate(waits))
