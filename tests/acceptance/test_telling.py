"""Telling people: what policy asks for is told, once for each incident, whatever happens to daemon and target."""

from __future__ import annotations

import json
import sqlite3
import stat
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.receiver import receiver
from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

SECRET = "T0815-CANARY-hook-4711"
DEAD_KEY = {"faults": {"plan": [{"request": {"min": 1}, "do": "auth"}]}, "turns": [{"say": "Never said."}]}
QUIET = {"one": {"turns": [{"say": "Done."}]}}
OPS = {"webhook": {"url": {"env": "OPS_URL"}, "headers": {"authorization": {"env": "OPS_TOKEN"}}}}


def policy(daemon: Running, channels: dict[str, Any], rules: list[dict[str, Any]]) -> None:
    folder = daemon.folder / "policies"
    folder.mkdir(exist_ok=True)
    document = {"kind": "notify", "name": "default", "channels": channels, "rules": rules}
    (folder / "notify.yaml").write_text(json.dumps(document))


def waiting(daemon: Running) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(daemon.folder / "state" / "harnessd.db")) as store:
        return store.execute("SELECT channel, alert, tries FROM outbox").fetchall()


def until(true: Callable[[], Any], timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def break_policies(daemon: Running) -> None:
    (daemon.folder / "policies" / "limits.yaml").write_text("kind: limits\nrules: [{for: model/*, no_such_key: 3}]\n")


def test_an_invalid_policy_is_told_once_and_its_end_to_the_same_channel(tmp_path: Path) -> None:
    # R3.4, policies.md notify: one incident is one message, the end is told too, secrets are read at each use
    with running_simulator(QUIET) as service, running(tmp_path) as daemon:
        with receiver() as ops:
            policy(daemon, {"ops": OPS}, [{"when": {"event": ["policy_invalid"]}, "to": ["ops"]}])
            daemon.configure(settings(tmp_path, service.url, {"one": "anthropic"}))
            client = daemon.start(OPS_URL=f"{ops.url}/{SECRET}", OPS_TOKEN=f"Bearer {SECRET}-x1")
            break_policies(daemon)
            (told,) = ops.until(1, event="policy_invalid")
            assert (told.path, told.headers["authorization"]) == (f"/{SECRET}", f"Bearer {SECRET}-x1")
            assert (told.body["state"], told.body["next"]) == ("new", "harnessctl policy check")
            assert "limits.yaml" in told.body["sentence"]
            assert told.headers["idempotency-key"] == told.body["key"]
            (daemon.folder / "policies" / "limits.yaml").unlink()
            policy(daemon, {"ops": OPS}, [{"when": {"event": ["policy_invalid", "drained"]}, "to": ["ops"]}])
            (end,) = ops.until(1, event="policy_applied")
            assert end.body["title"] == "harnessd: policies r3 are in force"
            tried = daemon.ctl("notify", "test", "ops")
            assert (tried.returncode, tried.stdout) == (0, "ops: delivered: status 200: ok\n")
            ops.status, ops.body = 500, f"no such hook {SECRET}"
            tried = daemon.ctl("notify", "test", "ops")
            assert tried.returncode == 1
            assert "NOT delivered: status 500: no such hook [" in tried.stdout
            unknown = daemon.ctl("notify", "test", "nobody")
            assert (unknown.returncode, unknown.stderr) == (4, "There is no channel nobody.\nThere are: log, ops.\n")
            assert len(ops.until(0, event="policy_invalid")) == 1
            assert client.get("/v1/status")["ready"]
            assert daemon.stop() == 0
        written = b"".join(path.read_bytes() for path in daemon.folder.rglob("*") if path.is_file())
        assert SECRET.encode() not in written


def test_a_killed_daemon_tells_what_happened_before_it_died(tmp_path: Path) -> None:
    # J20, F39: at least once over kill -9, with the same dedupe key in each try; the failure is an event itself
    with running_simulator(QUIET) as service, running(tmp_path) as daemon, receiver() as ops:
        pager = tmp_path / "pager"
        pager.write_text(
            f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'paged')!r}, 'a').write(sys.stdin.read())\n"
        )
        pager.chmod(pager.stat().st_mode | stat.S_IXUSR)
        channels = {"ops": OPS, "pager": {"command": [str(pager)]}}
        rules: list[dict[str, Any]] = [
            {"when": {"event": "notify_failed"}, "to": ["ops", "pager"]},
            {"when": {"event": "policy_invalid"}, "to": ["ops"]},
            {"to": []},
        ]
        policy(daemon, channels, rules)
        daemon.configure(settings(tmp_path, service.url, {"one": "anthropic"}))
        ops.status = 503
        daemon.start(OPS_URL=ops.url, OPS_TOKEN="t")
        break_policies(daemon)
        (first, *_) = ops.until(1, event="policy_invalid")
        until((tmp_path / "paged").exists)
        daemon.kill()
        # The pager may be told again: it was, and the daemon died before it could write that down.
        ((channel, alert, tries),) = [row for row in waiting(daemon) if row[0] == "ops"]
        assert (channel, json.loads(alert)["event"]) == ("ops", "policy_invalid")
        assert tries >= 1
        ops.status = 200
        before = len(ops.until(1, event="policy_invalid"))
        daemon.start(OPS_URL=ops.url, OPS_TOKEN="t")
        again = ops.until(before + 1, event="policy_invalid")[-1]
        assert again.body["key"] == first.body["key"]
        until(lambda: not waiting(daemon))
        assert daemon.stop() == 0
        paged = json.loads((tmp_path / "paged").read_text().splitlines()[-1])
        assert (paged["event"], paged["dependency"]) == ("notify_failed", "notify/ops")
        # Nobody is told by a channel that this channel cannot be told.
        assert ops.until(0, event="notify_failed") == []


def test_a_dead_key_is_told_as_that(tmp_path: Path) -> None:
    # A2, R3.4: the dead credential is an event, beside the outage that it is for the tasks
    with running_simulator({"one": DEAD_KEY}) as service, running(tmp_path) as daemon, receiver() as ops:
        policy(daemon, {"ops": OPS}, [{"when": {"event": ["credential_dead", "degraded"]}, "to": ["ops"]}, {"to": []}])
        daemon.configure(settings(tmp_path, service.url, {"one": "anthropic"}))
        client = daemon.start(OPS_URL=ops.url, OPS_TOKEN="t")
        for name in ("a", "b"):
            daemon.submit(client, prompt="Go.", agent="one", workspace=str(daemon.workspace(name)))
        (told,) = ops.until(1, event="credential_dead")
        assert (told.body["dependency"], told.body["state"]) == ("model/one", "new")
        assert "key" in told.body["sentence"]
        assert daemon.stop() == 0
        assert len(ops.got) == 1
