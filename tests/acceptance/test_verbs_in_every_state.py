"""Every verb of a person in every state of a task: done as the table says, or refused with what to do instead."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harnessd.cli.client import Client, Problem
from harnessd.domain.task import TaskState, Verb, after
from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

SCRIPTS = {
    "long": {
        "turns": [
            {"when": {"results": {"min": 1}}, "say": "Done."},
            {"say": "I wait.", "call": {"tool": "bash", "args": {"command": "sleep 319"}}},
        ]
    },
    "asks": {
        "turns": [
            {"when": {"results": {"min": 1}}, "say": "Done."},
            {"say": "May I?", "call": {"tool": "write_file", "args": {"path": "a", "content": "b"}}},
        ]
    },
    "poor": {
        "turns": [{"say": "Never."}],
        "faults": {"rate": [{"p": 1.0, "do": {"quota": True, "retry_after": 3600}}]},
    },
    "quick": {"turns": [{"say": "Hello."}]},
}
ASK = "kind: tools\npermissions: [{for: tool/write_file, do: ask}]\n"
# What a worker still has to obey: the row stays as it is for a moment.
BY_WORKER = {Verb.CANCEL: TaskState.STOPPED, Verb.PAUSE: TaskState.PAUSED}
VERBS = (Verb.CANCEL, Verb.PAUSE, Verb.RESUME, Verb.RETRY)
STATES = [state for state in TaskState if state is not TaskState.ROLLING_BACK]
# Asking for what is there already is no mistake.
SAME = {
    (TaskState.STOPPED, Verb.CANCEL),
    (TaskState.PAUSED, Verb.PAUSE),
    (TaskState.QUEUED, Verb.RESUME),
    (TaskState.RUNNING, Verb.RESUME),
}


class Stage:
    """One daemon, and a new task in the wanted state."""

    def __init__(self, daemon: Running, client: Client) -> None:
        self.daemon, self.client, self.number = daemon, client, itertools.count()

    def task(self, state: TaskState) -> str:
        make: dict[TaskState, Callable[[], str]] = {
            TaskState.QUEUED: lambda: self._submit("quick", not_before=time.time() + 3600),
            TaskState.RUNNING: self._working,
            TaskState.PARKED: lambda: self._submit("poor"),
            TaskState.WAITING: lambda: self._submit("asks"),
            TaskState.PAUSED: lambda: self._then("pause"),
            TaskState.STOPPED: lambda: self._then("cancel"),
            TaskState.COMPLETED: lambda: self._submit("quick"),
        }
        task = make[state]()
        self.daemon.until(self.client, task, (state.value,))
        return task

    def verb(self, task: str, verb: str, **body: object) -> str:
        """The code of the refusal, or nothing."""
        refused: Problem | None = None
        try:
            self.client.post(f"/v1/tasks/{task}/{verb}", body)
        except Problem as problem:
            refused = problem
        if refused is None:
            return ""
        assert refused.message
        assert refused.hint, f"{verb}: {refused.message} says nothing of what to do"
        return refused.code

    def _submit(self, agent: str, **more: object) -> str:
        space = self.daemon.workspace(f"w{next(self.number)}")
        return self.daemon.submit(self.client, prompt="Work.", agent=agent, workspace=str(space), **more)

    def _then(self, verb: str) -> str:
        task = self._submit("quick", not_before=time.time() + 3600)
        assert self.verb(task, verb) == ""
        return task

    def _working(self) -> str:
        task = self._submit("long")
        until = time.monotonic() + 20
        while "sleep" not in str((self.client.get(f"/v1/tasks/{task}")["progress"] or {}).get("doing")):
            assert time.monotonic() < until, self.daemon.log
            time.sleep(0.02)
        return task


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("verbs")
    with running_simulator(SCRIPTS) as service, running(folder) as daemon:
        (folder / "policies").mkdir()
        (folder / "policies" / "tools.yaml").write_text(ASK)
        daemon.configure(settings(folder, service.url, dict.fromkeys(SCRIPTS, "anthropic"), workers=32))
        yield Stage(daemon, daemon.start())


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", STATES)
def test_a_verb_moves_a_task_as_the_table_says(stage: Stage, state: TaskState, verb: Verb) -> None:
    task = stage.task(state)
    target = after(state, verb)
    now = {"now": True} if (state, verb) == (TaskState.RUNNING, Verb.PAUSE) else {}
    refused = stage.verb(task, verb.value, **now)
    if target is None and (state, verb) not in SAME:
        assert refused == "refused"
        assert stage.client.get(f"/v1/tasks/{task}")["state"] == state.value
        return
    assert refused == ""
    wanted = BY_WORKER.get(verb, target) if state is TaskState.RUNNING else target
    # A queued task is taken at once and runs on from there.
    onward = ("queued", "running", "parked", "waiting", "completed")
    stage.daemon.until(stage.client, task, onward if wanted is TaskState.QUEUED else (str(wanted or state),), 20)


@pytest.mark.parametrize("state", STATES)
def test_words_are_taken_where_somebody_will_read_them(stage: Stage, state: TaskState) -> None:
    task = stage.task(state)
    refused = stage.verb(task, "send", text="Use the new API.")
    assert refused == ("refused" if state.ended else "")


@pytest.mark.parametrize("state", STATES)
def test_limits_can_be_raised_in_every_state(stage: Stage, state: TaskState) -> None:
    # R3.9
    task = stage.task(state)
    assert stage.verb(task, "set", budget={"tool_calls": "+60"}) == ""
    limits = {row["budget"]: row["limit"] for row in stage.client.get(f"/v1/tasks/{task}")["budgets"]}
    assert limits["tool_calls"] == 150


def test_a_paused_tool_call_goes_on_after_resume(stage: Stage) -> None:
    task = stage.task(TaskState.RUNNING)
    assert stage.verb(task, "pause", now=True) == ""
    stage.daemon.until(stage.client, task, ("paused",), 10)
    assert stage.verb(task, "resume") == ""
    assert stage.daemon.until_ended(stage.client, task)["state"] == "completed"


def test_a_pause_taken_back_is_no_pause(stage: Stage) -> None:
    task = stage.task(TaskState.RUNNING)
    assert stage.verb(task, "pause") == ""
    assert stage.verb(task, "resume") == ""
    assert stage.client.get(f"/v1/tasks/{task}")["pause_asked"] is False
    assert stage.verb(task, "cancel") == ""
    assert stage.daemon.until_ended(stage.client, task, 10)["reason"] == "aborted"
