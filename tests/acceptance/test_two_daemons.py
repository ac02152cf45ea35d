"""Two daemons on one PostgreSQL store: a dead one's tasks are taken over, a paused one's late writes are refused."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator
from tests.stores.postgres_server import new_database, shared_server

LEASE = {"ttl": "5s", "heartbeat": "1s"}


@dataclass(frozen=True, slots=True)
class Two:
    """Two daemons and what they share."""

    a: Running
    b: Running
    service: SimulatedService
    work: Path
    url: str

    def start(self, one: Running, **store: str) -> Client:
        name = "a" if one is self.a else "b"
        document = settings(one.folder, self.service.url, {"steps-5": "anthropic"})
        document["store"] = {"url": self.url, "lease": LEASE, "node": name, **store}
        one.configure(document | {"workspaces": {"roots": [str(self.work)]}})
        return one.start()

    def workspace(self, name: str) -> str:
        space = self.work / name
        space.mkdir()
        return str(space)

    def ledger(self, name: str) -> list[str]:
        return (self.work / name / "ledger.txt").read_text().splitlines()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    url = new_database()
    with contextlib.ExitStack() as stack:
        folders = [tmp_path / name for name in ("a", "b", "work")]
        for folder in folders:
            folder.mkdir()
        service = stack.enter_context(running_simulator())
        a, b = (stack.enter_context(running(folder)) for folder in folders[:2])
        yield Two(a, b, service, folders[2], url)


def until(fits: Callable[[], bool], timeout_s: float = 60.0) -> None:
    ends = time.monotonic() + timeout_s
    while not fits():
        assert time.monotonic() < ends
        time.sleep(0.05)


STEPS = [f"step {number}" for number in range(1, 6)]


def test_the_tasks_of_a_killed_daemon_are_taken_over(two: Two) -> None:  # F30, issue: dead node
    a = two.start(two.a)
    b = two.start(two.b)
    two.service.control_now(hold=True)
    task = two.a.submit(a, prompt="Do your steps.", workspace=two.workspace("one"))
    until(lambda: two.service.requests_now()["held"] >= 1)
    nodes = {row["node"]: row for row in b.get("/v1/nodes")["nodes"]}
    assert {name: row["state"] for name, row in nodes.items()} == {"a": "up", "b": "up"}
    at_work = next(name for name, row in nodes.items() if row["tasks"])
    dead, other, client = (two.a, two.b, b) if at_work == "a" else (two.b, two.a, a)
    dead.kill()
    two.service.control_now(release=True)
    row = other.until_ended(client, task)
    assert row["state"] == "completed", (row["state"], row["sentence"], row["doing"])
    assert two.ledger("one") == STEPS
    told = other.ctl("nodes")
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[0].split() == ["NODE", "HOST", "STATE", "HEARTBEAT", "TASKS", "DRAINING"]


def test_a_paused_daemon_writes_nothing_more_to_a_task_that_was_taken_over(two: Two) -> None:  # F16, G8
    a = two.start(two.a)
    two.service.control_now(hold=True)
    task = two.a.submit(a, prompt="Do your steps.", workspace=two.workspace("one"))
    until(lambda: two.service.requests_now()["held"] >= 1)
    assert two.a.process is not None
    two.a.process.send_signal(signal.SIGSTOP)
    try:
        b = two.start(two.b)
        until(lambda: two.service.requests_now()["held"] >= 2)  # b has asked the model as well
    finally:
        two.a.process.send_signal(signal.SIGCONT)
    two.service.control_now(release=True)
    row = two.b.until_ended(b, task)
    assert row["state"] == "completed", (row["state"], row["sentence"], row["doing"])
    assert two.ledger("one") == STEPS
    nodes = [node["node"] for node in b.get(f"/v1/tasks/{task}/nodes")["nodes"]]
    assert len(nodes) == len(set(nodes))


def test_a_task_waits_for_the_machine_of_its_workspace_and_says_so(two: Two) -> None:
    a = two.start(two.a, host="first")
    two.service.control_now(hold=True)
    task = two.a.submit(a, prompt="Do your steps.", workspace=two.workspace("one"))
    until(lambda: two.service.requests_now()["held"] >= 1)
    b = two.start(two.b, host="second")
    two.a.kill()
    until(lambda: b.get(f"/v1/tasks/{task}").get("waits_for_host") == "first")
    told = two.b.ctl("status", task)
    assert "a daemon on first" in told.stdout, told.stdout
    two.service.control_now(release=True)
    again = two.start(two.a, host="first")
    assert two.a.until_ended(again, task)["state"] == "completed"
    assert two.ledger("one") == STEPS


def test_one_daemon_drains_the_other(two: Two) -> None:
    a = two.start(two.a)
    b = two.start(two.b)
    told = two.a.ctl("drain", "--node", "b")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == "b takes no new tasks; 0 tasks at work there end in their own time.\n"
    for number in range(3):
        task = two.b.submit(b, prompt="Do your steps.", workspace=two.workspace(str(number)))
        assert two.a.until_ended(a, task)["state"] == "completed"
        printed = [json.loads(line) for line in two.a.ctl("logs", task, "--json").stdout.splitlines()]
        (owner,) = [event["data"]["owner"] for event in printed if event["type"] == "started"]
        assert owner.startswith("a:")
    rows = {row["node"]: row for row in a.get("/v1/nodes")["nodes"]}
    assert (rows["a"]["draining"], rows["b"]["draining"] is not None) == (None, True)
    unknown = two.a.ctl("drain", "--node", "c")
    assert (unknown.returncode, "harnessctl nodes" in unknown.stderr) == (4, True), unknown.stderr
    back = two.a.ctl("drain", "--node", "b", "--cancel")
    assert back.stdout == "b takes work again.\n"


def test_two_daemons_with_one_name_do_not_run(two: Two) -> None:
    two.start(two.a)
    document = settings(two.b.folder, two.service.url, {"steps-5": "anthropic"})
    document["store"] = {"url": two.url, "node": "a"}
    two.b.configure(document)
    two.b.spawn()
    assert two.b.process is not None
    assert two.b.process.wait(60) == 75
    assert "node name 'a'" in two.b.log


def test_a_daemon_outlives_a_restart_of_its_server(two: Two) -> None:  # F30
    a = two.start(two.a)
    tasks = [two.a.submit(a, prompt="Do your steps.", workspace=two.workspace(f"w{number}")) for number in range(4)]
    server = shared_server()
    server.stop()
    server.start()
    for number, task in enumerate(tasks):
        row = two.a.until_ended(a, task)
        assert row["state"] == "completed", (row["state"], row["sentence"], row["doing"])
        assert two.ledger(f"w{number}") == STEPS
