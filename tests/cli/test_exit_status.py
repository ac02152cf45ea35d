"""Exit status of every command in every situation that people and scripts meet: one table, through the whole client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harnessd.cli import CLIENT, client_table, run
from harnessd.domain.record import AskPerson, ChangeTask
from harnessd.domain.task import StopReason, TaskState, Verb
from tests.cli.conftest import Ctl
from tests.cli.situations import asking
from tests.control_server import ControlServer

DONE, FAILED, USAGE, UNREACHABLE, NOT_FOUND, REFUSED, WAITS, TIMED_OUT = 0, 1, 2, 3, 4, 5, 6, 124


def queued(server: ControlServer) -> str:
    return server.submit()


def running(server: ControlServer) -> str:
    task = server.submit()
    server.run(task)
    return task


def moved(server: ControlServer, change: ChangeTask, *before: AskPerson) -> str:
    task = server.submit()
    server.record(server.run(task), *before, change)
    return task


MAKE: dict[TaskState, Callable[[ControlServer], str]] = {
    TaskState.QUEUED: queued,
    TaskState.RUNNING: running,
    TaskState.PARKED: lambda server: moved(server, ChangeTask(Verb.PARK, until=9e9, why="model/primary: busy")),
    TaskState.WAITING: asking,
    TaskState.PAUSED: lambda server: moved(server, ChangeTask(Verb.PAUSE)),
    TaskState.STOPPED: lambda server: moved(server, ChangeTask(Verb.STOP, StopReason.ERROR, sentence="It failed.")),
    TaskState.COMPLETED: lambda server: moved(server, ChangeTask(Verb.COMPLETE, sentence="Done.")),
}
Q, R, P, W, H, S, C = MAKE
# command -> status by state: queued, running, parked, waiting, paused, stopped, completed
TABLE: dict[str, tuple[int, ...]] = {
    "status {}": (0, 0, 0, 0, 0, 0, 0),
    "logs {}": (0, 0, 0, 0, 0, 0, 0),
    "why {}": (0, 0, 0, 0, 0, 0, 0),
    "why {} --evidence": (4, 4, 4, 4, 4, 4, 4),
    "why {} n9": (4, 4, 4, 4, 4, 4, 4),
    "tree {}": (0, 0, 0, 0, 0, 0, 0),
    "show {}": (4, 4, 4, 4, 4, 4, 4),
    "show {} n9": (4, 4, 4, 4, 4, 4, 4),
    "wait {} --timeout 1s": (124, 124, 124, 6, 6, 1, 0),
    "attach {} --timeout 1s": (124, 124, 124, 6, 6, 1, 0),
    "set {} --priority 3": (0, 0, 0, 0, 0, 0, 0),
    "set {} --model nope": (4, 4, 4, 4, 4, 4, 4),
    "send {} hello": (0, 0, 0, 0, 0, 5, 5),
    "pause {}": (0, 0, 0, 0, 0, 5, 5),
    "cancel {}": (0, 0, 0, 0, 0, 0, 5),
    "resume {}": (0, 0, 0, 0, 0, 0, 5),
    "retry {}": (5, 5, 5, 5, 5, 0, 0),
    "inbox --task {}": (0, 0, 0, 0, 0, 0, 0),
}
CHANGES = ("set", "send", "pause", "cancel", "resume", "retry")


@pytest.mark.parametrize("command", TABLE)
def test_every_command_in_every_state(server: ControlServer, ctl: Ctl, command: str) -> None:
    # j17, A22
    for state, wanted in zip(MAKE, TABLE[command], strict=True):
        task = MAKE[state](server)
        if state is TaskState.WAITING:
            server.do(server.store.find(task))
        words = command.format(task).split()
        if words[0] in CHANGES:
            # Told what would happen, and then done: the same status.
            assert ctl(*words, "--dry-run").code == wanted, f"{command} --dry-run in {state}"
        done = ctl(*words)
        assert done.code == wanted, f"{command} in {state}: {done.err}"
        if wanted in (USAGE, NOT_FOUND, REFUSED):
            assert len(done.err.splitlines()) == 2, f"{command} in {state}: {done.err}"
        if state is TaskState.WAITING:
            ctl("cancel", task)  # the next one asks under the same id


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["status"], DONE),
        (["status", "--ready"], DONE),
        (["list"], DONE),
        (["list", "--stats"], DONE),
        (["list", "--state", "stoped"], USAGE),
        (["list", "--class", "overloade"], USAGE),
        (["list", "--policy", "retri=x"], USAGE),
        (["list", "--since", "yesterday"], USAGE),
        (["inbox"], DONE),
        (["inbox", "--class", "none"], USAGE),
        (["answer", "q9", "done"], NOT_FOUND),
        (["approve", "q9"], NOT_FOUND),
        (["status", "zzzz"], NOT_FOUND),
        (["logs", "zzzz"], NOT_FOUND),
        (["logs", "zzzz", "--event", "nope"], USAGE),
        (["wait", "zzzz"], NOT_FOUND),
        (["cancel"], USAGE),
        (["cancel", "zzzz"], NOT_FOUND),
        (["cancel", "zzzz", "yyyy"], FAILED),
        (["set", "zzzz"], USAGE),
        (["submit"], USAGE),
        (["submit", "x", "--agent", "nope"], NOT_FOUND),
        (["submit", "x", "--agent", "nope", "--dry-run"], NOT_FOUND),
        (["submit", "x", "--budget", "tool_calls"], USAGE),
        (["submit", "x", "--in", "soon"], USAGE),
        (["submit", "x", "--after", "zzzz"], NOT_FOUND),
        (["notify", "test", "nope"], NOT_FOUND),
        (["completion", "fish"], DONE),
        (["completion", "tcsh"], USAGE),
        (["--version"], DONE),
        (["nope"], USAGE),
        (["status", "--nope"], USAGE),
    ],
)
def test_what_is_asked_of_the_daemon(server: ControlServer, ctl: Ctl, words: list[str], wanted: int) -> None:
    place = ["--workspace", str(server.workspace)] if words[0] == "submit" else []
    done = ctl(*words, *place)
    assert done.code == wanted, done.err
    if wanted in (USAGE, NOT_FOUND):
        as_json = ctl(*words, *place, "--json")
        error = json.loads(as_json.err.splitlines()[-1])["error"]
        assert as_json.code == wanted
        assert error["code"]
        assert error["message"]
        assert error["hint"]


def test_without_a_daemon_every_command_that_needs_one_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # j01
    needs = {
        "submit": ["x"], "set": ["t", "--priority", "1"], "status": [], "list": [], "logs": ["t"], "attach": ["t"],
        "wait": ["t"], "send": ["t", "x"], "cancel": ["t"], "resume": ["t"], "retry": ["t"], "pause": ["t"],
        "inbox": [], "answer": ["q", "done"], "approve": ["q"], "deny": ["q"], "why": ["t"], "tree": ["t"],
        "show": ["t"],
    }  # fmt: skip
    assert needs.keys() <= CLIENT.keys()
    for name, words in needs.items():
        code = run(client_table(), ["--socket", str(tmp_path / "no.sock"), name, *words])
        shown = capsys.readouterr()
        assert code == UNREACHABLE, name
        assert "there is no such socket" in shown.err, name
        assert "Start it: " in shown.err, name
        assert "Traceback" not in shown.err
        assert shown.out == "", name
