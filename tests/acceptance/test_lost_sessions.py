"""Sessions that others lose: open calls, poisoned histories, NUL characters, many readers beside the writer."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli.client import Client, Problem
from harnessd.domain.messages import Message, TextBlock, ToolUseBlock
from harnessd.domain.session import assistant_payload, result_payload, user_payload
from tests.running import Running, running, settings
from tests.session_files import Row, node, sealed
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance

PROTOCOLS = {"a": "anthropic", "c": "openai-chat", "r": "openai-responses"}
NUL_WRITES = [
    {"tool": "write_file", "args": {"path": "x", "content": "x\0y\n"}},
    {"tool": "write_file", "args": {"path": "bad\0name", "content": "never"}},
    {"tool": "read_file", "args": {"path": "\0/etc/passwd"}},
    {"tool": "bash", "args": {"command": "echo a\0b"}},
    {"tool": "bash", "args": {"command": "printf 'one\\000two\\n'; printf 'y\\000z' >y"}},
    {"tool": "read_file", "args": {"path": "x"}},
    {"tool": "search_files", "args": {"pattern": "\0"}},
    {"tool": "list_files", "args": {"a\0": "b\0"}},
]
SCRIPTS: Mapping[str, Any] = {
    "a": {"turns": [{"say": "Hello."}]},
    "c": {"use": "a"},
    "r": {"use": "a"},
    **{
        f"nul-{name}": {
            "turns": [
                {"when": {"results": 0}, "say": "First\0 word.", "call": NUL_WRITES},
                {"when": {"last_text_matches": "Once"}, "say": "Again\0."},
                {"say": "Done\0."},
            ]
        }
        for name in PROTOCOLS
    },
}
NUL_FORMS = ("\0", "\N{SYMBOL FOR NULL}", "\N{REPLACEMENT CHARACTER}")


@pytest.fixture(scope="module")
def service() -> Iterator[SimulatedService]:
    with running_simulator(SCRIPTS) as found:
        yield found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, service: SimulatedService) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("lost")
    models = PROTOCOLS | {f"nul-{name}": protocol for name, protocol in PROTOCOLS.items()}
    with running(folder) as found:
        found.configure(settings(folder, service.url, models))
        found.start()
        yield found


@pytest.fixture
def client(daemon: Running, service: SimulatedService) -> Client:
    service.reset_now()
    return daemon.clients[-1]


def taken_in(daemon: Running, rows: Sequence[Row], name: str, agent: str) -> str:
    """A stored history, as a paused task."""
    space = str(daemon.workspace(name))
    query = [("workspace", space), ("agent", agent)]
    with closing(Client(daemon.socket)) as own:
        return str(own.upload("/v1/import", query, sealed(space, rows))["task"])


def payloads(daemon: Running, task: str) -> list[str]:
    """The nodes of a session, byte for byte as they are stored."""
    database = daemon.folder / "state" / "harnessd.db"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        return [row[0] for row in store.execute("SELECT payload FROM nodes WHERE task = ? ORDER BY seq", (task,))]


def goes_on_at_once(daemon: Running, service: SimulatedService, client: Client, task: str, word: str) -> None:
    """`resume --say` leads to an answer by one request that the strict service takes."""
    before = payloads(daemon, task)
    client.post(f"/v1/tasks/{task}/resume", {"say": word})
    row = daemon.until_ended(client, task)
    assert (row["state"], row["sentence"]) == ("completed", "Hello."), (row, daemon.log[-3000:])
    seen = service.requests_now()
    assert [entry["status"] for entry in seen["last"]] == [200]
    assert seen["violations"] == []
    assert payloads(daemon, task)[: len(before)] == before, "the history is as it was"


# --- e10: a branch at an open call ------------------------------------------------------------------------------------


def asked(*uses: str) -> dict[str, Any]:
    blocks = [ToolUseBlock(use, "bash", {"command": f"echo {use}"}) for use in uses]
    return assistant_payload(Message("assistant", (TextBlock("I look."), *blocks)))


OPEN: Mapping[str, list[Row]] = {
    "one": [node(1, "user", user_payload("Go")), node(2, "assistant", asked("t1"))],
    "one-of-two": [
        node(1, "user", user_payload("Go")),
        node(2, "assistant", asked("t1", "t2")),
        node(3, "tool_result", result_payload("t2", "t2", is_error=False, tool="bash", state="done")),
    ],
    "second-turn": [
        node(1, "user", user_payload("Go")),
        node(2, "assistant", asked("t1")),
        node(3, "tool_result", result_payload("t1", "t1", is_error=False, tool="bash", state="done")),
        node(4, "assistant", asked("t1")),
    ],
}


@pytest.mark.parametrize("agent", PROTOCOLS)
def test_a_session_that_stands_at_an_open_call_goes_on(
    daemon: Running, service: SimulatedService, client: Client, agent: str
) -> None:
    # e10, R4.7: the call is answered first; no service refuses what is shown
    for name, rows in OPEN.items():
        service.reset_now()
        task = taken_in(daemon, rows, f"open-{agent}-{name}", agent)
        goes_on_at_once(daemon, service, client, task, "Never mind.")


def test_a_rollback_to_an_open_call_is_refused_with_the_choice(daemon: Running) -> None:
    # e10, R5.2
    task = taken_in(daemon, OPEN["second-turn"], "fork", "a")
    for node_, near in (("n2", "--to n1 or --to n3"), ("n4", "--to n3")):
        for more in ((), ("--prompt", "Another way.")):
            told = daemon.ctl("rollback", task, "--to", node_, *more)
            assert (told.returncode, near in told.stderr) == (5, True), (node_, told.stderr)
            assert "no result yet" in told.stderr
    assert daemon.ctl("rollback", task, "--to", "n3").returncode == 0


# --- e15: a history that every service refuses ------------------------------------------------------------------------


def said(*blocks: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "blocks": list(blocks), "facts": {}}


TEXT: Mapping[str, Any] = {"type": "text", "text": ""}
HI = node(1, "user", user_payload("Hi"))
POISONED: Mapping[str, list[Row]] = {
    "empty-text": [HI, node(2, "assistant", said(TEXT))],
    "blank-text": [HI, node(2, "assistant", said({"type": "text", "text": " \n\t"}))],
    "no-blocks": [HI, node(2, "assistant", said())],
    "nul": [HI, node(2, "assistant", said({"type": "text", "text": "a\0b"}))],
    "half-pair": [HI, node(2, "assistant", said({"type": "text", "text": "a\ufffd \U0001f378"}))],
    "empty-user": [HI, node(2, "assistant", said({"type": "text", "text": "Yes?"})), node(3, "user", user_payload(""))],
    "same-id-twice": [
        HI,
        node(2, "assistant", said(*(
            {"type": "tool_use", "id": "t1", "name": "bash", "arguments": {"command": word}} for word in ("a", "b")
        ))),
        node(3, "tool_result", result_payload("t1", "a", is_error=False, tool="bash", state="done")),
    ],
    "orphan-result": [
        HI,
        node(2, "tool_result", result_payload("gone", "x", is_error=False, tool="bash", state="done")),
    ],
    "two-in-a-row": [HI, node(2, "user", user_payload("Hi?")), *(
        node(place, "assistant", said({"type": "text", "text": "Yes."})) for place in (3, 4)
    )],
    "odd-id": [
        HI,
        node(2, "assistant", said({"type": "tool_use", "id": "call:1/ü", "name": "bash", "arguments": {}})),
        node(3, "tool_result", result_payload("call:1/ü", "", is_error=True, tool="bash", state="done")),
    ],
}  # fmt: skip


@pytest.mark.parametrize("agent", PROTOCOLS)
def test_a_poisoned_history_is_resumed_at_the_first_try(
    daemon: Running, service: SimulatedService, client: Client, agent: str
) -> None:
    # e15, R4.7: the view is repaired each time it is built, the history never
    for name, rows in POISONED.items():
        service.reset_now()
        task = taken_in(daemon, rows, f"poison-{agent}-{name}", agent)
        goes_on_at_once(daemon, service, client, task, "Go on")


# --- e16: NUL ---------------------------------------------------------------------------------------------------------


def kept(text: str, wanted: str) -> bool:
    """The text, its NUL shown as one or by the sign that stands for it."""
    return any(wanted.replace("\0", form) in text for form in NUL_FORMS)


@pytest.mark.parametrize("agent", PROTOCOLS)
def test_a_nul_from_a_model_or_a_tool_loses_nothing(
    daemon: Running, service: SimulatedService, client: Client, agent: str
) -> None:
    # e16: in words, arguments, file names, names of tools, output; over a restart, and in what is exported
    space = daemon.workspace(f"nul-{agent}")
    task = daemon.submit(client, prompt="Go.", agent=f"nul-{agent}", workspace=str(space))
    # A line that cannot be taken apart is asked about; allowed, it is no command all the same.
    row = daemon.until(client, task, ("waiting", "completed", "stopped"))
    assert "echo a" in row["questions"][0]["sentence"], row
    assert daemon.ctl("approve", row["questions"][0]["id"]).returncode == 0
    row = daemon.until_ended(client, task)
    assert row["state"] == "completed", (row, daemon.log[-3000:])
    assert kept(row["sentence"], "Done\0.")
    assert (space / "x").read_bytes() == b"x\0y\n", "what a model writes into a file is written"
    assert (space / "y").read_bytes() == b"y\0z"
    assert sorted(path.name for path in space.iterdir()) == ["x", "y"]
    nodes = client.get(f"/v1/tasks/{task}/nodes")["nodes"]
    texts = [one["text"] for one in nodes]
    assert kept(texts[1], "First\0 word.")
    assert any(kept(text, "one\0two") for text in texts), "the output is there"
    assert len([one for one in nodes if one["kind"] == "tool_result"]) == len(NUL_WRITES)
    seen = service.requests_now()
    assert [entry["status"] for entry in seen["last"] if entry["status"] != 200] == []
    assert seen["violations"] == []
    # Exported, taken in again and resumed: it is the same history, and legal.
    file = daemon.folder / f"nul-{agent}.jsonl"
    assert daemon.ctl("export", task, "-o", str(file)).returncode == 0
    again = daemon.ctl("import", str(file), "--workspace", str(daemon.workspace(f"nul-{agent}-again")))
    assert again.returncode == 0, again.stderr
    new = again.stdout.split()[0]
    assert payloads(daemon, new) == payloads(daemon, task)
    assert daemon.ctl("resume", new, "--say", "Once more.").returncode == 0
    assert kept(daemon.until_ended(client, new)["sentence"], "Again\0.")
    assert service.requests_now()["violations"] == []
    for words in (("show", task, "n2"), ("logs", task), ("status", task)):
        shown = daemon.ctl(*words)
        assert shown.returncode == 0, (words, shown.stderr)
        assert "\0" not in shown.stdout


def refusal(ask: Callable[..., object], *what: Any) -> Problem | None:
    """Why it was refused; None where it was taken."""
    try:
        ask(*what)
    except Problem as problem:
        return problem
    return None


def test_a_nul_from_a_person_is_kept_or_refused_in_a_line(daemon: Running, client: Client) -> None:
    # e16: in every text that a person hands in
    space = str(daemon.workspace("person"))
    idle = daemon.submit(client, prompt="Wait.", agent="a", workspace=space, not_before=time.time() + 3600)
    body = {"prompt": "Go.", "agent": "a", "workspace": space, "not_before": time.time() + 3600}
    texts: dict[str, tuple[str, dict[str, Any]]] = {
        "prompt": ("/v1/tasks", {**body, "prompt": "a\0b"}),
        "key": ("/v1/tasks", {**body, "key": "a\0b"}),
        "agent": ("/v1/tasks", {**body, "agent": "a\0b"}),
        "model": ("/v1/tasks", {**body, "model": "a\0b"}),
        "feature": ("/v1/tasks", {**body, "feature": "a\0b"}),
        "workspace": ("/v1/tasks", {**body, "workspace": f"{space}\0"}),
        "label": ("/v1/tasks", {**body, "labels": {"team": "a\0b"}}),
        "label's name": ("/v1/tasks", {**body, "labels": {"a\0b": "x"}}),
        "after": ("/v1/tasks", {**body, "after": ["a\0b"]}),
        "policy": ("/v1/tasks", {**body, "policies": {"retry": "a\0b"}}),
        "budget": ("/v1/tasks", {**body, "budget": {"turns": "1\0"}}),
        "send": (f"/v1/tasks/{idle}/send", {"text": "a\0b"}),
        "set": (f"/v1/tasks/{idle}/set", {"labels": {"x": "a\0b"}}),
        "pause": (f"/v1/tasks/{idle}/pause", {"say": "a\0b"}),
        "resume": (f"/v1/tasks/{idle}/resume", {"say": "a\0b"}),
        "rollback to": (f"/v1/tasks/{idle}/rollback", {"to": "n1\0"}),
        "rollback's word": (f"/v1/tasks/{idle}/rollback", {"to": "n1", "prompt": "a\0b"}),
        "a path to keep": (f"/v1/tasks/{idle}/rollback", {"to": "n1", "keep": ["a\0b"]}),
        "answer": (f"/v1/inbox/{idle}/q\0", {"choice": "do\0ne", "say": "a\0b"}),
        "note of a reload": ("/v1/policies/reload", {"note": "a\0b"}),
    }
    for name, (path, sent) in texts.items():
        problem = refusal(client.post, path.replace("\0", "%00"), sent)
        if problem is not None:
            assert problem.exit_code in (2, 4, 5), (name, problem)
            assert "\n" not in problem.message.strip(), (name, problem.message)
    for path in ("/v1/tasks?label=a%00%3Db", f"/v1/tasks/{idle}%00", "/v1/tasks?agent=%00", "/v1/events?task=%00"):
        problem = refusal(client.get, path)
        assert problem is None or problem.code in ("invalid", "not_found"), (path, problem)
    client.post(f"/v1/tasks/{idle}/cancel", {})
    # What was taken is there, whole, and no service refuses it.
    task = taken_in(daemon, [HI], "word", "a")
    client.post(f"/v1/tasks/{task}/send", {"text": "a\0b"})
    client.post(f"/v1/tasks/{task}/resume", {"say": "c\0d"})
    assert daemon.until_ended(client, task)["sentence"] == "Hello."
    heard = [one["text"] for one in client.get(f"/v1/tasks/{task}/nodes")["nodes"]]
    assert kept(heard[1], "a\0b")
    assert kept(heard[2], "c\0d")
    assert "internal_error" not in daemon.log
    assert "Traceback" not in daemon.log
    assert daemon.ctl("list").returncode == 0


# --- e06: many beside one another -------------------------------------------------------------------------------------

READER = """
import sqlite3, sys
with sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None) as store:
    store.execute("BEGIN")
    print(store.execute("SELECT count(*) FROM tasks").fetchone()[0], flush=True)
    sys.stdin.read()
    print(store.execute("SELECT count(*) FROM tasks").fetchone()[0])
