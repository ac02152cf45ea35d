"""A session never dies of its own history: on a running daemon, against a service as strict as the real ones."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.transfer.chain import CHAIN_START, chain_hash, digest
from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance


def step(number: int, command: str) -> dict[str, Any]:
    return {"when": {"results": number}, "say": "Working.", "call": {"tool": "bash", "args": {"command": command}}}


def until_calls(daemon: Running, client: Any, task: str, number: int) -> None:
    until = time.monotonic() + 40
    while client.get(f"/v1/tasks/{task}")["tool_calls"] < number:
        assert time.monotonic() < until, daemon.log[-2000:]
        time.sleep(0.05)


@pytest.mark.parametrize("protocol", ["anthropic", "openai-chat", "openai-responses"])
def test_killed_in_the_middle_of_a_tool_the_view_is_taken(protocol: str, tmp_path: Path) -> None:
    # R4.7, R2.2, R6.1
    script = {"m": {"turns": [step(0, "sleep 0.1"), step(1, "touch begun; sleep 600"), {"say": "All done."}]}}
    with running_simulator(script) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"m": protocol}))
        client = daemon.start()
        space = daemon.workspace("a")
        task = daemon.submit(client, prompt="Go.", agent="m", workspace=str(space))
        until = time.monotonic() + 40
        while not (space / "begun").exists():
            assert time.monotonic() < until, daemon.log[-2000:]
            time.sleep(0.02)
        daemon.kill()
        row = daemon.until_ended(daemon.start(), task)
        assert row["state"] == "completed", row
        asked = service.requests_now(shown=True)["last"]
        assert [entry["status"] for entry in asked if entry["status"] >= 400] == []
        assert "outcome unknown" in json.dumps(asked[-1])


def test_a_template_that_wants_turns_gets_them(tmp_path: Path) -> None:
    # R3.3, R4.7: refused once, sent in a stricter view, and at every later turn
    script = {
        "m": {
            "turns": [step(0, "sleep 3"), step(1, "true"), {"say": "All done."}],
            "dialect": "strict-alternation",
        }
    }
    with running_simulator(script) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"m": "openai-chat"}))
        client = daemon.start()
        task = daemon.submit(client, prompt="Go.", agent="m", workspace=str(daemon.workspace("a")))
        until_calls(daemon, client, task, 1)
        assert daemon.ctl("send", task, "And hurry.").returncode == 0
        row = daemon.until_ended(client, task)
        assert row["state"] == "completed", row
        assert "repair" in daemon.ctl("why", task).stdout
        statuses = [entry["status"] for entry in service.requests_now()["last"]]
        assert statuses.count(400) == 1, statuses


def damage(database: Path, task: str) -> None:
    """Whoever edits a stored history by hand: a result answers a call that is not there; the chain is made to fit."""
    with sqlite3.connect(database) as store:
        rows = store.execute(
            "SELECT seq, id, parent, kind, payload, at FROM nodes WHERE task = ? ORDER BY seq", (task,)
        ).fetchall()
        before, done = CHAIN_START, False
        for seq, id_, parent, kind, payload, at in rows:
            stored = json.loads(payload)
            if kind == "tool_result" and not done:
                stored["blocks"][0]["tool_use_id"] = "lost"
                payload, done = json.dumps(stored, separators=(",", ":"), sort_keys=True), True  # noqa: PLW2901
            before = chain_hash(before, digest(id_, parent, kind, at, payload))
            store.execute("UPDATE nodes SET payload = ?, chain = ? WHERE seq = ?", (payload, before, seq))
        store.execute("UPDATE sessions SET chain = ? WHERE task = ?", (before, task))
        assert done
    store.close()


@pytest.mark.parametrize("protocol", ["anthropic", "openai-chat", "openai-responses"])
def test_a_history_that_was_made_illegal_goes_on(protocol: str, tmp_path: Path) -> None:
    # R4.7
    script = {"m": {"turns": [step(0, "echo one"), step(1, "echo two"), {"say": "All done."}]}}
    with running_simulator(script) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"m": protocol}))
        client = daemon.start()
        body = {"prompt": "Go.", "agent": "m", "workspace": str(daemon.workspace("a")), "budget": {"tool_calls": 1}}
        task = daemon.submit(client, **body)
        row = daemon.until_ended(client, task)
        assert row["state"] == "stopped", row
        daemon.stop()
        damage(tmp_path / "state" / "harnessd.db", task)
        client = daemon.start()
        resumed = daemon.ctl("resume", task, "--budget", "tool_calls=9", "--say", "Go on.")
        assert resumed.returncode == 0, resumed.stderr
        row = daemon.until_ended(client, task)
        assert row["state"] == "completed", (row, daemon.log[-3000:])
        events = daemon.ctl("logs", task, "--event", "context_repaired")
        assert "orphan_result" in daemon.ctl("logs", task, "--event", "context_repaired", "--json").stdout
        assert events.stdout.count("context_repaired") == 2, events.stdout
        assert [e["status"] for e in service.requests_now()["last"] if e["status"] >= 400] == []
