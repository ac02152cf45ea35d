"""Waiting for tasks, and the tables of both programs."""

from __future__ import annotations

import json
import threading
import time

import click
import pytest

from harnessd.cli import CLIENT, DAEMON, client_table, daemon_table
from harnessd.cli.follow import progress_line
from harnessd.domain.record import (
    ChangeTask,
)
from harnessd.domain.task import StopReason, Verb
from tests.cli.conftest import Ctl
from tests.control_server import ControlServer

# --- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "change", "code"),
    [
        (Verb.COMPLETE, {"sentence": "All merged."}, 0),
        (Verb.STOP, {"reason": StopReason.ERROR, "sentence": "It broke."}, 1),
        (Verb.CANCEL, {"reason": StopReason.ABORTED, "sentence": "Cancelled."}, 1),
        (Verb.ASK, {"why": "Which one?", "waits_for": "answer"}, 6),
        (Verb.PAUSE, {"why": "paused"}, 6),
    ],
)
def test_waiting_ends_as_the_task_does(
    server: ControlServer, ctl: Ctl, verb: Verb, change: dict[str, object], code: int
) -> None:
    # j17: exit status, text and JSON agree
    task = server.submit()
    lease = server.run(task)
    end = threading.Timer(0.3, lambda: server.record(lease, ChangeTask(verb, **change)))  # type: ignore[arg-type]
    end.start()
    done = ctl("wait", task)
    end.join()
    assert done.code == code, done
    assert task in done.out.splitlines()[0]
    assert str(change.get("sentence") or change.get("why")) in done.out
    assert "running" in done.err
    again = ctl("attach", task, "--json")
    assert again.code == code
    assert json.loads(again.out)["task"] == task


def test_the_progress_of_an_ended_task_does_not_say_what_it_did_last(server: ControlServer, ctl: Ctl) -> None:
    task = server.submit()
    lease = server.run(task)
    running = json.loads(ctl("status", task, "--json").out) | {"doing": "waiting for model/primary, try 1"}
    assert progress_line(running, timed=False).endswith("USD  waiting for model/primary, try 1")
    server.record(lease, ChangeTask(Verb.COMPLETE, sentence="All merged."))
    ended = json.loads(ctl("status", task, "--json").out) | {"doing": "waiting for model/primary, try 1"}
    assert progress_line(ended, timed=False).endswith("USD")


def test_submit_can_wait(server: ControlServer, ctl: Ctl) -> None:
    def work() -> None:
        for _ in range(100):
            claimed = server.do(server.store.claim("a1", 1, time.time(), 20.0))
            if claimed and claimed[0].lease:
                server.record(claimed[0].lease, ChangeTask(Verb.STOP, StopReason.ERROR, sentence="It broke."))
                return
            time.sleep(0.02)

    worker = threading.Thread(target=work)
    worker.start()
    done = ctl("submit", "x", "--workspace", str(server.workspace), "--wait", "--follow")
    worker.join()
    assert done.code == 1
    assert [line.split()[1] for line in done.out.splitlines()[1:4]] == ["submitted", "started", "task_stopped"]
    assert "It broke." in done.out


def test_waiting_for_many_counts_by_reason(server: ControlServer, ctl: Ctl) -> None:
    # C12
    good = server.submit()
    server.end(good)
    bad, asks = server.submit("Bad"), server.submit("Asks")
    assert ctl("wait", good, good).code == 0
    server.do(server.store.apply(asks, Verb.PAUSE, time.time(), "me"))
    end = threading.Timer(0.3, lambda: server.do(server.store.apply(bad, Verb.CANCEL, time.time(), "me")))
    end.start()
    done = ctl("wait", good, bad, asks)
    end.join()
    assert done.code == 1
    assert done.out.startswith("3/3  ")
    assert all(word in done.out for word in ("completed 1", "aborted 1", "paused 1"))
    assert ctl("wait", good, asks).code == 6
    assert [task["task"] for task in json.loads(ctl("wait", good, bad, "--json").out)["tasks"]] == [good, bad]


def test_the_clients_own_timeout_is_124(server: ControlServer, ctl: Ctl) -> None:
    first, second = server.submit(), server.submit("Other")
    for words in ((first,), (first, second)):
        done = ctl("wait", *words, "--timeout", "1s")
        assert done.code == 124
        assert "go" in done.err.splitlines()[-1]
    assert ctl("list", "--state", "queued", "-q").out.split() == [second, first]


# --- the tables -------------------------------------------------------------------------------------------------------


def test_every_command_and_option_has_a_help_text() -> None:
    for table, rows in ((client_table(), CLIENT), (daemon_table(), DAEMON)):
        context = table.make_context(table.name, ["x"], resilient_parsing=True)
        for name in rows:
            command = table.get_command(context, name)
            assert command is not None
            assert command.help, name
            for parameter in command.params:
                if isinstance(parameter, click.Option):
                    assert parameter.help, (name, parameter.name)
            assert rows[name][1].endswith(".")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(ctl: Ctl, shell: str) -> None:
    done = ctl("completion", shell)
    assert done.code == 0
    assert "_HARNESSCTL_COMPLETE" in done.out
