"""Every way a task can end, provoked once: its reason, a sentence, and next steps that do something when typed."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli import client_table, run
from harnessd.cli.client import Client
from harnessd.domain.task import StopReason
from tests.control_server import Ran
from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance


def always(**do: Any) -> dict[str, Any]:
    """A service that meets every request with the same fault."""
    return {"turns": [{"say": "Never."}], "faults": {"rate": [{"p": 1.0, "do": do}]}}


WORKS: dict[str, Any] = {
    "turns": [
        {"when": {"no_tools": True}, "say": "I did {turn} steps; the rest is missing."},
        {"say": "Step {turn}.", "call": {"tool": "bash", "args": {"command": "sleep 0.3; echo word{turn}"}}},
    ]
}
SCRIPTS: dict[str, Any] = {
    "quick": {"turns": [{"say": "Hello."}]},
    "works": WORKS,
    "sleeps": {"turns": [{"say": "I wait.", "call": {"tool": "bash", "args": {"command": "sleep 317"}}}]},
    "circles": {"turns": [{"say": "Once more.", "call": {"tool": "list_files", "args": {"path": "."}}}]},
    "asks": {
        "turns": [
            {"when": {"results": {"min": 1}}, "say": "Done."},
            {"say": "May I?", "call": {"tool": "write_file", "args": {"path": "a", "content": "b"}}},
        ]
    },
    "wrong": always(invalid_request=True),
    "down": always(overloaded=True),
    "key": always(auth=True),
    "poor": always(quota=True),
    "full": always(overflow=True),
    "refuses": {"turns": [{"say": "I will not do that.", "finish": "refusal"}]},
    "dear": WORKS,
}
# Every ladder is short and ends; nobody waits.
POLICIES = """
kind: retry
model:
  retries: 1
  base: 10ms
  classes:
    overloaded: {do: [retry, stop]}
    auth: {do: [stop]}
    quota_exhausted: {do: [stop]}
    context_overflow: {do: [stop]}
