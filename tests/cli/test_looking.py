"""Status, list, logs, tree, show and the inbox: what a person sees, and that nothing stored can drive the terminal."""

from __future__ import annotations

import json
import time

from harnessd.domain.messages import Message, TextBlock
from harnessd.domain.record import AppendNode, AskPerson, ChangeTask
from harnessd.domain.session import Node, NodeKind, assistant_payload, user_payload
from harnessd.domain.task import Verb
from tests.cli.conftest import Ctl
from tests.cli.situations import asking, stopped_by_the_service, two_lines, with_branches
from tests.cli.test_render import HOSTILE, drives_a_terminal
from tests.control_server import ControlServer

# --- looking ----------------------------------------------------------------------------------------------------------


def test_an_ended_task_tells_the_whole_failure(server: ControlServer, ctl: Ctl) -> None:
    # R3.8, C17, j16
    task = stopped_by_the_service(server)
    record = json.loads(ctl("status", task, "--json").out)
    assert {
        "task": task,
        "state": "stopped",
        "reason": "service_unavailable",
        "class": "overloaded",
        "dependency": "model/primary",
        "provider_message": "Overloaded",
        "status": 529,
        "request": "req_77c",
        "node": "n1",
        "cost_usd": 2.87,
        "next": [["harnessctl", "resume", task], ["harnessctl", "retry", task]],
    }.items() <= record.items()
    assert record["rule"]["line"] == 18
    shown = ctl("status", task).out
    for words in (
        "service_unavailable",
        "model/primary could not be reached",
        "HTTP 529",
        "overloaded",
        "req_77c",
        '"Overloaded"',
        "builtin retry.yaml:18",
        f"you can  harnessctl resume {task}",
        f"         harnessctl retry {task}",
        "1.31M",
    ):
        assert words in shown, shown
    assert '""' not in shown
    assert "None" not in shown


def test_status_counts_and_leads_on(server: ControlServer, ctl: Ctl) -> None:
    # C1
    task = stopped_by_the_service(server)
    running = server.submit("Collect", budget={"silence": 600})
    server.run(running)
    server.daemon.doing[running] = {"doing": "bash: make all", "since": time.time() - 268, "life_s": 4.0}
    server.daemon.warnings = [{"what": "model/primary", "since": time.time(), "sentence": "degraded"}]
    done = ctl("status")
    assert done.code == 0
    for words in ("harnessd 0.0.0 on a1, ready", "r7 in force", "running 1 of 32", "service_unavailable 1"):
        assert words in done.out
    row = next(line for line in done.out.splitlines() if line.startswith(running))
    assert row.split()[:4] == [running, "coder", "4m28s", "4s"]
    assert row.endswith("bash: make all")
    assert "  silence 4s of 10m  " in row  # C1: the budget of which most is used
    assert "degraded" in done.out
    assert "next: harnessctl list --state stopped" in done.out
    assert ctl("status", "--strict").code == 1
    assert ctl("status", "--ready").out == "ready\n"
    assert json.loads(ctl("status", "--json").out)["tasks"]["stopped"] == 1
    assert task in ctl("list", "--reason", "service_unavailable", "--class", "overloaded").out


def test_a_task_says_what_can_be_done_and_what_each_command_does(server: ControlServer, ctl: Ctl) -> None:
    # C2, C3
    task = server.submit()
    lines = ctl("status", task).out.splitlines()
    assert any("harnessctl cancel" in line and line.endswith("stop it; everything is kept") for line in lines)
    assert any(f"harnessctl set {task} --budget tool_calls=+60" in line for line in lines)
    ended = ctl("status", stopped_by_the_service(server)).out
    assert "\nbecause  " in ended
    assert "harnessctl set" not in ended
    completed = server.submit("Collect")
    server.end(completed, Verb.COMPLETE, sentence="Done.")
    assert "\nsaid     Done.\n" in ctl("status", completed).out
    assert ctl("pause", completed).err.startswith(f"{completed} is completed: it cannot be paused.\n")


def test_an_approval_names_the_rule_that_wants_it(server: ControlServer, ctl: Ctl) -> None:
    # C3
    task = server.submit("Push it")
    facts = {"rule": "pushes", "file": "policies/tools.yaml", "line": 4, "revision": 47}
    server.record(
        server.run(task),
        AskPerson("q7", "approval", "", None, "git push needs approval", ("allow", "deny"), data=facts),
        ChangeTask(Verb.ASK, why="git push", waits_for="answer"),
    )
    assert "\nrule     pushes   policies/tools.yaml:4  r47\n" in ctl("status", task).out


def test_the_list_is_sorted_and_counted(server: ControlServer, ctl: Ctl) -> None:
    dear = stopped_by_the_service(server)
    cheap = server.submit("Cheap")
    assert ctl("list", "-q").out.split() == [cheap, dear]
    assert ctl("list", "-q", "--sort", "cost").out.split() == [dear, cheap]
    assert ctl("list", "-q", "--label", "team=web").out.split() == [dear]
    assert ctl("list", "-q", "--policy", "retry=default", "--agent", "coder").out.split() == [cheap, dear]
    stats = json.loads(ctl("list", "--stats", "--json").out)
    assert stats["ends"] == {"queued": 1, "service_unavailable": 1}
    assert stats["median_turns"] == 1.5
    assert "service_unavailable" in ctl("list", "--stats").out


