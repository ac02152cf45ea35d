"""Rollback on rollback, by the real daemon: twice, undone, on a branch, over a compaction, under a restart."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator
from tests.workspace.trees import Known, look

pytestmark = pytest.mark.acceptance

STEPS = 14
STEP = "echo {n+1} >f; echo {n+1} >made{n+1}; rm -f made{n}; echo step {n+1}; head -c {bulk} bulk"
POLICY = """kind: compaction
reserve: 2k
keep_turns: 1
summary: {max_tokens: 1k}
"""

OTHER_WAY = {
    "tool": "bash",
    "args": {"command": "rm -f made*; mkdir -p other; echo x >other/way; echo 9 >f; echo otherwise"},
}


def stepper(steps: int, bulk: int = 10) -> dict[str, Any]:
    """Writes the number of each step; it goes by the newest result, so that no compaction confuses it."""

    def step(number: str) -> dict[str, Any]:
        return {"tool": "bash", "args": {"command": STEP.replace("{bulk}", str(bulk)).replace("{n", "{" + number)}}

    return {
        "ids": "fresh",
        "turns": [
            {"when": {"matches": "otherwise"}, "say": "Done otherwise."},
            {"when": {"last_text_matches": "another way"}, "say": "Another way.", "call": OTHER_WAY},
            {"when": {"matches": rf"step {steps}\n"}, "say": "Done."},
            {"when": {"matches": r"step (?P<n>\d+)\n"}, "say": "Next.", "call": step("n")},
            {"say": "First.", "call": {"tool": "bash", "args": {
                "command": f"echo 1 >f; echo 1 >made1; echo step 1; head -c {bulk} bulk"}}},
        ],
    }  # fmt: skip


SCRIPTS: Mapping[str, Any] = {
    "steps": stepper(5),
    "long": {**stepper(STEPS, 3000), "window": 9000},
    "sleeps": {"turns": [{"call": {"tool": "bash", "args": {"command": "sleep 300"}}}]},
}


@dataclass
class House:
    """A daemon with one worker, and what is asked of it."""

    daemon: Running
    client: Client
    service: SimulatedService

    def space(self, name: str) -> Path:
        space = self.daemon.workspace(name)
        (space / "bulk").write_text("one more line of a long report, read and forgotten\n" * 100)
        return space

    def done(self, agent: str, space: Path) -> str:
        task = self.daemon.submit(self.client, prompt="Go.", agent=agent, workspace=str(space))
        row = self.daemon.until_ended(self.client, task)
        assert (row["state"], row["sentence"]) == ("completed", "Done."), (row, self.daemon.log[-3000:])
        return task

    def back(self, task: str, *words: str) -> tuple[int, dict[str, Any]]:
        done = self.daemon.ctl("rollback", task, *words, "--json")
        return done.returncode, json.loads(done.stdout or done.stderr)

    def pointer(self, task: str) -> str:
        return str(self.client.get(f"/v1/tasks/{task}/nodes")["pointer"])

    def results(self, task: str) -> list[tuple[str, str]]:
        """The results of a task: node, and the step that it tells of."""
        nodes = self.client.get(f"/v1/tasks/{task}/nodes")["nodes"]
        found = [
            (node["node"], re.match(r"step (\d+)", node["text"])) for node in nodes if node["kind"] == "tool_result"
        ]
        return [(node, step.group(1)) for node, step in found if step is not None]

    def stands_at(self, space: Path, step: str) -> None:
        """The workspace is what it was after this step, and nothing else."""
        assert sorted(path.name for path in space.iterdir()) == ["bulk", "f", f"made{step}"]
        assert ((space / "f").read_text(), (space / f"made{step}").read_text()) == (f"{step}\n", f"{step}\n")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("again")
    (folder / "policies").mkdir()
    (folder / "policies" / "own.yaml").write_text(POLICY)
    with running_simulator(SCRIPTS) as service, running(folder) as daemon:
        document = settings(folder, service.url, dict.fromkeys(SCRIPTS, "anthropic"), workers=1)
        document["models"]["long"] |= {"window": 9_000, "max_output": 1_000}
        daemon.configure(document)
        yield House(daemon, daemon.start(), service)


def test_twice_and_each_undone_in_its_turn(house: House) -> None:
    # R5.2, f21
    space = house.space("twice")
    task = house.done("steps", space)
    last, head = look(space), house.pointer(task)
    (first, one), _, (third, three), *_ = house.results(task)
    assert house.back(task, "--to", third)[0] == 0
    house.stands_at(space, three)
    at_third = look(space)
    assert house.back(task, "--to", first)[0] == 0
    house.stands_at(space, one)

    assert house.back(task, "--undo")[0] == 0
    assert (look(space), house.pointer(task)) == (at_third, third)
    assert house.back(task, "--undo")[0] == 0
    assert (look(space), house.pointer(task)) == (last, head)
    code, told = house.back(task, "--undo")
    assert (code, "undone already" in told["error"]["message"]) == (5, True), told
    # The undoing is taken back as it was made: by name.
    assert house.back(task, "--to", first)[0] == 0
    house.stands_at(space, one)
    assert house.back(task, "--undo")[0] == 0
    assert (look(space), house.pointer(task)) == (last, head)


def test_on_a_branch_that_a_rollback_began(house: House) -> None:
    # R5.1, R5.2
    space = house.space("branch")
    task = house.done("steps", space)
    second, two = house.results(task)[1]
    code, told = house.back(task, "--to", second, "--prompt", "Now another way.")
    assert code == 0, told
    assert house.daemon.until_ended(house.client, task)["sentence"] == "Done otherwise."
    other, branch = look(space), house.pointer(task)
    assert (space / "other" / "way").exists()
    assert house.back(task, "--to", second)[0] == 0
    house.stands_at(space, two)
    # The branch again, and the one before it: each with its own files.
    assert house.back(task, "--to", branch)[0] == 0
    assert look(space) == other
    fifth, five = house.results(task)[4]
    assert house.back(task, "--to", fifth)[0] == 0
    house.stands_at(space, five)
    assert house.back(task, "--undo")[0] == 0
    assert look(space) == other
    assert house.back(task, "--to", "n1")[0] == 0
    assert sorted(path.name for path in space.iterdir()) == ["bulk"]
    assert house.daemon.ctl("tree", task).returncode == 0
    assert house.service.requests_now()["violations"] == []


def test_over_a_compaction_and_on_from_there(house: House) -> None:
    # R5.2, R4.7: what the summary replaced is a place to go back to like any other
    space = house.space("compacted")
    task = house.done("long", space)
    nodes = house.client.get(f"/v1/tasks/{task}/nodes")["nodes"]
    order = [node["node"] for node in nodes]
    made = [order.index(node["node"]) for node in nodes if node["kind"] == "compaction"]
    assert made, "the window was never full"
    results = house.results(task)
    assert len(results) == STEPS
    before = [one for one in results if order.index(one[0]) < made[0]]
    after = [one for one in results if order.index(one[0]) > made[-1]]
    assert before
    assert after
    for node, step in (before[-1], after[0], before[0], after[-1], results[len(results) // 2]):
        code, told = house.back(task, "--to", node)
        assert code == 0, told
        house.stands_at(space, step)
        assert house.pointer(task) == node
    # From before the compaction it goes on as if there had been none, and the service takes what it is shown.
    node, step = before[-1]
    assert house.back(task, "--to", node)[0] == 0
    assert house.daemon.ctl("resume", task).returncode == 0
    row = house.daemon.until_ended(house.client, task)
    assert (row["state"], row["sentence"]) == ("completed", "Done."), row
    house.stands_at(space, str(STEPS))
    assert house.service.requests_now()["violations"] == []


def test_of_a_task_that_is_queued_or_paused_in_the_middle(house: House) -> None:
    # R5.2: with nodes, and nobody at work on it
    space = house.space("queued")
    task = house.done("steps", space)
    (first, one), (second, two), *_ = house.results(task)
    last = look(space)
    assert house.back(task, "--to", second)[0] == 0
    assert house.client.get(f"/v1/tasks/{task}")["state"] == "paused"
    assert house.back(task, "--to", first)[0] == 0
    house.stands_at(space, one)
    assert house.back(task, "--undo")[0] == 0
    house.stands_at(space, two)

    busy = house.daemon.submit(house.client, prompt="Go.", agent="sleeps", workspace=str(house.space("busy")))
    house.daemon.until(house.client, busy, ("running",))
    try:
        assert house.daemon.ctl("resume", task).returncode == 0
        assert house.client.get(f"/v1/tasks/{task}")["state"] == "queued"
        code, told = house.back(task, "--to", first)
        assert code == 0, told
        house.stands_at(space, one)
        assert house.client.get(f"/v1/tasks/{task}")["state"] == "paused", "it waits for a person's word"
        assert house.daemon.ctl("resume", task).returncode == 0
    finally:
        house.daemon.ctl("cancel", busy)
    assert house.daemon.until_ended(house.client, task)["sentence"] == "Done."
    assert look(space) == last


def test_while_the_daemon_is_stopped_and_started(house: House) -> None:
    # R5.2, R6.1, R6.3: files and pointer go together, or not at all (`kill -9`: the rollback sweep)
    space = house.space("restart")
    task = house.done("steps", space)
    sides: dict[str, Known] = {house.pointer(task): look(space)}
    (first, _), *_ = house.results(task)
    assert house.back(task, "--to", first)[0] == 0
    sides[first] = look(space)
    luck = random.Random(7)
    for words in (("--undo",), ("--to", first)):
        asker = threading.Thread(target=house.daemon.ctl, args=("rollback", task, *words))
        asker.start()
        time.sleep(luck.uniform(0.2, 0.7))
        assert house.daemon.stop() == 0
        asker.join(60)
        house.client = house.daemon.start()
        ends = time.monotonic() + 30
        while house.client.get(f"/v1/tasks/{task}")["state"] == "rolling_back":
            assert time.monotonic() < ends, house.daemon.log[-3000:]
            time.sleep(0.02)
        assert look(space) == sides[house.pointer(task)]
    house.daemon.ctl("rollback", task, "--to", first)
    assert look(space) == sides[first]
