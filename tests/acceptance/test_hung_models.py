"""Model services that hang in each way, over all three protocols: each attempt ends within seconds of its limit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

PROTOCOLS = ("anthropic", "openai-chat", "openai-responses")
LONG = "word " * 400
# What the service does, and whether the whole call's clock must end it, as useful events do come.
HANGS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "headers": ({"delay_headers": "forever"}, [{"say": "Never."}]),
    "first": ({"stall": 0}, [{"say": "Never."}]),
    "one": ({"stall": 1}, [{"say": "Never."}]),
    "middle": ({"stall": 3}, [{"say": LONG}]),
    "pings": ({"pings_only": 1, "every": "200ms"}, [{"say": "Never."}]),
    "drip": ({"slow_drip": "300ms", "bytes": 1}, [{"say": LONG}]),
}
LIMITS = "kind: limits\nrules: [{for: model/*, timeout: {connect: 2s, first_event: 2s, idle: 2s, call: 5s}}]\n"
RETRY = "kind: retry\nmodel: {retries: 0, classes: {timeout: {do: [stop]}, stream_interrupted: {do: [stop]}}}\n"


def test_whatever_hangs_ends_classified_and_leaves_a_sound_history(tmp_path: Path) -> None:
    # R3.7, R3.11, d12
    scripts = {
        f"{name}-{number}": {
            "turns": turns,
            "faults": {"plan": [{"request": {"min": 1}, "do": do}]},
        }
        for name, (do, turns) in HANGS.items()
        for number in range(len(PROTOCOLS))
    }
    models = {name: PROTOCOLS[int(name[-1])] for name in scripts}
    with running_simulator(scripts) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, models, workers=len(models)))
        (tmp_path / "policies").mkdir()
        (tmp_path / "policies" / "limits.yaml").write_text(LIMITS)
        (tmp_path / "policies" / "retry.yaml").write_text(RETRY)
        client = daemon.start()
        started = time.monotonic()
        tasks = {
            name: daemon.submit(client, prompt="Go.", agent=name, workspace=str(daemon.workspace(name)))
            for name in models
        }
        for name, task in tasks.items():
            row = daemon.until_ended(client, task, 40.0)
            assert row["class"] in ("timeout", "stream_interrupted"), (name, row)
            assert row["reason"] == "service_unavailable", (name, row)
            kinds = [node["kind"] for node in client.get(f"/v1/tasks/{task}/nodes")["nodes"]]
            assert kinds == ["user"], f"{name}: half an answer is no node"
        assert time.monotonic() - started < 5.0 + 25.0, "eighteen at once, on a busy machine"
        assert client.get("/v1/status")["running"] == 0