def test_the_tree_shows_branches_and_the_pointer(server: ControlServer, ctl: Ctl) -> None:
    # C5
    task = with_branches(server)
    done = ctl("tree", task)
    lines = done.out.splitlines()
    assert "2 branches, pointer n4" in lines[0]
    assert [line.split()[0] for line in lines[1:5]] == ["n1", "│", "n3", "├"]
    assert "left" in lines[2]
    assert "left" in lines[3]
    assert "left" not in lines[4]
    assert json.loads(ctl("tree", task, "--json").out)["pointer"] == "n4"
    assert ctl("show", task).out.splitlines()[1] == "Done."
    assert "-> bash" in ctl("show", task, "n2").out
    assert "<- failed" in ctl("show", task, "n3").out
    assert json.loads(ctl("show", task, "n2", "--json").out)["payload"]["facts"] == {"served_by": "m"}


def test_a_long_tree_is_counted(server: ControlServer, ctl: Ctl) -> None:
    task = server.submit("Collect")
    lease = server.run(task)
    now = time.time()
    nodes = [Node("n1", None, NodeKind.USER, user_payload("Collect"), now)]
    for number in range(2, 101):
        words = assistant_payload(Message("assistant", (TextBlock(f"step {number}"),)))
        nodes.append(Node(f"n{number}", f"n{number - 1}", NodeKind.ASSISTANT, words, now))
    server.record(lease, *(AppendNode(node) for node in nodes))
    lines = ctl("tree", task).out.splitlines()
    assert [line.split()[0] for line in lines[1:-2]] == ["n1", "n2", "n3-n98", "n99", "n100"]
    assert "96 turns" in lines[3]
    assert len(json.loads(ctl("tree", task, "--json").out)["nodes"]) == 100


def test_logs_are_one_line_an_event(server: ControlServer, ctl: Ctl) -> None:
    task = with_branches(server)
    done = ctl("logs", task)
    types = [line[16:].split()[0] for line in done.out.splitlines()]
    stored = [event.type for event in server.do(server.store.events(task=task))]
    assert types == stored
    assert [line[16:].split()[0] for line in ctl("logs", task, "--event", "user,tool_call").out.splitlines()] == [
        "user",
        "tool_call",
    ]
    objects = [json.loads(line) for line in ctl("logs", task, "--json").out.splitlines()]
    assert [one["type"] for one in objects] == stored
    assert objects[-1]["data"]["sentence"] == HOSTILE


def test_nothing_stored_drives_the_terminal(server: ControlServer, ctl: Ctl) -> None:
    # S9, j07: every command that prints what was stored
    task = with_branches(server)
    waiting = server.submit(HOSTILE, labels={"team": "web"})
    lease = server.run(waiting)
    server.record(
        lease,
        AskPerson("q1", "outcome", "", None, HOSTILE, ("done", "stop")),
        ChangeTask(Verb.ASK, why=HOSTILE, waits_for="answer"),
    )
    server.daemon.warnings = [{"what": HOSTILE, "since": 1.0, "sentence": HOSTILE}]
    for words in (
        ("status",),
        ("status", task),
        ("status", waiting),
        ("list",),
        ("logs", task),
        ("logs", waiting),
        ("why", waiting),
        ("tree", task),
        ("show", task, "n2"),
        ("show", task, "n3"),
        ("inbox",),
        ("wait", waiting),
        ("attach", task),
        ("send", waiting, "hello"),
        ("answer", "q1", HOSTILE.replace("\x00", "")),
        ("submit", HOSTILE, "--workspace", str(server.workspace)),
        ("submit", "x", "--agent", HOSTILE, "--workspace", str(server.workspace)),
        (HOSTILE,),
    ):
        done = ctl(*words)
        raw = [letter for letter in done.out + done.err if drives_a_terminal(letter) and letter not in "\t\n"]
        assert raw == [], words
        assert done.code != 70


# --- people -----------------------------------------------------------------------------------------------------------


def test_what_waits_for_a_person_says_what_to_type(server: ControlServer, ctl: Ctl) -> None:
    # C3, C9
    task = asking(server)
    shown = ctl("status", task).out
    assert "waits for a person" in shown
    assert "asks     q1 outcome: mcp/pay/charge ACME" in shown
    assert "waits for a person since " in shown
    assert "harnessctl answer q1 not-done" in shown
    row = ctl("inbox").out.splitlines()[1]
    assert row.split()[:4] == ["q1", "outcome", task, "coder"]
    assert "in 6d 23h" in row
    assert ctl("inbox", "-q", "--label", "team=web").out == "q1\n"
    assert ctl("inbox", "--kind", "approval", "--json").out == '{\n  "questions": []\n}\n'
    assert ctl("inbox", "--class", "overloaded", "-q").out == ""
    assert ctl("inbox", "--class", "none", "-q").code == 2
    wrong = ctl("answer", "q1", "perhaps")
    assert wrong.code == 2
    assert "done, not-done, stop" in two_lines(wrong.err)[1]
    assert ctl("answer", "q1", "done", "--say", "seen").out == f"q1  {task}  done  queued\n"
    assert ctl("inbox").err == "Nothing waits for a person.\n"


def test_approvals_have_short_forms(server: ControlServer, ctl: Ctl) -> None:
    asking(server, "a1", "approval")
    asking(server, "a2", "approval")
    assert ctl("deny", "a1", "--dry-run").out.endswith("nothing was changed\n")
    assert ctl("approve", "a1").code == 0
    assert ctl("deny", "a2", "--say", "no").code == 0
    found = [server.do(server.store.events())[-1].data["choice"]]
    assert found == ["deny"]
