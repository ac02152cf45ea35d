"""`status TASK` in every state: what it does, since when, what it waits for, what comes next, what a person can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli import client_table, run
from harnessd.cli.client import Client
from tests.control_server import Ran
from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance


def always(**do: Any) -> dict[str, Any]:
    return {"turns": [{"say": "Never."}], "faults": {"rate": [{"p": 1.0, "do": do}]}}


SCRIPTS: Mapping[str, Any] = {
    "quick": {"turns": [{"say": "Hello."}]},
    "thinks": {"turns": [{"say": "Late.", "delay": "100s"}]},
    "one": {"turns": [{"say": "Late.", "delay": "100s"}]},
    "works": {"turns": [{"say": "I wait.", "call": {"tool": "bash", "args": {"command": "sleep 313"}}}]},
    "asks": {"turns": [{"say": "May I?", "call": {"tool": "write_file", "args": {"path": "a", "content": "b"}}}]},
    "circles": {"turns": [{"say": "Once more.", "call": {"tool": "list_files", "args": {"path": "."}}}]},
    "limited": always(rate_limited=True, retry_after=200),
    "poor": always(quota=True, retry_after=3600),
    "key": always(auth=True),
}
POLICIES = """
kind: tools
permissions: [{name: writes, for: tool/write_file, do: ask, note: "INC-298 nothing is written alone"}]
---
kind: limits
rules: [{for: model/one, concurrency: 1}]
---
kind: loop
do: [needs_human]
"""
# name -> (agent, the state, words that must stand in the status)
MOMENTS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "model": ("thinks", "running", ("running since", "waiting for model/thinks, try 1, for", "next     the answer")),
    "tool": (
        "works",
        "running",
        ("bash: sleep 313, for", "last sign of life", "next     the result goes to the model"),
    ),
    "wait": ("limited", "running", ("try 2 of 11: rate_limited, 3m", "left", "HTTP 429", "made again by itself")),
    "quota": ("poor", "parked", ("parked since", "holds no worker, until", "59m", "HTTP 429", "model check poor")),
    "key": ("key", "parked", ("HTTP 401 auth", "invalid x-api-key", "tried again by itself", "model check key")),
    "approval": (
        "asks",
        "waiting",
        ("denied by itself", "rule     tools/default writes", "own.yaml:3", "INC-298", " allow "),
    ),
    "question": ("circles", "waiting", ("waits for a person since", "stops by itself", "goes in circles", "go-on")),
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("moments")
    with running_simulator(SCRIPTS) as service, running(folder) as found:
        (folder / "policies").mkdir()
        (folder / "policies" / "own.yaml").write_text(POLICIES)
        found.configure(settings(folder, service.url, dict.fromkeys(SCRIPTS, "anthropic"), workers=32, drain="1s"))
        found.start()
        yield found


@pytest.fixture
def ctl(daemon: Running, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def call(*words: str) -> Ran:
        capsys.readouterr()
        code = run(client_table(), ["--socket", daemon.socket, *words])
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    return call


def submit(daemon: Running, agent: str, space: str, **more: Any) -> str:
    place = str(daemon.workspace(space))
    return daemon.submit(daemon.clients[0], prompt="Do it.", agent=agent, workspace=place, **more)


def until_said(ctl: Callable[..., Ran], task: str, words: tuple[str, ...]) -> str:
    """The status once it says all of it; states pass while one looks."""
    until = time.monotonic() + 30
    while True:
        shown = ctl("status", task)
        assert shown.code == 0, shown.err
        missing = [word for word in words if word not in shown.out]
        if not missing:
            return shown.out
        assert time.monotonic() < until, f"{missing} not in:\n{shown.out}"
        time.sleep(0.05)


@pytest.mark.parametrize("name", MOMENTS)
def test_a_state_is_told_in_full(daemon: Running, ctl: Callable[..., Ran], name: str) -> None:
    # R3.8, R1.3, C2, C3
    agent, state, words = MOMENTS[name]
    client: Client = daemon.clients[0]
    task = submit(daemon, agent, name)
    daemon.until(client, task, (state,))
    shown = until_said(ctl, task, words)
    for every in ("you can  harnessctl", "BUDGET", "policies r", "next     "):
        assert every in shown
    assert "None" not in shown
    if name == "wait":
        # i16: the wait is ours, and silence is what others owe us
        rows = {row["budget"]: row for row in client.get(f"/v1/tasks/{task}")["budgets"]}
        assert rows["silence"]["used"] is None
        assert "waits" not in client.get(f"/v1/tasks/{task}")["sentence"]
    client.post(f"/v1/tasks/{task}/cancel", {})


def test_a_task_that_waits_for_others_says_for_whom(daemon: Running, ctl: Callable[..., Ran]) -> None:
    client: Client = daemon.clients[0]
    first = submit(daemon, "works", "shared")
    daemon.until(client, first, ("running",))
    same_folder = submit(daemon, "quick", "shared")
    until_said(
        ctl, same_folder, ("queued since", f"behind   {first}, which works in the same workspace", f"after {first}")
    )
    after = submit(daemon, "quick", "other", after=[first])
    until_said(ctl, after, (f"behind   {first}, which is to complete first",))
    later = submit(daemon, "quick", "later", not_before=time.time() + 3600)
    until_said(ctl, later, ("starts   not before", "(in 59m", "next     it starts by itself then"))
    assert ctl("pause", later).code == 0
    until_said(ctl, later, ("paused since", "nothing, until a person resumes it", f"harnessctl resume {later}"))
    for task in (first, same_folder, after, later):
        client.post(f"/v1/tasks/{task}/cancel", {})


def test_a_call_that_a_limit_holds_back_stands_in_line(daemon: Running, ctl: Callable[..., Ran]) -> None:
    client: Client = daemon.clients[0]
    tasks = [submit(daemon, "one", f"line{number}") for number in range(2)]
    until = time.monotonic() + 20
    held: list[str] = []
    while not held:
        rows = client.get("/v1/status")["running_tasks"]
        held = [row["task"] for row in rows if row["task"] in tasks and (row["progress"] or {}).get("in_line")]
        assert time.monotonic() < until
        time.sleep(0.02)
    until_said(ctl, held[0], ("in line: a limit holds the call back",))
    assert "in line: waiting for model/one" in ctl("status").out
    for task in tasks:
        client.post(f"/v1/tasks/{task}/cancel", {})
