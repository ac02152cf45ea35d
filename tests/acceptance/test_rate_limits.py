"""50 tasks against a service that lets through less than they ask for: all finish, and hardly a request is wasted."""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

TASKS, TURNS = 50, 2
TOKENS = 300  # of a request here, roughly
WITHIN = 1.2  # R3.16: requests, of what the limit allows
TURNS_OF = [
    {"when": {"results": {"min": TURNS - 1}}, "say": "Done.", "delay": "30ms"},
    {"call": {"tool": "list_files", "args": {"path": "."}}, "delay": "30ms"},
]
QUOTAS: dict[str, dict[str, Any]] = {
    "requests, with a time to come back": {"requests": 12, "per": "1s"},
    "requests, without a word": {"requests": 12, "per": "1s", "retry_after": False},
    "tokens, with a time to come back": {"tokens": 12 * TOKENS, "per": "1s"},
    "tokens, without a word": {"tokens": 12 * TOKENS, "per": "1s", "retry_after": False},
    "three at once, without a word": {"at_once": 3, "retry_after": False},
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("quota", QUOTAS.values(), ids=QUOTAS)
def test_fifty_tasks_do_not_storm_a_service_that_limits_them(tmp_path: Path, quota: dict[str, Any]) -> None:
    # R3.2, R3.15, R3.16: under the shipped policies; nobody told harnessd of the limit
    script = {"primary": {"turns": TURNS_OF, "quota": quota}}
    with running_simulator(script) as service, running(tmp_path) as daemon:
        agent = {"model": "primary", "system": "You work.", "tools": ["list_files"]}
        document = settings(tmp_path, service.url, {"primary": "anthropic"}, workers=TASKS)
        daemon.configure(document | {"agents": {"primary": agent}})
        client = daemon.start()
        for number in range(TASKS):
            daemon.submit(client, prompt=f"Job {number}.", workspace=str(daemon.workspace(str(number))))
        ends = time.monotonic() + 120
        while client.get("/v1/status")["tasks"]["completed"] < TASKS:
            assert time.monotonic() < ends, client.get("/v1/status")
            time.sleep(0.1)
        seen = service.requests_now(2000)
        entries = [entry for entry in seen["last"] if entry["model"]]
        let_through = [entry for entry in entries if entry["status"] == 200]
        assert Counter(entry["status"] for entry in entries).keys() <= {200, 429}
        assert len(let_through) == TASKS * TURNS
        assert seen["violations"] == []
        total = len(entries)
        allowed = float(TASKS * TURNS)
        if "at_once" not in quota:
            spans = math.ceil(entries[-1]["at"] - entries[0]["at"])
            allowed = max(allowed, (spans + 1) * 12.0)
        assert total <= WITHIN * allowed, f"{total} requests, {allowed} allowed"
        assert total - TASKS * TURNS <= 0.35 * TASKS * TURNS, f"{total} requests for {TASKS * TURNS}"
        assert daemon.stop() == 0
