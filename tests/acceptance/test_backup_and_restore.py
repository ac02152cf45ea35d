"""A backup brings tasks back whole; a restore says what it does not know; cut off anywhere, neither leaves a half."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running, plain_environment, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance


def step(number: int, tool: str, **args: str) -> dict[str, Any]:
    return {"when": {"results": number}, "say": "Working.", "call": {"tool": tool, "args": args}}


SCRIPT = {
    "m": {
        "turns": [
            step(0, "bash", command="printf one > a.txt; head -c 200000 /dev/zero | tr '\\\\0' x"),
            step(1, "bash", command="touch begun; while [ ! -e ../go ]; do sleep 0.05; done"),
            {"say": "All done."},
        ]
    }
}


def restore(daemon: Running, file: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "harnessd", "restore", str(file), "--config", str(daemon.config), "--json"]
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=daemon.folder,
        env=plain_environment() | environment,
        timeout=60,
        check=False,
    )


def until_there(daemon: Running, path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, daemon.log[-2000:]
        time.sleep(0.02)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("harnessd.db")
    }


@pytest.mark.timeout(240)
def test_a_backup_taken_at_work_brings_the_task_back_whole_elsewhere(tmp_path: Path) -> None:
    # J25, R6.1, R5.3: on a machine that has nothing but the backup; the checkpoint is there, and the task goes on
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    file = tmp_path / "b.backup"
    with running_simulator(SCRIPT) as service, running(here) as first, running(there) as second:
        first.configure(settings(here, service.url, {"m": "anthropic"}))
        # The same roots: a task's workspace is a path.
        second.configure(settings(here, service.url, {"m": "anthropic"}))
        client, space = first.start(), first.workspace("a")
        task = first.submit(client, prompt="Go.", agent="m", workspace=str(space))
        until_there(first, space / "begun")
        done = first.ctl("backup", str(file), "--json")
        assert done.returncode == 0, done.stderr
        assert file.stat().st_mode & 0o777 == 0o600
        assert restore(first, file).returncode == 75  # a daemon runs
        first.kill()
        kept = contents(here / "state" / "checkpoints")
        shutil.rmtree(here / "state")
        (space / "a.txt").write_text("lost")
        told = json.loads(restore(second, file).stdout)
        assert told["live"] == [task]
        assert told["in_doubt"] == [task]  # there is no old store to ask
        assert contents(there / "state" / "checkpoints") == kept
        whole = [one for one in (there / "state" / "artefacts" / task).iterdir() if one.stat().st_size >= 200_000]
        assert whole
        (here / "work" / "go").touch()
        other = second.start()
        row = second.until_ended(other, task)
        assert row["state"] == "completed", (row, second.log[-3000:])
        nodes = other.get(f"/v1/tasks/{task}/nodes")["nodes"]
        assert any("was restored" in node["text"] for node in nodes if node["kind"] == "notice")
        back = second.ctl("rollback", task, "--to", "n3", "--overwrite", "a.txt", "--overwrite", "begun")
        assert back.returncode == 0, back.stdout + back.stderr
        assert (space / "a.txt").read_text() == "one"


@pytest.mark.timeout(240)
def test_the_old_store_is_asked_what_was_done_after_the_backup(tmp_path: Path) -> None:
    # R3.13: a task that did what cannot be undone after the backup does not do it again unasked
    pay = tmp_path / "pay.sh"
    pay.write_text("#!/bin/sh\necho paid >> ../paid\necho done\n")
    pay.chmod(0o755)
    held = step(0, "bash", command="while [ ! -e ../go ]; do sleep 0.05; done")
    script = {"m": {"turns": [held, step(1, "pay"), {"say": "Paid."}]}, "n": {"turns": [held, {"say": "Done."}]}}
    tools = {"pay": {"command": [str(pay)], "schema": {"type": "object"}, "about": "Pays."}}
    file = tmp_path / "b.backup"
    with running_simulator(script) as service, running(tmp_path) as daemon:
        names = {"m": "anthropic", "n": "anthropic"}
        agents = {name: {"model": name, "system": "Be careful.", "tools": ["bash", "pay"]} for name in names}
        daemon.configure(settings(tmp_path, service.url, names, tools=tools, agents=agents))
        allowed = "kind: tools\npermissions: [{name: pay, for: tool/pay, do: allow}]\n"
        (daemon.folder / "policies").mkdir()
        (daemon.folder / "policies" / "tools.yaml").write_text(allowed)
        client = daemon.start()
        payer = daemon.submit(client, prompt="Pay.", agent="m", workspace=str(daemon.workspace("a")))
        other = daemon.submit(client, prompt="Look.", agent="n", workspace=str(daemon.workspace("b")))
        for task in (payer, other):
            daemon.until(client, task, ("running",))
        assert daemon.ctl("backup", str(file)).returncode == 0
        (tmp_path / "work" / "go").touch()
        assert {daemon.until_ended(client, task)["state"] for task in (payer, other)} == {"completed"}
        assert daemon.stop() == 0
        assert (tmp_path / "work" / "paid").read_text() == "paid\n"
        told = json.loads(restore(daemon, file).stdout)
        acts = [(act["task"], act["tool"]) for act in told["acts_since"]]
        assert (acts, told["in_doubt"]) == ([(payer, "tool/pay")], [payer])
        client = daemon.start()
        assert daemon.until_ended(client, other)["state"] == "completed"  # nothing of it is in doubt
        (question,) = daemon.until(client, payer, ("waiting", "completed", "stopped"))["questions"]
        assert "was restored" in question["sentence"]
        assert (tmp_path / "work" / "paid").read_text() == "paid\n"
        assert daemon.ctl("deny", question["id"]).returncode == 0
        daemon.until_ended(client, payer)
        assert (tmp_path / "work" / "paid").read_text() == "paid\n"


def test_a_backup_never_costs_a_file_that_is_none(tmp_path: Path) -> None:
    script = {"m": {"turns": [{"say": "Done."}]}}
    with running_simulator(script) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"m": "anthropic"}))
        client = daemon.start()
        letter = tmp_path / "letter.txt"
        letter.write_text("dear")
        (tmp_path / "link").symlink_to(tmp_path / "state" / "harnessd.db")
        for target, words in ((letter, "is no backup"), (tmp_path / "state" / "harnessd.db", "store's own")):
            done = daemon.ctl("backup", str(target))
            assert done.returncode == 5, done.stderr
            assert words in done.stderr
        assert "store's own" in daemon.ctl("backup", str(tmp_path / "link")).stderr
        assert letter.read_text() == "dear"
        gone = daemon.ctl("backup", str(tmp_path / "nowhere" / "b"))
        assert gone.returncode == 1
        assert "could not be written" in gone.stderr
        task = daemon.submit(client, prompt="Go.", agent="m", workspace=str(daemon.workspace("a")))
        assert daemon.until_ended(client, task)["state"] == "completed"  # the store is whole
