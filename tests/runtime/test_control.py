"""Control API: every route over a real Unix socket, with the real store behind it."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.messages import Message, TextBlock, ToolUseBlock
from harnessd.domain.record import AppendNode, AskPerson, ChangeTask, PlanEffect, RecordEvent
from harnessd.domain.session import Node, NodeKind, assistant_payload, user_payload
from harnessd.domain.task import StopReason, Verb
from harnessd.runtime.control.answers import BODY_MAX
from tests.control_server import ControlServer, control_server


@pytest.fixture
def server() -> Iterator[ControlServer]:
    with control_server() as running:
        yield running


class Unix(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("harnessd", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(str(self.path))


def ask(
    server: ControlServer, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    connection = Unix(server.socket)
    raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    sent = {"content-type": "application/json"} | (headers or {}) if raw is not None else headers or {}
    try:
        connection.request(method, path, raw, sent)
        with connection.getresponse() as response:
            return response.status, json.loads(response.read())
    finally:
        connection.close()


def draft(server: ControlServer, **fields: Any) -> dict[str, Any]:
    return {"prompt": "Port the importer", "workspace": str(server.workspace), **fields}


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    status, document = answer
    assert set(document["error"]) == {"code", "message", "hint"}
    assert document["error"]["message"]
    return status, document["error"]["code"]


# --- submit -----------------------------------------------------------------------------------------------------------


def test_submit_is_durable_and_idempotent_by_key(server: ControlServer) -> None:
    status, task = ask(server, "POST", "/v1/tasks", draft(server, key="nightly", labels={"team": "web"}))
    assert (status, task["state"], task["agent"]) == (201, "queued", "coder")
    assert server.daemon.woken == 1
    again = ask(server, "POST", "/v1/tasks", draft(server, key="nightly", labels={"team": "web"}))
    assert (again[0], again[1]["task"], again[1]["fresh"]) == (200, task["task"], False)
    assert code(ask(server, "POST", "/v1/tasks", draft(server, key="nightly", prompt="Other"))) == (409, "conflict")


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"agent": "codr"}, (404, "not_found")),
        ({"model": "primry"}, (404, "not_found")),
        ({"policies": {"retry": "strickt"}}, (404, "not_found")),
        ({"policies": {"retri": "strict"}}, (422, "invalid")),
        ({"budget": {"tool_call": 3}}, (422, "invalid")),
        ({"budget": {"tool_calls": "many"}}, (422, "invalid")),
        ({"budget": {"wall_time": "300"}}, (422, "invalid")),
        ({"labels": {"x\n1": "y"}}, (422, "invalid")),
        ({"labels": {"x": "ok\n2026-01-01 level=info event=forged"}}, (422, "invalid")),
        ({"priority": "high"}, (422, "invalid")),
        ({"prompt": "  "}, (422, "invalid")),
        ({"prompt": "a\x00b"}, (422, "invalid")),
        ({"promt": "x"}, (422, "invalid")),
        ({"workspace": "relative"}, (422, "invalid")),
        ({"workspace": "/not/there"}, (404, "not_found")),
        ({"after": ["zzzz"]}, (404, "not_found")),
        ({"key": "a\nb"}, (422, "invalid")),
        ({"not_before": "soon"}, (422, "invalid")),
    ],
)
def test_a_wrong_draft_is_refused_with_what_is_wrong(
    server: ControlServer, fields: dict[str, Any], wanted: tuple[int, str]
) -> None:
    assert code(ask(server, "POST", "/v1/tasks", draft(server, **fields))) == wanted
    assert ask(server, "GET", "/v1/tasks")[1] == {"tasks": []}


def test_a_mistyped_name_is_answered_with_the_nearest(server: ControlServer) -> None:
    _, document = ask(server, "POST", "/v1/tasks", draft(server, agent="codr"))
    assert "coder" in document["error"]["hint"]


def test_no_workspace_holds_what_belongs_to_harnessd(server: ControlServer) -> None:
    # A24: an agent that could write there could raise its own budget.
    state = server.workspace.parent / "state"
    for folder in (server.workspace.parent, state):
        assert code(ask(server, "POST", "/v1/tasks", draft(server, workspace=str(folder)))) == (409, "refused")
    link = server.workspace / "link"
    link.symlink_to(state)
    assert code(ask(server, "POST", "/v1/tasks", draft(server, workspace=str(link)))) == (409, "refused")


def test_workspaces_stay_below_the_roots(tmp_path: Path) -> None:
    with control_server(roots=(tmp_path,)) as server:
        assert code(ask(server, "POST", "/v1/tasks", draft(server))) == (409, "refused")
        assert ask(server, "POST", "/v1/tasks", draft(server, workspace=str(tmp_path)))[0] == 201
        # A folder whose name only begins like a root is not below it.
        sibling = tmp_path.parent / f"{tmp_path.name}-evil"
        sibling.mkdir()
        assert code(ask(server, "POST", "/v1/tasks", draft(server, workspace=str(sibling)))) == (409, "refused")


def test_a_dry_run_changes_nothing(server: ControlServer) -> None:
    status, plan = ask(server, "POST", "/v1/tasks?dry_run=1", draft(server, budget={"tool_calls": "20"}))
    assert (status, plan["dry_run"], plan["model"]) == (200, True, "primary")
    assert {"budget": "tool_calls", "used": 0, "limit": 20.0, "left": 20.0, "warned": []} in plan["budgets"]
    assert ask(server, "GET", "/v1/tasks")[1] == {"tasks": []}
    assert server.daemon.woken == 0


def test_pinned_policies_name_their_revision(server: ControlServer) -> None:
    _, task = ask(server, "POST", "/v1/tasks", draft(server, pin_policies=True))
    assert server.do(server.store.find(task["task"])).draft.pinned_revision == 7  # type: ignore[union-attr]


def test_half_a_surrogate_pair_becomes_a_replacement(server: ControlServer) -> None:
    # j11: JSON can spell what no encoder can take.
    raw = b'{"prompt": "ok \\ud83c done \\ud83c\\udf78", "workspace": %s}' % json.dumps(str(server.workspace)).encode()
    status, task = ask(server, "POST", "/v1/tasks", raw)
    assert status == 201
    assert ask(server, "GET", f"/v1/tasks/{task['task']}")[1]["prompt"] == "ok \ufffd done \U0001f378"


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"{", b"[]", b'"x"', b"{\xff}", b'{"priority": NaN}', b"[" * 100_000, b"9" * 5000])
def test_a_body_that_is_no_json_object_is_400(server: ControlServer, raw: bytes) -> None:
    assert code(ask(server, "POST", "/v1/tasks", raw)) == (400, "bad_request")


def test_a_body_is_bounded(server: ControlServer) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(str(server.socket))
        head = "POST /v1/tasks HTTP/1.1\r\nHost: harnessd\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Content-Length: {BODY_MAX + 1}\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_without_a_length_is_bounded_too(server: ControlServer) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(str(server.socket))
        raw.sendall(
            b"POST /v1/tasks HTTP/1.1\r\nHost: harnessd\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        try:
            for _ in range(6):
                raw.sendall(chunk)
        except OSError:
            pass  # it was refused before we were through
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


# --- who calls --------------------------------------------------------------------------------------------------------

SIMPLE_TYPES = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
POSTS = ["/v1/tasks", "/v1/tasks/8/cancel", "/v1/inbox/a1", "/v1/tasks/8/set"]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("content_type", SIMPLE_TYPES)
def test_what_a_web_form_can_send_is_415(server: ControlServer, path: str, content_type: str) -> None:
    # S6, http-simple-post-csrf
    answer = ask(server, "POST", path, draft(server), {"content-type": content_type})
    assert code(answer) == (415, "content_type")
    assert ask(server, "GET", "/v1/tasks")[1] == {"tasks": []}


def test_a_get_has_no_effect(server: ControlServer) -> None:
    task = server.submit()
    assert code(ask(server, "GET", f"/v1/tasks/{task}/cancel")) == (405, "method_not_allowed")
    assert ask(server, "GET", f"/v1/tasks/{task}")[1]["state"] == "queued"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:8787"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost:8787", "Origin": "http://evil.example"},
        {"Host": "0.0.0.0:8787"},
        {"Host": ""},
        {"Host": "harnessd", "Origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/status", "/v1/events", "/nothing"])
def test_a_page_of_a_browser_is_403_before_routing(server: ControlServer, headers: dict[str, str], path: str) -> None:
    # S6, http-dns-rebinding
    assert code(ask(server, "GET", path, headers=headers)) == (403, "forbidden")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_turned_away(server: ControlServer) -> None:
    # socket-other-user: even where the file's mode would let him in
    server.socket.chmod(0o666)
    server.socket.parent.chmod(0o755)
    server.socket.parent.parent.chmod(0o755)
    program = (
        "import os, socket, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'GET /v1/tasks HTTP/1.1\\r\\nHost: harnessd\\r\\nConnection: close\\r\\n\\r\\n');"
        "sys.stdout.buffer.write(s.makefile('rb').read())"
    )
    said = subprocess.run([sys.executable, "-c", program, server.socket], capture_output=True, check=True).stdout
    assert said.startswith(b"HTTP/1.1 403 ")
    assert b"tasks" not in said
    events = server.do(server.store.events())
    assert [event.type for event in events] == ["access_refused"]
    assert events[0].data["who"] in ("nobody", "uid:65534")


def test_the_caller_is_written_down(server: ControlServer) -> None:
    task = server.submit()
    ask(server, "POST", f"/v1/tasks/{task}/pause", {})
    who = server.do(server.store.events(task=task))[-1].data["by"]
    assert who == pwd.getpwuid(os.geteuid()).pw_name


# --- tasks and verbs --------------------------------------------------------------------------------------------------


def test_a_task_is_found_by_a_unique_prefix(server: ControlServer) -> None:
    first, second = server.submit(), server.submit("Other")
    common = os.path.commonprefix([first, second])  # noqa: RUF071 - ids, not paths
    assert ask(server, "GET", f"/v1/tasks/{first}")[1]["task"] == first
    assert code(ask(server, "GET", f"/v1/tasks/{common}")) == (409, "ambiguous")
    assert code(ask(server, "GET", "/v1/tasks/zzzz")) == (404, "not_found")
    assert code(ask(server, "GET", "/v1/tasks/..%2f")) == (404, "not_found")


def test_the_list_is_filtered(server: ControlServer) -> None:
    web, data = (
        server.submit(labels={"team": "web"}),
        server.submit("Load", labels={"team": "data"}, policies={"retry": "strict"}),
    )
    server.do(server.store.apply(web, Verb.CANCEL, time.time(), "me"))

    def ids(query: str) -> list[str]:
        return [task["task"] for task in ask(server, "GET", f"/v1/tasks?{query}")[1]["tasks"]]

    assert ids("") == [data, web]
    assert ids("state=stopped") == [web]
    assert ids("reason=aborted") == [web]
    assert ids("label=team=data") == [data]
    assert ids("policy=retry=strict") == [data]
    assert ids(f"id={web}&id={data}") == [web, data]
    assert ids("until=1") == []
    assert ids("limit=1") == [data]
    for wrong in ("state=gone", "label=team", "since=yesterday", "limit=-1", "reason=x"):
        assert code(ask(server, "GET", f"/v1/tasks?{wrong}")) == (422, "invalid")


def test_verbs_on_a_task_without_a_worker(server: ControlServer) -> None:
    task = server.submit()

    def verb(name: str, **body: Any) -> tuple[int, Any]:
        return ask(server, "POST", f"/v1/tasks/{task}/{name}", body)

    assert verb("pause")[1]["state"] == "paused"
    assert verb("pause")[1]["already"] is True
    assert verb("resume")[1]["state"] == "queued"
    assert code(verb("retry")) == (409, "refused")
    assert verb("cancel")[1]["reason"] == "aborted"
    assert verb("cancel")[1]["already"] is True
    assert code(verb("pause")) == (409, "refused")
    assert code(verb("send", text="hello")) == (409, "refused")
    assert verb("resume", say="use the new API")[1]["state"] == "queued"
    assert [one.text for one in server.do(server.store.history(task)).messages] == ["use the new API"]
    assert code(verb("fly")) == (404, "not_found")
    assert code(verb("pause", nwo=True)) == (422, "invalid")
    assert code(verb("cancel", budget={"tool_calls": 1})) == (422, "invalid")


def test_verbs_on_a_running_task_reach_its_worker(server: ControlServer) -> None:
    task = server.submit()
    server.run(task)
    ask(server, "POST", f"/v1/tasks/{task}/send", {"text": "hello"})
    ask(server, "POST", f"/v1/tasks/{task}/set", {"budget": {"tool_calls": "+60"}})
    ask(server, "POST", f"/v1/tasks/{task}/pause", {})
    _, again = ask(server, "POST", f"/v1/tasks/{task}/pause", {})
    assert again["already"] is True
    ask(server, "POST", f"/v1/tasks/{task}/pause", {"now": True})
    ask(server, "POST", f"/v1/tasks/{task}/resume", {})
    assert ask(server, "GET", f"/v1/tasks/{task}")[1]["pause_asked"] is False
    ask(server, "POST", f"/v1/tasks/{task}/cancel", {})
    told = [what for _, what in server.daemon.told]
    assert told == ["message", "policies", "pause", "pause_now", "cancel"]
    assert ask(server, "GET", f"/v1/tasks/{task}")[1]["cancel_asked"] is True


def test_set_adds_to_the_limit_of_today(server: ControlServer) -> None:
    # A4: `--budget tool_calls=+60`
    task = server.submit()
    path = f"/v1/tasks/{task}/set"
    _, changed = ask(server, "POST", path, {"budget": {"tool_calls": "+60"}})
    assert changed["changes"]["budget"]["tool_calls"] == 150
    _, changed = ask(server, "POST", path, {"budget": {"tool_calls": "+60", "wall_time": "5h"}, "priority": 3})
    assert changed["changes"]["budget"] == {"tool_calls": 210, "wall_time": 18000}
    shown = ask(server, "GET", f"/v1/tasks/{task}")[1]
    assert shown["priority"] == 3
    assert {row["budget"]: row["limit"] for row in shown["budgets"]}["tool_calls"] == 210
    assert code(ask(server, "POST", path, {})) == (422, "invalid")
    assert code(ask(server, "POST", path, {"model": "primry"})) == (404, "not_found")
    assert code(ask(server, "POST", path, {"budget": {"age": "+1h"}})) == (422, "invalid")


def test_resume_is_refused_where_it_would_stop_again_at_once(server: ControlServer) -> None:
    # C16
    task = server.submit(budget={"tool_calls": 0})
    server.end(task, Verb.STOP, reason=StopReason.BUDGET_EXHAUSTED, sentence="Out of calls.")
    status, refused = ask(server, "POST", f"/v1/tasks/{task}/resume", {})
    assert (status, refused["error"]["code"]) == (409, "refused")
    assert "tool_calls" in refused["error"]["message"]
    assert f"harnessctl resume {task} --budget tool_calls=+" in refused["error"]["hint"]
    assert ask(server, "POST", f"/v1/tasks/{task}/resume", {"budget": {"tool_calls": "+30"}})[1]["state"] == "queued"


def test_a_dry_verb_answers_as_the_real_one_would(server: ControlServer) -> None:
    task = server.submit()
    path = f"/v1/tasks/{task}"
    assert ask(server, "POST", f"{path}/cancel?dry_run=1", {})[1]["dry_run"] is True
    assert ask(server, "GET", path)[1]["state"] == "queued"
    assert code(ask(server, "POST", f"{path}/retry?dry_run=1", {})) == (409, "refused")


# --- session, inbox ---------------------------------------------------------------------------------------------------


def talk(server: ControlServer, task: str) -> None:
    lease = server.run(task)
    reply = Message("assistant", (TextBlock("I look."), ToolUseBlock("c1", "bash", {"command": "make"})))
    call = Effect("e1", "tool", "n2", "c1", "tool/bash", EffectClass.REVERSIBLE, EffectState.INTENT, arguments={})
    server.record(
        lease,
        AppendNode(Node("n1", None, NodeKind.USER, user_payload("Port the importer"), time.time())),
        AppendNode(Node("n2", "n1", NodeKind.ASSISTANT, assistant_payload(reply, served_by="m"), time.time())),
        PlanEffect(call),
    )
    server.record(
        lease,
        AskPerson(
            "q1", "outcome", "n2", "c1", "Was it paid?", ("done", "not-done", "stop"), data={"class": "outcome_unknown"}
        ),
        ChangeTask(Verb.ASK, why="Was it paid?", waits_for="answer"),
    )


def test_the_session_is_shown(server: ControlServer) -> None:
    task = server.submit()
    talk(server, task)
    _, shown = ask(server, "GET", f"/v1/tasks/{task}/nodes")
    assert shown["pointer"] == "n2"
    assert [(node["node"], node["parent"], node["kind"]) for node in shown["nodes"]] == [
        ("n1", None, "user"),
        ("n2", "n1", "assistant"),
    ]
    assert shown["nodes"][1]["calls"] == [{"id": "c1", "tool": "bash", "arguments": {"command": "make"}}]
    assert ask(server, "GET", f"/v1/tasks/{task}/nodes/n2")[1]["payload"]["facts"] == {"served_by": "m"}
    assert code(ask(server, "GET", f"/v1/tasks/{task}/nodes/n9")) == (404, "not_found")
    assert ask(server, "GET", f"/v1/tasks/{task}/effects")[1]["effects"][0]["state"] == "intent"
    assert ask(server, "GET", f"/v1/tasks/{task}/decisions")[1]["decisions"] == []


def test_a_person_answers(server: ControlServer) -> None:
    task = server.submit(labels={"team": "web"})
    talk(server, task)
    _, inbox = ask(server, "GET", "/v1/inbox?label=team=web&class=outcome_unknown")
    assert [(row["id"], row["task"], row["kind"]) for row in inbox["questions"]] == [("q1", task, "outcome")]
    assert ask(server, "GET", "/v1/inbox?label=team=data")[1] == {"questions": []}
    assert ask(server, "GET", f"/v1/tasks/{task}")[1]["questions"][0]["choices"] == ["done", "not-done", "stop"]
    assert code(ask(server, "POST", "/v1/inbox/q1", {"choice": "maybe"})) == (422, "invalid")
    assert code(ask(server, "POST", "/v1/inbox/q9", {"choice": "done"})) == (404, "not_found")
    assert ask(server, "POST", "/v1/inbox/q1?dry_run=1", {"choice": "done"})[1]["state"] == "waiting"
    _, answered = ask(server, "POST", f"/v1/inbox/{task}/q1", {"choice": "done", "say": "seen"})
    assert answered["state"] == "queued"
    assert server.daemon.woken == 1
    assert ask(server, "GET", "/v1/inbox")[1] == {"questions": []}


def test_status_counts(server: ControlServer) -> None:
    done, running = server.submit(), server.submit("Other")
    server.end(done)
    server.run(running)
    server.daemon.doing[running] = {"doing": "bash: make all", "phase": "tools", "since": time.time(), "life_s": 1.0}
    _, found = ask(server, "GET", "/v1/status")
    assert found["tasks"]["running"] == 1
    assert found["last_day"] == {"completed": 1}
    assert found["running_tasks"][0]["doing"] == "bash: make all"
    assert found["policies"]["revision"] == 7


# --- events -----------------------------------------------------------------------------------------------------------


def frames(server: ControlServer, path: str) -> Iterator[tuple[str, int, Any]]:
    with closing(Unix(server.socket)) as connection:
        connection.request("GET", path)
        with connection.getresponse() as response:
            yield from parsed(response)


def parsed(response: http.client.HTTPResponse) -> Iterator[tuple[str, int, Any]]:
    assert response.getheader("content-type", "").startswith("text/event-stream")
    seq, name = 0, ""
    for raw in response:
        field, _, value = raw.decode().rstrip("\n").partition(": ")
        if field == "id":
            seq = int(value)
        elif field == "event":
            name = value
        elif field == "data":
            yield name, seq, json.loads(value)


def test_events_resume_behind_a_number(server: ControlServer) -> None:
    task = server.submit()
    server.submit("Other")
    server.end(task)
    seen = list(frames(server, f"/v1/events?task={task}"))
    assert [name for name, _, _ in seen] == ["submitted", "started", "task_completed"]
    assert all(seq == data["seq"] and data["task"] == task for _, seq, data in seen)
    rest = list(frames(server, f"/v1/events?task={task}&after={seen[0][1]}"))
    assert rest == seen[1:]
    with closing(Unix(server.socket)) as connection:
        connection.request("GET", "/v1/events", headers={"Last-Event-ID": str(seen[-1][1])})
        assert connection.getresponse().read() == b": harnessd\n\n"


def test_a_stream_follows_and_ends_with_the_task(server: ControlServer) -> None:
    task = server.submit()
    lease = server.run(task)
    stream = frames(server, f"/v1/events?task={task}&follow=1&until_end=1")
    assert [next(stream)[0] for _ in range(2)] == ["submitted", "started"]
    server.record(lease, RecordEvent("nudge", {"text": "two\nlines\r\ndata: forged"}))
    name, _, data = next(stream)
    # log-injection-newline: a line break in a field forges no frame
    assert (name, data["data"]["text"]) == ("nudge", "two\nlines\r\ndata: forged")
    server.record(lease, ChangeTask(Verb.COMPLETE, sentence="Done."))
    assert [name for name, _, _ in stream] == ["task_completed", "end"]


def test_a_quiet_stream_beats(server: ControlServer) -> None:
    with closing(Unix(server.socket)) as connection:
        connection.request("GET", "/v1/events?follow=1&heartbeat=1")
        with connection.getresponse() as response:
            assert [response.readline() for _ in range(3)] == [b": harnessd\n", b"\n", b": still here\n"]


def test_streams_say_goodbye_when_the_daemon_stops() -> None:
    with control_server() as server:
        stream = frames(server, "/v1/events?follow=1")
        server.submit()
        assert next(stream)[0] == "submitted"
        began = time.monotonic()
        server.loop.call_soon_threadsafe(server.stop.set)
        assert [name for name, _, _ in stream] == ["bye"]
        assert time.monotonic() - began < 1.5
    assert not server.socket.exists()


# --- the document -----------------------------------------------------------------------------------------------------


def test_the_openapi_document_is_what_the_routes_do(server: ControlServer) -> None:
    status, document = ask(server, "GET", "/v1/openapi.json")
    assert status == 200
    task = server.submit()
    talk(server, task)
    places = {"task": task, "node": "n1", "verb": "send", "question": "q1"}
    bodies = {"submit": draft(server), "verb": {"text": "hello"}, "answer": {"choice": "done"}}
    asked = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if operation["operationId"] == "events":
                continue
            url = path.format(**places)
            status, answer = ask(server, method.upper(), url, bodies.get(operation["operationId"]))
            described = operation["responses"][str(status)]["content"]["application/json"]["schema"]
            schema = {**described, "components": document["components"]}
            assert status < 300, (url, answer)
            assert jsonschema_rs.is_valid(schema, answer), (url, answer)
            asked += 1
    assert asked == len([row for operations in document["paths"].values() for row in operations]) - 1


def test_errors_have_the_documented_form(server: ControlServer) -> None:
    document = ask(server, "GET", "/v1/openapi.json")[1]
    schema = document["components"]["schemas"]["Error"]
    for path in ("/v1/tasks/zz", "/nowhere", "/v1/tasks?state=x"):
        status, answer = ask(server, "GET", path)
        assert status in (404, 422)
        assert jsonschema_rs.is_valid(schema, answer)
