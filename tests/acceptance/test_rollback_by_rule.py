"""A poisoned path by the real daemon: the same check fails after each correction, and a rule takes the task back."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator
from tests.workspace.trees import Known, look

pytestmark = pytest.mark.acceptance

CHECK = {"tool": "bash", "args": {"command": "cat good || { echo 'good is missing'; exit 2; }"}}
NOTE = "You are back at this point"


def spoils(number: int) -> dict[str, Any]:
    """One try of the agent: it breaks more of what it should mend."""
    command = f"rm -f good; echo {number} >try{number}; chmod 604 run; mkdir d{number}"
    return {"tool": "bash", "args": {"command": command}}


STEPS = [CHECK, *(step for number in range(4) for step in (spoils(number), CHECK))]
TURNS = [
    {"when": {"results": {"min": number, "max": number}}, "say": f"Step {number}.", "call": step}
    for number, step in enumerate(STEPS)
]
ANOTHER = {"tool": "write_file", "args": {"path": "new", "content": "well\n"}}
MENDS = [
    {"when": {"user_matches": NOTE, "results": {"max": 1}}, "say": "Another way.", "call": ANOTHER},
    {"when": {"user_matches": NOTE}, "say": "Done."},
]
SCRIPTS = {"mends": {"turns": [*MENDS, *TURNS, {"say": "Done."}]}, "never": {"turns": [*TURNS, {"say": "Done."}]}}
CIRCLE = {"tool": "bash", "args": {"command": "cat good"}}
SCRIPTS["circles"] = {
    "turns": [{"when": {"user_matches": NOTE}, "say": "I stop here."}, {"say": "Again.", "call": CIRCLE}]
}


@contextmanager
def house(tmp_path: Path) -> Iterator[tuple[Running, Path, Known, SimulatedService]]:
    with running_simulator(SCRIPTS) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, dict.fromkeys(SCRIPTS, "anthropic")))
        space = daemon.workspace("w")
        (space / "good").write_bytes(b"good\r\n\xff")
        (space / "run").write_text("#!/bin/sh\n")
        (space / "run").chmod(0o750)
        yield daemon, space, look(space), service


def json_lines(daemon: Running, task: str, event: str) -> list[dict[str, Any]]:
    lines = daemon.ctl("logs", task, "--event", event, "--json").stdout.splitlines()
    return [json.loads(line)["data"] for line in lines]


def words(daemon: Running, task: str) -> list[str]:
    lines = daemon.ctl("logs", task, "--json").stdout.splitlines()
    return [json.loads(line)["type"] for line in lines]


def mended(before: Known, space: Path) -> None:
    """The workspace is what it was, and what the other way wrote."""
    now = look(space)
    assert now.pop(b"new")[2] == b"well\n"
    assert now == before


def until_rolled_back(client: Client, task: str, timeout_s: float = 30.0) -> None:
    until = time.monotonic() + timeout_s
    while client.get(f"/v1/tasks/{task}")["state"] == "rolling_back" and time.monotonic() < until:
        time.sleep(0.02)


def test_a_poisoned_path_is_left_and_the_task_goes_another_way(tmp_path: Path) -> None:
    # R5.5, R5.2, R1.1, R1.3
    with house(tmp_path) as (daemon, space, before, service):
        client = daemon.start()
        task = daemon.submit(client, prompt="Mend it.", agent="mends", workspace=str(space))
        assert daemon.until_ended(client, task)["state"] == "completed", daemon.log
        mended(before, space)
        nodes = client.get(f"/v1/tasks/{task}/nodes")["nodes"]
        (note,) = [node for node in nodes if node["kind"] == "notice"]
        assert note["parent"] == "n3", "where the check last passed"
        assert "Do not try the same again" in note["text"]
        told = words(daemon, task)
        assert told.index("rolling_back") < told.index("rolled_back")
        why = daemon.ctl("why", task).stdout
        for said in ("rolled back to n3, files too", "rule poisoned-path", "escalation.yaml:", "good is missing"):
            assert said in why, why
        assert service.requests_now()["violations"] == []


def test_it_is_bounded_and_then_a_person_is_asked(tmp_path: Path) -> None:
    # R5.5: twice at most, whoever counts
    with house(tmp_path) as (daemon, space, _, service):
        client = daemon.start()
        task = daemon.submit(client, prompt="Mend it.", agent="never", workspace=str(space))
        row = daemon.until(client, task, ("waiting", "completed", "stopped"))
        assert row["state"] == "waiting", daemon.log
        assert words(daemon, task).count("rolled_back") == 2
        assert "rollback: taken before in this episode" in daemon.ctl("why", task).stdout
        assert service.requests_now()["violations"] == []
        status = daemon.ctl("status", task).stdout
        for said in ("2 branches left behind", f"answer {row['node'] and task}-{row['node']} rollback"):
            assert said in status, status
        tree = daemon.ctl("tree", task).stdout
        for said in ("by rollback of escalation/default poisoned-path to n3", "   last good", "   c1", "legend: c ="):
            assert said in tree, tree
        assert "checkpoint c1" in daemon.ctl("show", task, "n2").stdout
        # A person chooses to go back once more, and the agent is told their words too.
        answered = daemon.ctl("answer", f"{task}-{row['node']}", "rollback", "--say", "Leave good alone.")
        assert answered.returncode == 0, answered.stderr
        until = time.monotonic() + 20
        while words(daemon, task).count("rolled_back") < 3 and time.monotonic() < until:
            time.sleep(0.1)
        notes = [node for node in client.get(f"/v1/tasks/{task}/nodes")["nodes"] if node["kind"] == "notice"]
        heard = [daemon.ctl("show", task, node["node"]).stdout for node in notes if node["parent"] == "n3"]
        assert any("Leave good alone." in text for text in heard)
        client.post(f"/v1/tasks/{task}/cancel", {})


def test_a_loop_goes_back_before_it_where_its_rule_says_so(tmp_path: Path) -> None:
    # R3.10, R5.5
    with house(tmp_path) as (daemon, space, before, _):
        (daemon.folder / "policies").mkdir()
        (daemon.folder / "policies" / "loop.yaml").write_text("kind: loop\ndo: [nudge, rollback, stop]\n")
        client = daemon.start()
        task = daemon.submit(client, prompt="Look.", agent="circles", workspace=str(space))
        assert daemon.until_ended(client, task)["state"] == "completed", daemon.log
        told = words(daemon, task)
        assert (told.count("nudge"), told.count("rolled_back")) == (1, 1)
        assert look(space) == before


def test_what_a_person_changed_meanwhile_is_not_taken_back(tmp_path: Path) -> None:
    # R5.2: it is told, nothing is touched, and the task goes on by its ladder
    with house(tmp_path) as (daemon, space, before, service):
        client = daemon.start(HARNESSD_CRASH="J16-before:1")
        task = daemon.submit(client, prompt="Mend it.", agent="mends", workspace=str(space))
        assert daemon.process is not None
        daemon.process.wait(60)
        (space / "mine").write_text("mine\n")
        client = daemon.start()
        daemon.until(client, task, ("completed", "stopped", "waiting"))
        told = words(daemon, task)
        assert (told.count("rollback_failed"), told.count("rolled_back")) == (1, 0)
        assert (space / "mine").read_text() == "mine\n"
        assert look(space) != before
        (failed,) = json_lines(daemon, task, "rollback_failed")
        assert "mine was also changed from outside the task" in failed["sentence"]
        # The model is told of it in one line, once.
        nodes = client.get(f"/v1/tasks/{task}/nodes")["nodes"]
        (line,) = [
            node["text"] for node in nodes if node["kind"] == "notice" and "was to be taken back" in node["text"]
        ]
        assert "mine was also changed from outside the task" in line
        assert "\n" not in line.strip()
        assert service.requests_now()["violations"] == []


@pytest.mark.parametrize("point", ["J16:1", "J16-file:2"])
def test_a_crash_after_the_decision_is_carried_to_its_end(tmp_path: Path, point: str) -> None:
    # J16, R5.5, R6.1
    with house(tmp_path) as (daemon, space, before, _):
        client = daemon.start(HARNESSD_CRASH=point)
        task = daemon.submit(client, prompt="Mend it.", agent="mends", workspace=str(space))
        assert daemon.process is not None
        daemon.process.wait(60)
        client = daemon.start()
        assert daemon.until_ended(client, task)["state"] == "completed", daemon.log
        mended(before, space)
        assert words(daemon, task).count("rolled_back") == 1


@pytest.mark.parametrize("seed", range(1))
def test_a_drain_in_the_middle_ends_it_or_leaves_it_to_the_next_daemon(tmp_path: Path, seed: int) -> None:
    # R6.3
    with house(tmp_path) as (daemon, space, before, _):
        client = daemon.start()
        task = daemon.submit(client, prompt="Mend it.", agent="mends", workspace=str(space))
        until = time.monotonic() + 30
        while int(client.get(f"/v1/tasks/{task}")["turns"]) < 8 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(random.Random(seed).random() * 0.4)
        assert daemon.stop() == 0
        client = daemon.start()
        assert daemon.until_ended(client, task)["state"] == "completed", daemon.log
        mended(before, space)
