"""Damage inside the store: it is said whose record it is, nothing is run from it, and all others live on."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance

LONG = 30_000  # characters: the middle of it lies in pages of its own


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with running_simulator({"m": {"turns": [{"say": "Hello."}]}}) as found:
        yield found


@pytest.fixture
def daemon(tmp_path: Path, service: SimulatedService) -> Iterator[Running]:
    with running(tmp_path) as found:
        found.configure(settings(tmp_path, service.url, {"m": "anthropic"}, drain="1s"))
        yield found


def zero(daemon: Running, letter: bytes) -> int:
    """A hundred zero bytes in each place where the letter stands in a row; how many places there were."""
    path = daemon.folder / "state" / "harnessd.db"
    raw, place, count = bytearray(path.read_bytes()), 0, 0
    while (place := raw.find(letter * 3000, place)) >= 0:
        raw[place + 500 : place + 600] = bytes(100)
        place, count = place + 3000, count + 1
    path.write_bytes(raw)
    return count


def test_one_damaged_task_keeps_no_other_from_running(daemon: Running) -> None:
    # Case e04
    client = daemon.start()
    spaces = [str(daemon.workspace(name)) for name in "abc"]
    sound = daemon.submit(client, prompt="Hello.", workspace=spaces[0])
    daemon.until_ended(client, sound)
    damaged = daemon.submit(client, prompt="B" * LONG, workspace=spaces[1], not_before=time.time() + 3)
    assert daemon.stop() == 0
    assert zero(daemon, b"B")
    client = daemon.start()
    row = daemon.until_ended(client, damaged)
    assert (row["state"], row["reason"], row["class"]) == ("stopped", "internal_error", "state_corrupt")
    assert "damaged" in row["sentence"]
    assert row["turns"] == 0
    assert {task["task"] for task in client.get("/v1/tasks")["tasks"]} == {sound, damaged}
    assert daemon.ctl("list").returncode == 0
    assert daemon.ctl("show", sound, "n2").returncode == 0
    another = daemon.submit(client, prompt="Hello.", workspace=spaces[2])
    assert daemon.until_ended(client, another)["state"] == "completed"


def test_a_damaged_history_is_not_gone_on_from(daemon: Running, service: SimulatedService) -> None:
    # Case e04, R1.2
    client = daemon.start()
    ended = daemon.submit(client, prompt="A" * LONG, workspace=str(daemon.workspace("a")))
    daemon.until_ended(client, ended)
    service.control_now(hold=True)
    begun = daemon.submit(client, prompt="A" * LONG, workspace=str(daemon.workspace("b")))
    until = time.monotonic() + 20
    while not service.requests_now()["held"]:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert daemon.stop() == 0
    assert zero(daemon, b"A") >= 4
    service.control_now(release=True)
    asked = service.requests_now()["total"]
    client = daemon.start()
    assert daemon.until_ended(client, begun)["reason"] == "internal_error"
    refused = daemon.ctl("retry", ended)
    assert refused.returncode == 1
    assert "node n1 is damaged" in refused.stderr
    assert service.requests_now()["total"] == asked, "no model was shown a history with a hole"
    other = daemon.submit(client, prompt="Hello.", workspace=str(daemon.workspace("c")))
    assert daemon.until_ended(client, other)["state"] == "completed"


def test_a_history_that_was_changed_is_noticed_before_it_is_used(daemon: Running, service: SimulatedService) -> None:
    # Case e04, I5: every byte of it is sound, and it is not what was written
    client = daemon.start()
    service.control_now(hold=True)
    begun = daemon.submit(client, prompt="Pay nobody.", workspace=str(daemon.workspace("a")))
    until = time.monotonic() + 20
    while not service.requests_now()["held"]:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert daemon.stop() == 0
    database = sqlite3.connect(daemon.folder / "state" / "harnessd.db")
    with database:
        changed = database.execute("UPDATE nodes SET payload = replace(payload, 'Pay nobody', 'Pay Mallory')").rowcount
    database.close()
    assert changed == 1
    service.control_now(release=True)
    asked = service.requests_now()["total"]
    client = daemon.start()
    row = daemon.until_ended(client, begun)
    assert (row["reason"], row["class"]) == ("internal_error", "state_corrupt")
    assert "n1" in row["sentence"]
    assert service.requests_now()["total"] == asked, "nothing was sent of it"
