"""Rollback in every state of a task, beside other tasks, with effects that are undone, and what goes on afterwards."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_checkpoints import script
from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator
from tests.workspace.trees import look

pytestmark = pytest.mark.acceptance

WRITE = ("bash", {"command": "echo b >a; echo n >n"})
TICKET = ("ticket_open", {"title": "Price gap"})
SCRIPTS = {
    "writes": script(WRITE, ("bash", {"command": "echo c >a; rm n"})),
    "waits": script(WRITE, ("ticket_close", {"number": 1})),
    "sleeps": script(WRITE, ("bash", {"command": "sleep 60"})),
    "tickets": script(TICKET, WRITE),
    "other": {"turns": [{"say": "I am the other one."}]},
}
TOOLS = {
    "ticket_open": {
        "command": ["./bin/open", "{title}"],
        "schema": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
        "about": "Opens a ticket.",
    },
    "ticket_close": {
        "command": ["./bin/close", "{number}"],
        "schema": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
        "about": "Closes a ticket.",
    },
}
POLICY = """kind: tools
rules:
  - for: tool/ticket_open
    effect: irreversible
    undo: {tool: tool/ticket_close, arguments: {number: '{result.id}'}}
  - {for: tool/ticket_close, effect: irreversible}
permissions: [{name: tickets, for: tool/ticket_open, do: allow}]
"""


@contextmanager
def house(folder: Path) -> Iterator[tuple[Running, SimulatedService]]:
    (folder / "bin").mkdir()
    (folder / "policies").mkdir()
    (folder / "policies" / "tools.yaml").write_text(POLICY)
    log = folder / "tickets"
    (folder / "bin" / "open").write_text(f'#!/bin/sh\necho "open $1" >>{log}\necho \'{{"id": 8123}}\'\n')
    (folder / "bin" / "close").write_text(f'#!/bin/sh\necho "close $1" >>{log}\nsleep "${{SLOW:-0}}"\necho closed\n')
    for name in ("open", "close"):
        (folder / "bin" / name).chmod(0o755)
    with running_simulator(SCRIPTS) as service, running(folder) as daemon:
        document = settings(folder, service.url, dict.fromkeys(SCRIPTS, "anthropic"), tools=TOOLS)
        for agent in document["agents"].values():
            agent["tools"] = ["bash", *TOOLS]
        daemon.configure(document)
        yield daemon, service


def back(daemon: Running, task: str, *words: str) -> tuple[int, dict[str, Any]]:
    done = daemon.ctl("rollback", task, *words, "--json")
    return done.returncode, json.loads(done.stdout or done.stderr)


def space_of(daemon: Running, name: str) -> Path:
    space = daemon.workspace(name)
    (space / "a").write_text("a\n")
    return space


def test_every_state_a_task_can_stand_in(tmp_path: Path) -> None:
    # R5.2, R5.1: waiting, running, paused, stopped, completed; what was asked is withdrawn
    with house(tmp_path) as (daemon, _):
        client = daemon.start()
        spaces = {name: space_of(daemon, name) for name in ("waits", "sleeps", "writes")}
        before = look(spaces["writes"])
        tasks = {
            name: daemon.submit(client, prompt="Go.", agent=name, workspace=str(space))
            for name, space in spaces.items()
        }
        queued = daemon.submit(client, prompt="Go.", agent="writes", workspace=str(space_of(daemon, "q")),
                               not_before=time.time() + 3600)  # fmt: skip
        code, told = back(daemon, queued, "--to", "last-good")
        assert (code, "has not begun" in told["error"]["message"]) == (5, True)

        daemon.until(client, tasks["waits"], ("waiting",))
        assert back(daemon, tasks["waits"], "--to", "n1")[0] == 0
        assert look(spaces["waits"]) == before
        assert client.get("/v1/inbox")["questions"] == []

        until = time.monotonic() + 20
        while (spaces["sleeps"] / "a").read_text() != "b\n" and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)
        code, told = back(daemon, tasks["sleeps"], "--to", "n1")
        assert (code, "pause" in told["error"]["hint"]) == (5, True), "running: not under its feet"
        # Another task's workspace lies within: nothing is restored beside a task that runs there.
        done = tasks["writes"]
        daemon.until_ended(client, done)
        assert daemon.ctl("cancel", tasks["sleeps"]).returncode == 0
        daemon.until_ended(client, tasks["sleeps"])
        assert back(daemon, tasks["sleeps"], "--to", "n1")[0] == 0
        assert look(spaces["sleeps"]) == before

        bad = look(spaces["writes"])
        assert back(daemon, done, "--to", "n1")[0] == 0
        assert look(spaces["writes"]) == before
        assert client.get(f"/v1/tasks/{done}")["state"] == "paused"
        # A node of the branch that was left is a target as any other.
        assert back(daemon, done, "--to", "n3")[0] == 0
        assert (spaces["writes"] / "a").read_text() == "b\n"
        assert back(daemon, done, "--to", "n5")[0] == 0
        assert look(spaces["writes"]) == bad


def test_nothing_is_restored_under_another_task(tmp_path: Path) -> None:
    # R5.2, f17: overlapping workspaces
    with house(tmp_path) as (daemon, _):
        client = daemon.start()
        space = space_of(daemon, "w")
        inner = space_of(daemon, "w/inner")
        task = daemon.submit(client, prompt="Go.", agent="writes", workspace=str(space))
        daemon.until_ended(client, task)
        other = daemon.submit(client, prompt="Go.", agent="sleeps", workspace=str(inner))
        daemon.until(client, other, ("running",))
        bad = look(space, leave=(b"inner",))
        code, told = back(daemon, task, "--to", "n1", "--overwrite", "inner")
        assert (code, "another task works in its workspace" in told["error"]["message"]) == (5, True), told
        assert look(space, leave=(b"inner",)) == bad
        assert client.get(f"/v1/tasks/{task}")["state"] == "completed"
        daemon.ctl("cancel", other)


def test_what_goes_on_after_a_rollback_knows_its_own_branch_alone(tmp_path: Path) -> None:
    # R5.1, e07: the stored pointer decides, never the newest time; the strict service takes the view
    with house(tmp_path) as (daemon, service):
        client = daemon.start()
        space = space_of(daemon, "w")
        task = daemon.submit(client, prompt="Go.", agent="writes", workspace=str(space))
        daemon.until_ended(client, task)
        assert back(daemon, task, "--to", "n3")[0] == 0
        daemon.stop()
        client = daemon.start()
        assert client.get(f"/v1/tasks/{task}/nodes")["pointer"] == "n3"
        assert daemon.ctl("resume", task, "--say", "Once more.").returncode == 0
        daemon.until_ended(client, task)
        assert (space / "a").read_text() == "c\n"
        seen = service.requests_now(shown=True)
        assert seen["violations"] == []
        nodes = {node["node"]: node for node in client.get(f"/v1/tasks/{task}/nodes")["nodes"]}
        name, way = client.get(f"/v1/tasks/{task}")["node"], []
        while name:
            way.append(name)
            name = nodes[name]["parent"]
        assert "n4" not in way
        assert "n3" in way


def test_another_model_and_a_word_start_the_branch(tmp_path: Path) -> None:
    with house(tmp_path) as (daemon, service):
        client = daemon.start()
        task = daemon.submit(client, prompt="Go.", agent="writes", workspace=str(space_of(daemon, "w")))
        daemon.until_ended(client, task)
        dry, _ = back(daemon, task, "--to", "n1", "--model", "other", "--prompt", "You now.", "--dry-run")
        assert (dry, client.get(f"/v1/tasks/{task}")["state"]) == (0, "completed")
        assert back(daemon, task, "--to", "n1", "--model", "other", "--prompt", "You now.")[0] == 0
        assert daemon.until_ended(client, task)["sentence"] == "I am the other one."
        assert service.requests_now()["violations"] == []


def test_the_declared_undo_of_an_act_is_called_where_a_person_names_it(tmp_path: Path) -> None:
    # R5.4, R3.13
    with house(tmp_path) as (daemon, _):
        client = daemon.start()
        task = daemon.submit(client, prompt="Go.", agent="tickets", workspace=str(space_of(daemon, "w")))
        assert daemon.until_ended(client, task)["state"] == "completed", daemon.log
        (act,) = [one for one in daemon.ctl_json("effects", task)["effects"] if one["name"] == "tool/ticket_open"]
        told = daemon.ctl("rollback", task, "--to", "n1", "--dry-run").stdout
        assert "undo declared: tool/ticket_close" in told
        tickets = tmp_path / "tickets"
        assert tickets.read_text() == "open Price gap\n"
        assert "no undo" not in daemon.ctl("tree", task).stdout
        code, done = back(daemon, task, "--to", "n1", "--undo-effects", act["effect"])
        assert (code, [one["state"] for one in done["undone"]]) == (0, ["done"]), done
        assert tickets.read_text() == "open Price gap\nclose 8123\n"
        # Undone is undone: it is not offered, and not called, a second time.
        assert back(daemon, task, "--undo")[0] == 0
        code, again = back(daemon, task, "--to", "n1", "--undo-effects", act["effect"])
        assert code == 5, again
        assert tickets.read_text() == "open Price gap\nclose 8123\n"


def test_an_undo_that_a_crash_cut_off_is_not_made_twice(tmp_path: Path) -> None:
    # R5.4, R3.13: whether it was made is not known, and that is what is said
    with house(tmp_path) as (daemon, _):
        client = daemon.start()
        task = daemon.submit(client, prompt="Go.", agent="tickets", workspace=str(space_of(daemon, "w")))
        daemon.until_ended(client, task)
        close = tmp_path / "bin" / "close"
        close.write_text(close.read_text().replace("${SLOW:-0}", "20"))
        tickets = tmp_path / "tickets"
        (act,) = [one for one in daemon.ctl_json("effects", task)["effects"] if one["name"] == "tool/ticket_open"]
        words = ("rollback", task, "--to", "n1", "--undo-effects", act["effect"])
        asker = threading.Thread(target=daemon.ctl, args=words)
        asker.start()
        until = time.monotonic() + 20
        while "close" not in tickets.read_text() and time.monotonic() < until:
            time.sleep(0.02)
        daemon.kill()
        asker.join(30)
        client = daemon.start()
        daemon.until(client, task, ("paused",))
        assert tickets.read_text() == "open Price gap\nclose 8123\n"
        lines = daemon.ctl("logs", task, "--event", "rolled_back", "--json").stdout.splitlines()
        (undone,) = json.loads(lines[-1])["data"]["undone"]
        assert undone["state"] == "unknown"
