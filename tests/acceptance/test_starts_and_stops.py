"""Starts and stops: what crashes interrupted is held after too many of them; a planned stop is clean however early."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.running import Running, plain_environment, running, settings
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance

SCRIPT = {
    "m": {
        "turns": [
            {"when": {"first": True}, "call": {"tool": "bash", "args": {"command": "touch begun; sleep 30"}}},
            {"when": {"user_matches": "quick"}, "say": "Quick."},
            {"say": "Done."},
        ]
    },
    "quick": {"turns": [{"say": "Quick."}]},
}


def _configured(daemon: Running, service: SimulatedService, tmp_path: Path) -> None:
    daemon.configure(settings(tmp_path, service.url, dict.fromkeys(SCRIPT, "anthropic")))


def _events(daemon: Running) -> list[str]:
    with contextlib.closing(sqlite3.connect(f"file:{daemon.folder}/state/harnessd.db?mode=ro", uri=True)) as store:
        return [row[0] for row in store.execute("SELECT type FROM events ORDER BY seq")]


def _begun(daemon: Running) -> None:
    ends = time.monotonic() + 20
    begun = daemon.workspace("a") / "begun"
    while not begun.exists():
        assert time.monotonic() < ends, daemon.log
        time.sleep(0.02)
    begun.unlink()


def test_three_unclean_starts_hold_what_was_interrupted_until_a_person_resumes(tmp_path: Path) -> None:
    # R6.1a
    works = {"when": {"results": {"max": 2}}, "call": {"tool": "bash", "args": {"command": "touch begun; sleep 30"}}}
    again = {"m": {"turns": [works, {"say": "Done."}]}}
    with running_simulator(SCRIPT | again) as service, running(tmp_path) as daemon:
        _configured(daemon, service, tmp_path)
        client = daemon.start()
        task = daemon.submit(client, prompt="Work.", agent="m", workspace=str(daemon.workspace("a")))
        for _ in range(3):
            _begun(daemon)
            daemon.kill()
            client = daemon.start()
        row = client.get(f"/v1/tasks/{task}")
        assert (row["state"], row["waits_for"]) == ("paused", "resume")
        assert "harnessd started 3 times within 5 minutes" in row["why"]
        other = daemon.submit(client, prompt="quick", agent="quick", workspace=str(daemon.workspace("b")))
        assert daemon.until_ended(client, other)["state"] == "completed", "the daemon works for the others"
        assert "harnessctl resume --held" in daemon.ctl("status").stdout
        assert "recovery_stopped" in _events(daemon)
        done = daemon.ctl("resume", "--held")
        assert (done.returncode, task in done.stdout) == (0, True)
        assert daemon.until_ended(client, task)["state"] == "completed"
        assert "resume --held" not in daemon.ctl("status").stdout
        assert daemon.ctl("resume", "--held").returncode == 0


def test_planned_stops_are_never_unclean(tmp_path: Path) -> None:
    # R6.1a
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon:
        _configured(daemon, service, tmp_path)
        client = daemon.start()
        task = daemon.submit(client, prompt="Work.", agent="m", workspace=str(daemon.workspace("a")))
        for _ in range(4):
            assert daemon.stop() == 0
            client = daemon.start()
        row = daemon.until_ended(client, task)
        assert (row["state"], row["recoveries"]) == ("completed", 0)
        logged = _events(daemon)
        assert [logged.count(word) for word in ("daemon_started", "drained", "daemon_stopped")] == [5, 4, 4]


@pytest.mark.parametrize("delay_s", [0.3, 0.45, 0.6, 0.8, 1.0, 1.3])
def test_a_stop_during_the_start_is_clean(tmp_path: Path, delay_s: float) -> None:
    """SIGTERM from the program's own first line on ends with 0; only Python's own start lies before that."""
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon:
        _configured(daemon, service, tmp_path)
        daemon.spawn()
        assert daemon.process is not None
        listening = f"/proc/{daemon.process.pid}/status"
        while not _catches_term(Path(listening)):
            assert daemon.process.poll() is None, daemon.log
            time.sleep(0.005)
        time.sleep(delay_s - 0.3)
        assert daemon.stop() == 0, daemon.log
        assert "Traceback" not in daemon.log


def _catches_term(status: Path) -> bool:
    caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_events_tell_of_a_helper_that_failed(tmp_path: Path) -> None:
    """A part of the daemon that dies of our own fault is an event that people can be told of, not only a log line."""
    program = """
import asyncio, sys
from harnessd.domain.events import EventType
from harnessd.runtime import daemon
from harnessd.runtime.daemon import WallClock
from harnessd.stores import open_store

class Parts:
    clock = WallClock()
    pool = None

async def main():
    parts = Parts()
    parts.store = open_store(sys.argv[1])
    await parts.store.open("a1")
    async def fails():
        raise RuntimeError("our own bug")
    helper = asyncio.create_task(fails(), name="sweep")
    helper.add_done_callback(lambda done: daemon._tell_fault(parts, done))
    await asyncio.wait({helper})
    for _ in range(100):
        events = [(event.type, dict(event.data)) for event in await parts.store.events()]
        if events:
            break
        await asyncio.sleep(0.02)
    print(events)
    await parts.store.close()
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x.db")],
        capture_output=True,
        text=True,
        env=plain_environment() | {"PYTHONPATH": os.fspath(Path(__file__).resolve().parents[2])},
        timeout=60,
        check=True,
    )
    assert "internal_error" in done.stdout, json.dumps([done.stdout, done.stderr])
    assert "sweep: RuntimeError: our own bug" in done.stdout