"""
WRITERS, ROWS = 6, 40


def small_rows(daemon: Running, number: int, took: list[float], problems: list[str]) -> None:
    """Tasks that wait for an hour, submitted one after the other over a connection of its own."""
    own = Client(daemon.socket)
    body = {"agent": "a", "workspace": str(daemon.workspace("convoy")), "not_before": time.time() + 3600}
    for row in range(ROWS):
        began = time.monotonic()
        found = refusal(own.post, "/v1/tasks", {**body, "prompt": f"Small row {number}-{row}."})
        took.append(time.monotonic() - began)
        problems += [] if found is None else [found.message]
    own.close()


@contextmanager
def long_reader(database: Path) -> Iterator[None]:
    """Somebody else's program that keeps one transaction open; what it sees stands still."""
    words = [sys.executable, "-c", READER, str(database)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        seen = reader.stdout.readline()
        yield
        reader.stdin.close()
        assert reader.stdout.readline() == seen


def test_nobody_waits_on_a_lock(daemon: Running, client: Client) -> None:
    # e06, R6.1: writers beside each other, and a reader who keeps his transaction open all the while
    database = daemon.folder / "state" / "harnessd.db"
    before = len(client.get("/v1/tasks?limit=10000")["tasks"])
    took: list[float] = []
    problems: list[str] = []
    lister = [sys.executable, "-m", "harnessd.cli", "list", "--socket", daemon.socket]
    with long_reader(database):
        writers = [threading.Thread(target=small_rows, args=(daemon, n, took, problems)) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        lists = [subprocess.Popen(lister, stdout=subprocess.DEVNULL) for _ in range(3)]
        for writer in writers:
            writer.join()
        assert [one.wait(60) for one in lists] == [0, 0, 0]
    small_rows(daemon, WRITERS, took, problems)
    assert problems == []
    assert len(client.get("/v1/tasks?limit=10000")["tasks"]) == before + (WRITERS + 1) * ROWS
    # Whoever met a lock would wait for as long as the reader stays; what is measured here is some milliseconds.
    assert sorted(took)[int(len(took) * 0.99)] < 5.0
    assert database.with_name("harnessd.db-wal").stat().st_size < 16 << 20, "the log is folded in once he is gone"
    assert "locked" not in daemon.log


def test_the_table_of_histories_is_no_dead_letter(tmp_path: Path) -> None:
    """Each history above is one that the file's form holds as it stands: nothing was mended on its way in."""
    for rows in (*OPEN.values(), *POISONED.values()):
        lines = [json.loads(line) for line in sealed(str(tmp_path), rows).splitlines()]
        assert [line["payload"] for line in lines if line.get("type") == "node"] == [row["payload"] for row in rows]
