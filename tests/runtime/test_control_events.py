"""Control API: the stream of events, and the document that describes all routes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import jsonschema_rs
import pytest

from harnessd.domain.durable.revision import RevisionDraft, RevisionState
from harnessd.domain.record import ChangeTask, RecordEvent
from harnessd.domain.task import Verb
from tests.control_api import Unix, ask, draft, frames, talk
from tests.control_server import ControlServer, control_server


@pytest.fixture
def server() -> Iterator[ControlServer]:
    with control_server() as running:
        yield running


# --- events -----------------------------------------------------------------------------------------------------------


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
    kept = RevisionDraft("0" * 64, RevisionState.IN_FORCE, "files", "retry.yaml", "0.1.0", content={"files": {}})
    number = server.do(server.store.add_revision(kept, time.time()))
    places = {"task": task, "node": "n1", "verb": "send", "question": "q1", "number": number}
    bodies: dict[str, Any] = {"submit": draft(server), "verb": {"text": "hello"}, "answer": {"choice": "done"}}
    bodies |= {"reload_policies": {}, "revert_policies": {"revision": 7}, "change_breaker": {"do": "reset"}}
    bodies |= {"check_model": {}, "check_tool": {}, "test_channel": {}, "rollback": {"to": "n1"}}
    bodies |= {"back_up": {"file": str(server.workspace / "b")}, "collect": {}, "drain": {}}
    kept_by_others = {"rollback", "checkpoints", "diff"}  # this server keeps no checkpoints, and says so
    kept_by_others |= {"metrics", "back_up", "collect", "doctor"}  # nor does it count, or look after itself
    kept_by_others |= {"drain", "drain_state"}
    places |= {"name": "model/primary", "alias": "primary", "tool": "bash", "channel": "log"}
    asked, elsewhere = 0, {"events", "export", "bring_in"}  # their bodies are no single document
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if operation["operationId"] in elsewhere:
                continue
            url = path.format(**places)
            status, answer = ask(server, method.upper(), url, bodies.get(operation["operationId"]))
            described = operation["responses"][str(status)]["content"]["application/json"]["schema"]
            schema = {**described, "components": document["components"]}
            assert (status < 300) != (operation["operationId"] in kept_by_others), (url, answer)
            assert jsonschema_rs.is_valid(schema, answer), (url, answer)
            asked += 1
    assert asked == len([row for operations in document["paths"].values() for row in operations]) - len(elsewhere)


def test_errors_have_the_documented_form(server: ControlServer) -> None:
    document = ask(server, "GET", "/v1/openapi.json")[1]
    schema = document["components"]["schemas"]["Error"]
    for path in ("/v1/tasks/zz", "/nowhere", "/v1/tasks?state=x"):
        status, answer = ask(server, "GET", path)
        assert status in (404, 422)
        assert jsonschema_rs.is_valid(schema, answer)
