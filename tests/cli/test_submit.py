"""Submit, set and the verbs: output, exit status, errors."""

from __future__ import annotations

import json
import time

import pytest

from harnessd.domain.task import StopReason, Verb
from tests.cli.conftest import Ctl
from tests.cli.situations import two_lines
from tests.control_server import ControlServer

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
    # A dry run exits as the real one would.
    assert ctl("submit", "Other", "--workspace", str(server.workspace), "--key", "nightly-1", "--dry-run").code == 5
    again = ctl(*words, "--dry-run")
    assert (again.code, again.err.startswith("already submitted ")) == (0, True)
    assert ctl(*words, "--dry-run", "--strict").code == 1


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


BAD: tuple[tuple[tuple[str, ...], int], ...] = (
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
)


def test_bad_input_is_two_lines_and_a_status(server: ControlServer, ctl: Ctl) -> None:
    # G15
    for given, code in BAD:
        here = given[0] == "submit" and "--workspace" not in given
        words = (*given, "--workspace", str(server.workspace)) if here else given
        done = ctl(*words)
        assert (done.code, done.out) == (code, ""), (words, done)
        two_lines(done.err)
        assert "Traceback" not in done.err
        told = ctl(*words, "--json").err
        if not words[0].startswith("-") and words[0] not in ("cancle", "completion"):
            assert set(json.loads(told)["error"]) == {"code", "message", "hint"}, words
    assert ctl("list", "-q").out == ""


@pytest.mark.parametrize("zone", ["Australia/Sydney", "Europe/Madrid", "UTC"])
def test_a_due_time_is_the_same_moment_in_every_time_zone(
    server: ControlServer, ctl: Ctl, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # g14: stored as a moment (UTC), whatever the clock on the wall says
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        done = ctl("submit", "x", "--workspace", str(server.workspace), "-q", "--at", "2027-05-19T21:00:00+10:00")
    finally:
        monkeypatch.undo()
        time.tzset()
    task = server.do(server.store.find(done.out.strip()))
    assert task.draft.not_before == 1810724400.0  # type: ignore[union-attr]


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
