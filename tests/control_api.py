"""A plain HTTP client for tests of the control API, and tasks in states worth looking at."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.messages import Message, TextBlock, ToolUseBlock
from harnessd.domain.record import AppendNode, AskPerson, ChangeTask, PlanEffect
from harnessd.domain.session import Node, NodeKind, assistant_payload, user_payload
from harnessd.domain.task import Verb
from tests.control_server import ControlServer


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
