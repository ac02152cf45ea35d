"""Checkpoints by the real daemon: around calls that can write and no others, tied to nodes, byte for byte."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.session import Checkpoint
from harnessd.stores import open_store
from harnessd.workspace.checkpoints import Checkpoints
from tests.running import Running, running, settings
from tests.simulated import running_simulator
from tests.workspace.trees import look

pytestmark = pytest.mark.acceptance


def script(*steps: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """One call a turn, in order; then the last word."""
    turns = [
        {"when": {"results": {"min": number, "max": number}}, "say": f"Step {number}.", "call": {"tool": t, "args": a}}
        for number, (t, a) in enumerate(steps)
    ]
    return {"turns": [*turns, {"say": "Done."}]}


WRITER = script(
    ("read_file", {"path": "a"}),
    ("write_file", {"path": "deep/er/b", "content": "b1\n"}),
    (
        "bash",
        {"command": "echo c1 > c; chmod 600 c; rm a; ln -s c link; mkdir empty; printf x > \"$(printf 'n\\nl')\""},
    ),
    ("edit_file", {"path": "deep/er/b", "old": "b1", "new": "b2"}),
    ("list_files", {"path": "."}),
)
READER = script(("read_file", {"path": "a"}), ("list_files", {"path": "."}), ("search_files", {"pattern": "a"}))


def rows(daemon: Running, task: str) -> list[Checkpoint]:
    """The task's checkpoints as the store has them; the daemon has ended."""

    async def read() -> list[Checkpoint]:
        store = open_store(daemon.folder / "state" / "harnessd.db")
        await store.open("test")
        try:
            return list(await store.checkpoints(task))
        finally:
            await store.close()

    return asyncio.run(read())


def looks(daemon: Running, task: str) -> list[dict[str, Any]]:
    """What people are told of a task's checkpoints."""
    events = [json.loads(line) for line in daemon.ctl("logs", task, "--json").stdout.splitlines()]
    return [event["data"] for event in events if event["type"] == "checkpoint"]


# R5.3: tied to nodes; before and after each call that can write.
def test_what_a_task_did_can_be_had_back_node_by_node(tmp_path: Path) -> None:
    with running_simulator({"writer": WRITER}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"writer": "anthropic"}))
        space = daemon.workspace("w")
        (space / "a").write_bytes(b"\xff\xfea\r\n")
        first = look(space)
        client = daemon.start()
        task = daemon.submit(client, prompt="Write.", agent="writer", workspace=str(space))
        assert daemon.until_ended(client, task)["state"] == "completed", daemon.log
        told = looks(daemon, task)
        daemon.stop()
        last = look(space)

        kept = rows(daemon, task)
        assert [one.ref for one in kept] == ["c1", "c2", "c3", "c4"], kept
        assert [one.why for one in kept] == ["before", "after", "after", "after"]
        assert [data["checkpoint"] for data in told] == ["c1", "c2", "c3", "c4"]
        assert all(one.node for one in kept)
        room = Checkpoints(daemon.folder / "state" / "checkpoints")
        try:
            report = room.restore(str(space), kept[0].manifest, kept[-1].manifest, "back")
            assert report.state == "done"
            assert look(space) == first
            assert room.restore(str(space), kept[-1].manifest, kept[0].manifest, "forth").state == "done"
            assert look(space) == last
            changed = {one.path: one.what for one in room.compare(str(space), kept[1].manifest, kept[2].manifest)}
            assert changed == {"a": "deleted", "c": "added", "link": "added", "empty": "added", "n\nl": "added"}
        finally:
            room.close()


# Gate: a turn without a writing tool costs nothing.
def test_a_task_that_only_reads_takes_none(tmp_path: Path) -> None:
    with running_simulator({"reader": READER}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"reader": "anthropic"}))
        space = daemon.workspace("r")
        (space / "a").write_text("a")
        client = daemon.start()
        task = daemon.submit(client, prompt="Read.", agent="reader", workspace=str(space))
        assert daemon.until_ended(client, task)["state"] == "completed", daemon.log
        daemon.stop()
        assert rows(daemon, task) == []
        assert not (daemon.folder / "state" / "checkpoints").exists()


# R5.3a, f13: what is too large is listed once, never opened, never deleted.
def test_what_is_not_covered_is_told_once(tmp_path: Path) -> None:
    steps = script(("bash", {"command": "echo 1 > a"}), ("bash", {"command": "echo 2 > a"}))
    with running_simulator({"writer": steps}) as service, running(tmp_path) as daemon:
        document = settings(tmp_path, service.url, {"writer": "anthropic"})
        document["workspaces"]["checkpoints"] = {"max_file": "1MiB", "exclude": ["*.log"]}
        daemon.configure(document)
        space = daemon.workspace("big")
        with (space / "big.bin").open("wb") as file:
            file.truncate(3 << 30)
        (space / "x.log").write_text("log")
        os.mkfifo(space / "pipe")
        client = daemon.start()
        began = time.monotonic()
        task = daemon.submit(client, prompt="Write.", agent="writer", workspace=str(space))
        assert daemon.until_ended(client, task)["state"] == "completed", daemon.log
        assert time.monotonic() - began < 30
        named = [data["not_covered"] for data in looks(daemon, task) if data.get("not_covered")]
        assert named == [["big.bin: larger than max_file", "pipe: a pipe", "x.log: excluded"]]
        assert (space / "big.bin").stat().st_size == 3 << 30


# A call that can write never starts without a checkpoint.
def test_a_crash_between_contents_and_row_costs_nothing(tmp_path: Path) -> None:
    with running_simulator({"writer": WRITER}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"writer": "anthropic"}))
        space = daemon.workspace("w")
        (space / "a").write_text("a")
        client = daemon.start(HARNESSD_CRASH="J15:2")
        task = daemon.submit(client, prompt="Write.", agent="writer", workspace=str(space))
        assert daemon.process is not None
        daemon.process.wait(30)
        client = daemon.start()
        assert daemon.until_ended(client, task)["state"] == "completed", daemon.log
        daemon.stop()
        assert rows(daemon, task)[0].ref == "c1"
        assert (space / "deep/er/b").read_text() == "b2\n"
