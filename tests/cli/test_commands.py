"""Commands of harnessctl against a running control server: output, exit status, errors."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import click
import pytest

from harnessd.cli import CLIENT, DAEMON, client_table, daemon_table
from harnessd.domain.decision import Decision, Pass, Retry, RuleRef
from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.messages import Message, TextBlock, ToolUseBlock
from harnessd.domain.record import (
    AppendNode,
    AskPerson,
    ChangeTask,
    MovePointer,
    PlanEffect,
    RecordDecision,
    SaveCounters,
    SettleEffect,
)
from harnessd.domain.session import Node, NodeKind, assistant_payload, result_payload, user_payload
from harnessd.domain.task import Counters, StopReason, Verb
from tests.cli.conftest import Ctl
from tests.cli.test_render import HOSTILE, drives_a_terminal
from tests.control_server import ControlServer


def two_lines(err: str) -> list[str]:
    """Every error is one sentence saying what is wrong and one saying what to do."""
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert all(lines)
    return lines


# --- submit, set ------------------------------------------------------------------------------------------------------


def test_submit_prints_the_id_first(server: ControlServer, ctl: Ctl) -> None:
    done = ctl("submit", "Port the importer", "--workspace", str(server.workspace))
    assert done.code == 0
    task = done.out.split()[0]
    assert ctl("list", "-q").out == f"{task}\n"


def test_the_same_key_is_the_same_task(server: ControlServer, ctl: Ctl) -> None:
    # A19
    words = ("submit", "Nightly", "--workspace", str(server.workspace), "--key", "nightly-1", "-q")
    first, second = ctl(*words), ctl(*words)
    assert (first.code, second.code, second.out) == (0, 0, first.out)
    assert second.err.startswith("already submitted ")
    assert ctl(*words, "--strict").code == 1
    other = ctl("submit", "Other", "--workspace", str(server.workspace), "--key", "nightly-1")
    assert other.code == 5
    two_lines(other.err)


def test_the_prompt_comes_from_a_file_or_standard_input(server: ControlServer) -> None:
    prompt = server.workspace / "nightly.md"
    prompt.write_bytes(b"Build \xff it\n")
    task = server.cli("submit", "-f", "nightly.md", "-q").out.strip()
    assert server.do(server.store.find(task)).draft.prompt == "Build \ufffd it\n"  # type: ignore[union-attr]
    piped = server.cli("submit", "-", "-q", stdin="from a pipe").out.strip()
    found = server.do(server.store.find(piped))
    assert found.draft.prompt == "from a pipe"  # type: ignore[union-attr]
    assert found.draft.workspace == str(server.workspace)  # type: ignore[union-attr]


def test_arguments_that_are_no_utf8_do_not_break_it(server: ControlServer) -> None:
    # j11: the interpreter hands such bytes over as lone surrogates
    done = server.cli("submit", "ok \udcff done", "-q")
    assert done.code == 0
    assert server.cli("show", done.out.strip()).code == 4
    assert "ok \ufffd done" in server.cli("list").out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("submit",), 2),
        (("submit", "x", "-f", "y"), 2),
        (("submit", "-f", "/not/there"), 2),
        (("submit", "x", "--agent", "codr"), 4),
        (("submit", "x", "--model", "primry"), 4),
        (("submit", "x", "--policy", "retry"), 2),
        (("submit", "x", "--budget", "tool_call=3"), 2),
        (("submit", "x", "--budget", "tool_calls=many"), 2),
        (("submit", "x", "--priority", "high"), 2),
        (("submit", "x", "--workspace", "/not/there"), 4),
        (("submit", "x", "--in", "soon"), 2),
        (("submit", "x", "--at", "soon"), 2),
        (("submit", "x", "--in", "5m", "--at", "03:12"), 2),
        (("submit", "x", "--label", "team"), 2),
        (("submit", "x", "--after", "zzzz"), 4),
        (("submit", "--many", "/not/there"), 2),
        (("submit", "x", "--many", "-"), 2),
        (("set", "8k"), 2),
        (("list", "--state", "gone"), 2),
        (("list", "--since", "yesterday"), 2),
        (("list", "--limit", "0"), 2),
        (("status", "zzzz"), 4),
        (("cancel",), 2),
        (("cancle", "8k"), 2),
        (("wait", "zzzz"), 4),
        (("answer", "q1", "done"), 4),
        (("completion", "tcsh"), 2),
        (("--nope",), 2),
        (("logs", "zzzz"), 4),
        (("show", "zzzz", "n1"), 4),
    ],
)
def test_bad_input_is_two_lines_and_a_status(
    server: ControlServer, ctl: Ctl, words: tuple[str, ...], code: int
) -> None:
    # G15
    if words[0] == "submit" and "--workspace" not in words:
        words = (*words, "--workspace", str(server.workspace))
    done = ctl(*words)
    assert (done.code, done.out) == (code, ""), done
    two_lines(done.err)
    assert "Traceback" not in done.err
    told = ctl(*words, "--json").err
    if not words[0].startswith("-") and words[0] not in ("cancle", "completion"):
        assert set(json.loads(told)["error"]) == {"code", "message", "hint"}
    assert ctl("list", "-q").out == ""


def test_times_are_printed_back_as_understood(server: ControlServer, ctl: Ctl) -> None:
    at = ("submit", "x", "--workspace", str(server.workspace), "-q", "--at", "2027-01-02 03:04:05+00:00")
    done = ctl(*at)
    task = server.do(server.store.find(done.out.strip()))
    assert task.draft.not_before == 1798859045.0  # type: ignore[union-attr]
    assert done.err == f"at {time.strftime('%Y-%m-%d %H:%M:%S %z', time.localtime(1798859045))}\n"
    assert ctl("list", "--since", "24h").err.startswith("since ")


def test_a_dry_submit_shows_what_would_be_in_force(server: ControlServer, ctl: Ctl) -> None:
    words = ("submit", "x", "--workspace", str(server.workspace), "--dry-run", "--policy", "retry=strict")
    done = ctl(*words, "--budget", "tool_calls=20")
    assert done.code == 0
    shown = [line.split() for line in done.out.splitlines()]
    assert ["agent", "coder"] in shown
    assert ["model", "primary"] in shown
    assert ["policy", "retry", "strict", "(asked", "for)"] in shown
    assert ["budget", "tool_calls", "20"] in shown
    assert ctl("list", "-q").out == ""


def test_many_lines_become_many_tasks(server: ControlServer, ctl: Ctl) -> None:
    # C12, A20
    file = server.workspace / "tasks.jsonl"
    lines = [
        {"prompt": "one", "key": "k1", "label": {"n": "1"}},
        {"prompt": "two", "budget": ["tool_calls=5"], "agent": "crawler", "in": "1h"},
        {"prompt": "three", "after": "zzzz"},
        {"promt": "four"},
    ]
    file.write_text("\n".join([*map(json.dumps, lines), "not json", "", json.dumps(lines[0])]))
    words = ("submit", "--many", str(file), "--workspace", str(server.workspace), "--label", "batch=port-7", "-q")
    done = ctl(*words)
    assert done.code == 1
    assert len(done.out.split()) == 3
    assert done.err.splitlines()[-1] == "6 lines: 2 submitted, 1 already there (same key), 3 refused"
    assert [f"{file}:{number}: " in done.err for number in (1, 3, 4, 5)] == [False, True, True, True]
    first = server.do(server.store.find(done.out.split()[0]))
    assert first.draft.labels == {"batch": "port-7", "n": "1"}  # type: ignore[union-attr]
    again = ctl(*words)
    assert again.err.splitlines()[-1] == "6 lines: 1 submitted, 2 already there (same key), 3 refused"


def test_set_says_what_it_set(server: ControlServer, ctl: Ctl) -> None:
    task = server.submit()
    done = ctl("set", task, "--budget", "tool_calls=+60", "--priority", "3", "--label", "team=web", "--pin-policies")
    assert done.code == 0
    assert done.out.split("  ")[0] == task
    assert all(word in done.out for word in ("tool_calls=150", "priority=3", "team=web"))
    found = server.do(server.store.find(task))
    assert found.draft.pinned_revision == 7  # type: ignore[union-attr]
    assert ctl("set", task, "--unpin-policies").code == 0
    assert server.do(server.store.find(task)).draft.pinned_revision is None  # type: ignore[union-attr]


# --- verbs ------------------------------------------------------------------------------------------------------------


def test_verbs_print_one_line_a_task(server: ControlServer, ctl: Ctl) -> None:
    first, second = server.submit(), server.submit("Other")
    done = ctl("pause", first, second)
    assert done.code == 0
    assert [line.split()[:2] for line in done.out.splitlines()] == [[first, "paused"], [second, "paused"]]
    assert ctl("pause", first).out == f"{first}  already paused\n"
    mixed = ctl("resume", first, "zzzz")
    assert mixed.code == 1
    assert mixed.out.startswith(f"{first}  goes on")
    assert mixed.err.startswith("zzzz  ")
    document = json.loads(ctl("cancel", first, "zzzz", "--json").out)
    assert [task["state"] for task in document["tasks"]] == ["stopped"]
    assert [(one["id"], one["code"]) for one in document["failed"]] == [("zzzz", "not_found")]


def test_verbs_take_ids_from_standard_input(server: ControlServer) -> None:
    # A3: `list -q | pause -`, and whole lines too
    server.submit(), server.submit("Other")
    listed = server.cli("list").out.splitlines()[1:]
    done = server.cli("pause", "-", stdin="\n".join(listed))
    assert done.code == 0
    assert len(done.out.splitlines()) == 2


def test_a_dry_verb_exits_as_the_real_one(server: ControlServer, ctl: Ctl) -> None:
    task = server.submit()
    dry = ctl("cancel", task, "--dry-run")
    assert (dry.code, "nothing was changed" in dry.out) == (0, True)
    refused = ctl("retry", task, "--dry-run")
    assert refused.code == ctl("retry", task).code == 5
    two_lines(refused.err)
    assert ctl("list", "--state", "queued", "-q").out == f"{task}\n"


def test_an_ambiguous_prefix_is_usage(server: ControlServer, ctl: Ctl) -> None:
    # C16
    first, second = server.submit(), server.submit("Other")
    common = next(first[:end] for end in range(len(first), 0, -1) if second.startswith(first[:end]))
    done = ctl("cancel", common)
    assert done.code == 2
    assert first in done.err
    assert second in done.err


def test_resume_names_what_to_raise(server: ControlServer, ctl: Ctl) -> None:
    # C16, A4
    task = server.submit(budget={"tool_calls": 0})
    server.end(task, Verb.STOP, reason=StopReason.BUDGET_EXHAUSTED, sentence="Out of calls.")
    refused = ctl("resume", task)
    assert refused.code == 5
    _, todo = two_lines(refused.err)
    assert todo.startswith(f"Raise it: harnessctl resume {task} --budget tool_calls=+")
    assert ctl("resume", task, "--budget", "tool_calls=+60", "--say", "carefully").code == 0


# --- looking ----------------------------------------------------------------------------------------------------------


def stopped_by_the_service(server: ControlServer) -> str:
    task = server.submit(labels={"team": "web"})
    lease = server.run(task)
    rule = RuleRef("retry", "default", "overloaded", "builtin retry.yaml", 18, 7)
    evidence = {"dependency": "model/primary", "status": 529, "message": "Overloaded", "request_id": "req_77c"}
    decision = Decision(Retry(1.0, 2, 4), "overloaded", rule, evidence, tried=(Pass("line1", "not the model's"),))
    server.record(
        lease,
        AppendNode(Node("n1", None, NodeKind.USER, user_payload("Port the importer"), time.time())),
        RecordDecision("n1", None, decision),
        SaveCounters(Counters(turns=3, tool_calls=66, tokens=1_310_000, cost_usd=2.87, warned=("tool_calls:63",)), "x"),
    )
    sentence = "model/primary could not be reached: Overloaded. The task is kept."
    steps = (("harnessctl", "resume", task), ("harnessctl", "retry", task))
    end = ChangeTask(Verb.STOP, StopReason.SERVICE_UNAVAILABLE, "overloaded", sentence, steps)
    server.record(lease, end)
    return task


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
    running = server.submit("Collect")
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
    assert "degraded" in done.out
    assert "next: harnessctl list --state stopped" in done.out
    assert ctl("status", "--strict").code == 1
    assert ctl("status", "--ready").out == "ready\n"
    assert json.loads(ctl("status", "--json").out)["tasks"]["stopped"] == 1
    assert task in ctl("list", "--reason", "service_unavailable", "--class", "overloaded").out


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


def with_branches(server: ControlServer) -> str:
    task = server.submit("Merge the price tables")
    lease = server.run(task)
    now = time.time()
    reply = Message("assistant", (TextBlock(f"I look. {HOSTILE}"), ToolUseBlock("c1", "bash", {"command": HOSTILE})))
    call = Effect("e1", "tool", "n2", "c1", "tool/bash", EffectClass.REVERSIBLE, EffectState.INTENT, arguments={})
    server.record(
        lease,
        AppendNode(Node("n1", None, NodeKind.USER, user_payload("Merge the price tables"), now)),
        AppendNode(Node("n2", "n1", NodeKind.ASSISTANT, assistant_payload(reply, served_by="m"), now)),
        PlanEffect(call),
    )
    server.record(
        lease,
        SettleEffect("e1", EffectState.FAILED),
        AppendNode(
            Node("n3", "n2", NodeKind.TOOL_RESULT, result_payload("c1", HOSTILE, is_error=True, tool="bash"), now)
        ),
        MovePointer("n3", "n1"),
        AppendNode(
            Node("n4", "n1", NodeKind.ASSISTANT, assistant_payload(Message("assistant", (TextBlock("Done."),))), now)
        ),
        ChangeTask(Verb.COMPLETE, sentence=HOSTILE),
    )
    return task


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


def asking(server: ControlServer, id_: str = "q1", kind: str = "outcome") -> str:
    task = server.submit(labels={"team": "web"})
    lease = server.run(task)
    choices = ("allow", "deny") if kind == "approval" else ("done", "not-done", "stop")
    until = time.time() + 604_700
    server.record(
        lease,
        AskPerson(id_, kind, "", "c1", "mcp/pay/charge ACME", choices, until),  # type: ignore[arg-type]
        ChangeTask(Verb.ASK, until=until, why="mcp/pay/charge ACME", waits_for="answer"),
    )
    return task


def test_what_waits_for_a_person_says_what_to_type(server: ControlServer, ctl: Ctl) -> None:
    # C3, C9
    task = asking(server)
    shown = ctl("status", task).out
    assert "waits for a person" in shown
    assert "asks     q1 outcome: mcp/pay/charge ACME" in shown
    assert "harnessctl answer q1 not-done" in shown
    row = ctl("inbox").out.splitlines()[1]
    assert row.split()[:4] == ["q1", "outcome", task, "coder"]
    assert "in 6d 23h" in row
    assert ctl("inbox", "-q", "--label", "team=web").out == "q1\n"
    assert ctl("inbox", "--kind", "approval", "--json").out == '{\n  "questions": []\n}\n'
    assert ctl("inbox", "--class", "none", "-q").out == ""
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
            if rows[name][0].startswith("harnessd.cli.demo:") and not Path("harnessd/cli/demo.py").exists():
                continue
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
