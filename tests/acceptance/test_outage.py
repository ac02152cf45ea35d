"""The only model dies under a real daemon and comes back: no task, no turn, one alert at the start, one at the end.

The minute for real: OUTAGE_S=60 pytest tests/acceptance/test_outage.py
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli.client import Client
from tests.receiver import receiver
from tests.running import running, settings
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance

OUTAGE_S = float(os.environ.get("OUTAGE_S", "6"))
TASKS, TURNS = 50, 4
STEPS = {
    "primary": {
        "turns": [
            {"when": {"results": {"min": TURNS - 1}}, "say": "Done.", "delay": "100ms"},
            {"call": {"tool": "list_files", "args": {"path": "."}}, "delay": "100ms"},
        ]
    }
}
# Ten times the speed of what is shipped: waits, the time until a probe, the way back.
POLICIES = """
kind: retry
model: {retries: 10, base: 50ms, cap: 3s}
---
kind: breaker
rules: [{for: "model/*", open: 1s, open_max: 3s, ramp: 5s}]
---
kind: notify
channels: {ops: {webhook: {url: {env: OPS_URL}}}}
rules: [{when: {event: [outage_started, breaker_opened, task_stopped, needs_human]}, to: [ops]}]
"""
DEAD: dict[str, Any] = {
    "model": "primary",
    "rate": [
        {"p": 0.4, "do": "overloaded"},
        {"p": 0.5, "do": "reset"},
        {"p": 0.5, "do": "html_502"},
        {"p": 1, "do": {"cut_after": "100B"}},
    ],
}


def ended(client: Client) -> bool:
    counts = client.get("/v1/status")["tasks"]
    return not any(counts[state] for state in ("queued", "running", "parked"))


def until_ended(client: Client, within_s: float) -> None:
    ends = time.monotonic() + within_s
    while not ended(client):
        assert time.monotonic() < ends, client.get("/v1/status")
        time.sleep(0.1)


def most_at_once(entries: Sequence[Mapping[str, Any]], start: float, end: float) -> int:
    """How many answers were under way together between two moments."""
    moments = [entry["at"] for entry in entries if start <= entry["at"] <= end]
    counts = [sum(1 for one in entries if one["at"] <= at < one["at"] + one["took_s"]) for at in moments]
    return max(counts)


def kill_the_model(service: SimulatedService) -> None:
    service.control_now(faults=DEAD)


@pytest.mark.slow
@pytest.mark.timeout(120 + 4 * OUTAGE_S)
def test_a_dead_primary_costs_no_task_no_turn_and_two_alerts(tmp_path: Path) -> None:
    # R3.2a, R3.5
    with running_simulator(STEPS) as service, running(tmp_path) as daemon, receiver() as ops:
        daemon.configure(settings(tmp_path, service.url, {"primary": "anthropic"}, workers=16))
        (tmp_path / "policies").mkdir()
        (tmp_path / "policies" / "own.yaml").write_text(POLICIES)
        client = daemon.start(OPS_URL=ops.url)
        for number in range(TASKS):
            daemon.submit(client, prompt=f"Job {number}.", workspace=str(daemon.workspace(str(number))))
        while service.requests_now(0)["by_status"].get("200", 0) < TASKS:  # under way, and not yet done
            time.sleep(0.02)
        kill_the_model(service)
        time.sleep(2.0)  # what runs has met it by now
        asked = service.requests_now(0)["total"]
        time.sleep(OUTAGE_S)
        probes = service.requests_now(0)["total"] - asked
        status = client.get("/v1/status")
        # Parked ones look again when their time comes, so some may just be doing so.
        assert status["tasks"]["parked"], status["tasks"]
        assert not status["tasks"]["stopped"], status["tasks"]
        assert probes <= 2 + OUTAGE_S, "the dead service is asked by one probe at a time"
        service.control_now(clear_faults=True)
        well = time.time()
        until_ended(client, 60 + OUTAGE_S)
        rows = client.get("/v1/tasks", [("limit", 1000)])["tasks"]
        assert Counter(row["state"] for row in rows) == {"completed": TASKS}
        assert {row["turns"] for row in rows} == {TURNS}
        assert {row["tool_calls"] for row in rows} == {TURNS - 1}
        ops.until(1, event="outage_ended")
        ops.until(1, event="breaker_closed")
        told = Counter((got.body["event"], got.body["state"]) for got in ops.got)
        assert told == {
            ("outage_started", "new"): 1,
            ("outage_ended", "ended"): 1,
            ("breaker_opened", "new"): 1,
            ("breaker_closed", "ended"): 1,
        }
        asked = [entry for entry in service.requests_now(2000)["last"] if entry["at"] > well]
        first = min(entry["at"] for entry in asked if entry["status"] == 200 and not entry["fault"])
        # Gradually: eight at once from 5 s on, one or two in the first second.
        assert most_at_once(asked, first + 0.2, first + 1.0) <= 3
        assert most_at_once(asked, first + 0.2, first + 2.5) <= 5
        assert daemon.stop() == 0