---
kind: loop
do: [nudge, stop]
---
kind: tools
permissions: [{name: writes, for: tool/write_file, do: ask, note: "INC-298"}]
ask: {after: 1m, do: stop}
"""
# name -> (agent, flags of submit, reason, class, words of the sentence)
ENDS: Mapping[str, tuple[str, dict[str, Any], StopReason, str | None, str]] = {
    "completed": ("quick", {}, StopReason.COMPLETED, None, "Hello."),
    "error": ("wrong", {}, StopReason.ERROR, "invalid_request", "(invalid_request)"),
    "loop": ("circles", {}, StopReason.LOOP_DETECTED, "loop_detected", "list_files was called 3 times"),
    "down": ("down", {}, StopReason.SERVICE_UNAVAILABLE, "overloaded", "Overloaded"),
    "dead key": ("key", {}, StopReason.SERVICE_UNAVAILABLE, "auth", "does not accept its key"),
    "quota": ("poor", {}, StopReason.QUOTA_EXHAUSTED, "quota_exhausted", "quota of model/poor is used up"),
    "window": ("full", {}, StopReason.CONTEXT_EXHAUSTED, "context_overflow", "no longer fits the window"),
    "refused": ("refuses", {}, StopReason.REFUSED, "refused", "refused to answer"),
    "turns": ("works", {"turns": "2"}, StopReason.BUDGET_EXHAUSTED, "budget_exhausted", "2 of 2 turns used"),
    "calls": ("works", {"tool_calls": "2"}, StopReason.BUDGET_EXHAUSTED, "budget_exhausted", "2 of 2 tool_calls used"),
    "tokens": ("works", {"tokens": "2500"}, StopReason.BUDGET_EXHAUSTED, "budget_exhausted", "of 2500 tokens used"),
    "money": ("dear", {"cost_usd": "0.05"}, StopReason.BUDGET_EXHAUSTED, "budget_exhausted", "of 0.05 cost_usd used"),
    "work": ("works", {"working_time": "1s"}, StopReason.BUDGET_EXHAUSTED, "budget_exhausted", "of 1s working_time"),
    "wall": ("works", {"wall_time": "1s"}, StopReason.BUDGET_EXHAUSTED, "budget_exhausted", "of 1s wall_time used"),
    "age": ("works", {"age": "1s"}, StopReason.BUDGET_EXHAUSTED, "budget_exhausted", "of 1s age used"),
}

Ctl = Callable[..., Ran]


@pytest.fixture
def ctl(stage: Stage, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """`harnessctl` in this process: the whole way in and out, without the start of an interpreter."""

    def call(*words: str) -> Ran:
        capsys.readouterr()
        code = run(client_table(), ["--socket", stage.daemon.socket, *words])
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    return call


class Stage:
    """One daemon with every task submitted."""

    def __init__(self, daemon: Running, client: Client) -> None:
        self.daemon, self.client = daemon, client
        self.tasks = {name: self.submit(name, agent, budget) for name, (agent, budget, *_) in ENDS.items()}

    def submit(self, name: str, agent: str, budget: dict[str, Any] | None = None) -> str:
        space = str(self.daemon.workspace(name.replace(" ", "-")))
        return self.daemon.submit(self.client, prompt="Do it.", agent=agent, workspace=space, budget=budget or {})

    def ended(self, task: str) -> Mapping[str, Any]:
        return self.daemon.until_ended(self.client, task)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("ends")
    with running_simulator(SCRIPTS) as service, running(folder) as daemon:
        (folder / "policies").mkdir()
        (folder / "policies" / "own.yaml").write_text(POLICIES)
        document = settings(folder, service.url, dict.fromkeys(SCRIPTS, "anthropic"), workers=32)
        document["models"]["dear"]["prices"] = {"input": 10, "output": 10}
        daemon.configure(document)
        yield Stage(daemon, daemon.start())


@pytest.mark.parametrize("name", ENDS)
def test_an_end_has_its_reason_and_a_sentence(stage: Stage, ctl: Ctl, name: str) -> None:  # R3.8, R3.9, R3.10
    _, budget, reason, error_class, words = ENDS[name]
    row = stage.ended(stage.tasks[name])
    assert row["reason"] == reason.value
    assert row["class"] == error_class
    assert words in row["sentence"]
    shown = ctl("status", row["task"])
    assert shown.code == 0
    for said in (reason.value, words, "you can  harnessctl"):
        assert said in shown.out
    assert "None" not in shown.out
    if budget:
        assert "the rest is missing" in shown.out, "the last turn summed up"
        why = ctl("why", row["task"]).out
        assert why.count("then stopped: budget_exhausted") == 1, why


def test_a_persons_wish_is_no_fault(stage: Stage, ctl: Ctl) -> None:  # R3.8
    task = stage.submit("cancelled", "sleeps")
    stage.daemon.until(stage.client, task, ("running",))
    assert ctl("cancel", task).code == 0
    row = stage.ended(task)
    assert (row["reason"], row["class"]) == ("aborted", None)
    assert row["sentence"].startswith("Cancelled by ")
    shown = ctl("status", task).out
    assert "\nfailed" not in shown
    assert "harnessctl resume" in shown


def test_a_question_that_nobody_answers_ends_the_task(stage: Stage) -> None:  # R3.8
    task = stage.submit("unanswered", "asks")
    stage.daemon.until(stage.client, task, ("waiting",))
    # The wait is a moment in the row: it is brought near instead of being sat out.
    with sqlite3.connect(stage.daemon.folder / "state" / "harnessd.db", timeout=10) as store:
        store.execute("UPDATE tasks SET until = ? WHERE id = ?", (time.time(), task))
        store.execute("UPDATE approvals SET until = ? WHERE task = ?", (time.time(), task))
    row = stage.ended(task)
    assert row["reason"] == "unanswered"
    assert "Nobody answered in time" in row["sentence"]
    assert "write_file" in row["sentence"]


def test_what_a_status_suggests_works_when_it_is_typed(stage: Stage, ctl: Ctl) -> None:  # R3.8
    for name, task in stage.tasks.items():
        for step in stage.ended(task)["next"]:
            # As a person reads it on the screen, word for word. A dry run exits as the real one would.
            dry = ["--dry-run"] if step[1] in ("resume", "retry", "rollback") else []
            done = ctl(*step[1:], *dry)
            well = (0, 1) if step[1:3] == ["model", "check"] else (0,)
            assert done.code in well, f"{name}: {' '.join(step)}: {done.err}"
            assert "Traceback" not in done.err


def test_the_steps_after_a_budgets_end_let_the_task_go_on(stage: Stage, ctl: Ctl) -> None:  # R3.9
    task = stage.submit("calls again", "works", {"tool_calls": "2"})
    row = stage.ended(task)
    refused = ctl("resume", task)
    assert refused.code == 5
    assert "it would end again at once" in refused.err
    assert "--budget tool_calls=+" in refused.err
    (step,) = [step for step in stage.client.get(f"/v1/tasks/{task}")["next"] if step[1] == "resume"]
    before = row["tool_calls"]
    assert ctl(*step[1:]).code == 0
    again = stage.ended(task)
    assert again["tool_calls"] > before
    why = json.loads(ctl("why", task, "--json").out)
    assert sum(one["do"] == "stop" for one in why["decisions"]) == 2, "one for each end"


def test_every_reason_is_provoked_somewhere() -> None:  # R3.8
    here = {reason for _, _, reason, _, _ in ENDS.values()} | {StopReason.ABORTED, StopReason.UNANSWERED}
    # A damaged history is `internal_error` (test_damaged_store); what kills the daemon again and again is
    # `interrupted` (test_rough_stops).
    assert set(StopReason) - here == {StopReason.INTERNAL_ERROR, StopReason.INTERRUPTED}
