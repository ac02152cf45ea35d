"""An agent cannot help itself: a tool that calls harnessctl may read its own task and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

CTL = f"{sys.executable} -m harnessd.cli --socket {{socket}}"


def script(socket: str) -> dict[str, object]:
    ctl = CTL.format(socket=socket)
    tries = [
        f"{ctl} set $(cat id) --budget tool_calls=900; echo set $?",
        f"setsid -w {ctl} set $(cat id) --budget tool_calls=900; echo hidden $?",
        f"{ctl} list; echo list $?",
        f"{ctl} status $(cat id); echo own $?",
    ]
    turns: list[dict[str, object]] = [
        {"when": {"results": number}, "say": "I try.", "call": {"tool": "bash", "args": {"command": words}}}
        for number, words in enumerate(tries, 1)
    ]
    wait = "until test -s id; do sleep 0.05; done"
    first = {"when": {"first": True}, "say": "I wait.", "call": {"tool": "bash", "args": {"command": wait}}}
    return {"sly": {"turns": [first, *turns, {"say": "Done."}]}}


def test_a_tool_cannot_raise_its_own_budget(tmp_path: Path) -> None:
    # R3.9, A24
    with running(tmp_path) as daemon, running_simulator(script(daemon.socket)) as service:
        daemon.configure(settings(tmp_path, service.url, {"sly": "anthropic"}))
        client = daemon.start()
        space = daemon.workspace("a")
        task = daemon.submit(client, prompt="Help yourself.", agent="sly", workspace=str(space))
        (space / "id").write_text(task)
        row = daemon.until_ended(client, task)
        assert row["state"] == "completed", row
        said = "\n".join(node["text"] for node in client.get(f"/v1/tasks/{task}/nodes")["nodes"])
        for tried in ("set 5", "hidden 5", "list 5", "state    running"):
            assert tried in said, said
        limits = {one["budget"]: one["limit"] for one in client.get(f"/v1/tasks/{task}")["budgets"]}
        assert limits["tool_calls"] == 90
        events = [frame.data for frame in client.stream([("after", 0)]) if isinstance(frame.data, dict)]
        assert any(event.get("type") == "access_refused" for event in events)
