"""Stops at odd moments: a drain that is cut, a second signal, a store that vanishes; nothing runs on unseen."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harnessd.cli.client import Client, Problem
from tests.acceptance.test_cancel import sleepers
from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance

SCRIPTS = {
    "long": {
        "turns": [
            {"when": {"results": {"min": 1}}, "say": "Done."},
            {"say": "I wait.", "call": {"tool": "bash", "args": {"command": "echo begun; sleep 317"}}},
        ]
    },
    "tidy": {
        "turns": [
            {"when": {"shown_matches": "not there any more"}, "say": "Somebody took my folder."},
            {"say": "I tidy.", "call": {"tool": "bash", "args": {"command": 'rm -rf -- "$PWD"'}}},
        ]
    },
    "poison": {
        "turns": [
            {"when": {"first": True}, "say": "One.", "call": {"tool": "bash", "args": {"command": "echo sent >> out"}}},
            {
                "when": {"results": {"max": 9}},
                "say": "Another way.",
                "call": {
                    "tool": "bash",
                    "args": {"command": "kill -9 $(cat pid); sleep 9"},
                },
            },
            {"say": "Done."},
        ]
    },
    "quick": {"turns": [{"say": "Hello."}]},
}


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with running_simulator(SCRIPTS) as found:
        yield found


@pytest.fixture
def daemon(tmp_path: Path, service: SimulatedService) -> Iterator[Running]:
    with running(tmp_path) as found:
        found.configure(settings(tmp_path, service.url, dict.fromkeys(SCRIPTS, "anthropic"), drain="1s"))
        yield found


def long_ago(daemon: Running) -> None:
    """The starts until now lie far apart: three unclean ones in five minutes would hold the task before its limit."""
    with contextlib.closing(sqlite3.connect(daemon.folder / "state" / "harnessd.db")) as store, store:
        store.execute("UPDATE starts SET at = at - 400")


def asleep(daemon: Running, client: Client) -> str:
    """A task whose tool is under way."""
    task = daemon.submit(client, prompt="Wait.", agent="long", workspace=str(daemon.workspace("a")))
    until = time.monotonic() + 20
    while not sleepers("317"):
        assert time.monotonic() < until, daemon.log
        time.sleep(0.02)
    return task


def test_a_long_tool_is_cut_at_the_end_of_the_drain_and_costs_no_recovery(daemon: Running) -> None:
    # R6.1a
    task = asleep(daemon, daemon.start())
    began = time.monotonic()
    assert daemon.stop() == 0
    assert 1 <= time.monotonic() - began < 8
    assert sleepers("317") == []
    client = daemon.start()
    row = daemon.until_ended(client, task)
    assert (row["state"], row["recoveries"]) == ("completed", 0)
    told = " ".join(node["text"] for node in client.get(f"/v1/tasks/{task}/nodes")["nodes"])
    assert "outcome unknown" in told
    assert "begun" in told, "what the call had written is told"


def test_a_second_signal_does_not_wait_for_the_drain(daemon: Running) -> None:
    daemon.configure({**json.loads(daemon.config.read_text()), "drain": "60s"})
    task = asleep(daemon, daemon.start())
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGTERM)
    until = time.monotonic() + 10
    while "draining" not in daemon.log:
        assert time.monotonic() < until
        time.sleep(0.02)
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.process.wait(10) == 0
    assert sleepers("317") == []
    assert daemon.start().get(f"/v1/tasks/{task}")["recoveries"] == 0


def test_an_idle_daemon_whose_store_is_gone_stops_at_the_first_write(daemon: Running) -> None:
    client = daemon.start()
    shutil.rmtree(daemon.folder / "state")
    with pytest.raises(Problem) as refused:
        daemon.submit(client, prompt="x", agent="quick", workspace=str(daemon.workspace("a")))
    assert refused.value.code == "store_lost"
    ended_with_a_sentence(daemon)


def test_a_working_daemon_whose_store_is_gone_leaves_no_process(daemon: Running) -> None:
    # R1.2
    client = daemon.start()
    asleep(daemon, client)
    shutil.rmtree(daemon.folder / "state")
    with pytest.raises(Problem):
        daemon.submit(client, prompt="x", agent="quick", workspace=str(daemon.workspace("b")))
    ended_with_a_sentence(daemon)
    assert sleepers("317") == []


def ended_with_a_sentence(daemon: Running) -> None:
    assert daemon.process is not None
    assert daemon.process.wait(10) == 1
    assert "was deleted or replaced while the daemon ran" in daemon.log
    assert "harnessd restore FILE" in daemon.log
    assert "Traceback" not in daemon.log


def test_a_workspace_that_vanished_under_a_tool_is_told_to_the_model(daemon: Running) -> None:
    # R2.1
    client = daemon.start()
    task = daemon.submit(client, prompt="Tidy.", agent="tidy", workspace=str(daemon.workspace("a")))
    row = daemon.until_ended(client, task)
    assert row["sentence"] == "Somebody took my folder."
    assert row["tool_calls"] == 1, "what could not be taken back is not begun"


@pytest.mark.parametrize("what", ["removed", "a link to elsewhere", "a file"])
def test_a_workspace_is_looked_at_again_before_work_goes_on(daemon: Running, what: str) -> None:
    client = daemon.start()
    task = asleep(daemon, client)
    daemon.kill()
    space = daemon.workspace("a")
    space.rename(daemon.folder / "elsewhere")
    if what == "a link to elsewhere":
        space.symlink_to(daemon.folder / "elsewhere")
    elif what == "a file":
        space.write_text("")
    client = daemon.start()
    row = daemon.until_ended(client, task)
    assert (row["state"], row["reason"]) == ("stopped", "error")
    assert str(space) in row["sentence"]
    space.unlink(missing_ok=True)
    (daemon.folder / "elsewhere").rename(space)
    assert daemon.ctl("resume", task).returncode == 0
    assert daemon.until_ended(client, task)["state"] == "completed"


def test_a_task_that_kills_the_daemon_is_put_to_a_person(daemon: Running) -> None:
    # R6.1a, case g15
    client = daemon.start()
    space = daemon.workspace("a")
    task = daemon.submit(client, prompt="Live dangerously.", agent="poison", workspace=str(space))
    deaths = 0
    row = client.get(f"/v1/tasks/{task}")
    while row["state"] != "waiting":
        assert daemon.process is not None
        (space / "pid").write_text(str(daemon.process.pid))
        until = time.monotonic() + 20
        while daemon.process.poll() is None and row["state"] != "waiting":
            assert time.monotonic() < until, daemon.log
            with contextlib.suppress(Problem):
                row = client.get(f"/v1/tasks/{task}")
            time.sleep(0.02)
        if daemon.process.poll() is not None:
            deaths += 1
            assert deaths <= 4, daemon.log
            long_ago(daemon)
            client = daemon.start()
    assert deaths == 4, "three recoveries, and the fourth asks first"
    assert (space / "out").read_text() == "sent\n", "what was done is not done again"
    assert "interrupted" in row["questions"][0]["sentence"]
    other = daemon.submit(client, prompt="Hello?", agent="quick", workspace=str(daemon.workspace("b")))
    assert daemon.until_ended(client, other)["state"] == "completed", "the daemon stays up for the others"
    # R3.8: what ends here was interrupted, not wished away.
    assert daemon.ctl("answer", row["questions"][0]["id"], "stop").returncode == 0
    ended = daemon.until_ended(client, task)
    assert (ended["reason"], ended["class"]) == ("interrupted", "hang")
    assert "harnessctl resume" in daemon.ctl("status", task).stdout
