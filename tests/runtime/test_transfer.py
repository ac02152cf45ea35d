"""Export and import over the control API: the same bytes out again, nothing that is not whole in, nothing half in."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.messages import Message, TextBlock, ToolUseBlock
from harnessd.domain.record import AppendNode, ChangeTask, MovePointer, PlanEffect, SaveCounters, SettleEffect
from harnessd.domain.session import Node, NodeKind, assistant_payload, result_payload, user_payload
from harnessd.domain.task import Counters, TaskState, Verb
from harnessd.domain.transfer import Brought
from harnessd.runtime.control.transfer.reading import DEPTH_MAX, LINE_MAX
from harnessd.runtime.control.transfer.writing import session_lines
from tests.cli.situations import asking, stopped_by_the_service, with_branches
from tests.control_api import Unix, ask, code
from tests.control_server import ControlServer, control_server
from tests.session_files import AT, changed, decision, effect, node, sealed, talk


@pytest.fixture
def server() -> Iterator[ControlServer]:
    with control_server() as running:
        yield running


def exported(server: ControlServer, task: str) -> bytes:
    connection = Unix(server.socket)
    try:
        connection.request("GET", f"/v1/tasks/{task}/export")
        with connection.getresponse() as response:
            assert response.status == 200
            assert response.getheader("content-type") == "application/jsonl"
            return response.read()
    finally:
        connection.close()


def lines(data: bytes, type_: str) -> list[bytes]:
    return [line for line in data.splitlines() if json.loads(line)["type"] == type_]


def imported(server: ControlServer, data: bytes, query: str = "") -> dict[str, Any]:
    status, row = ask(server, "POST", f"/v1/import{query}", data)
    assert status == 201, row
    found: dict[str, Any] = row
    return found


def unnamed(data: bytes, type_: str) -> list[dict[str, Any]]:
    """The lines of a type without what must differ in another task."""
    return [{**json.loads(line), "task": None} for line in lines(data, type_)]


# --- out --------------------------------------------------------------------------------------------------------------


def test_the_last_line_proves_the_others(server: ControlServer) -> None:
    data = exported(server, with_branches(server))
    *before, last = data.splitlines(keepends=True)
    end = json.loads(last)
    assert end["sha256"] == sha256(b"".join(before)).hexdigest()
    assert sum(end["counts"].values()) == len(before)
    first = json.loads(before[0])
    assert (first["format"], first["version"]) == ("harnessd-session", 1)
    assert "not in here" in first["contents"]


@pytest.mark.parametrize("situation", [with_branches, stopped_by_the_service, asking])
def test_a_session_comes_back_as_it_went(situation: Callable[[ControlServer], str], server: ControlServer) -> None:
    # R5.1
    task = situation(server)
    data = exported(server, task)
    row = imported(server, data)
    assert (row["state"], row["imported"], row["labels"]["imported"]) == ("paused", task, task)
    again = exported(server, row["task"])
    assert lines(again, "node") == lines(data, "node")  # byte for byte, hashes included
    assert unnamed(again, "effect") == unnamed(data, "effect")
    assert unnamed(again, "decision") == unnamed(data, "decision")
    was, is_ = json.loads(lines(data, "task")[0]), json.loads(lines(again, "task")[0])
    for name in ("pointer", "nodes", "chain", "system", "keys_of"):
        assert is_[name] == was[name], name
    assert is_["draft"] | {"labels": 0} == was["draft"] | {"labels": 0}
    for name in ("turns", "tool_calls", "tokens", "cost_usd", "warned"):
        assert is_["counters"][name] == was["counters"][name], name
    assert server.do(server.store.verify(row["task"])) is None
    third = exported(server, imported(server, again)["task"])
    assert lines(third, "node") == lines(data, "node")
    assert json.loads(lines(third, "task")[0])["keys_of"] == task  # of the first, over any number of moves


def test_a_dry_run_makes_nothing(server: ControlServer) -> None:
    data = sealed(str(server.workspace))
    status, row = ask(server, "POST", "/v1/import?dry_run=1", data)
    assert (status, row["dry_run"], row["nodes"], row["effects"]) == (200, True, 3, 1)
    assert ask(server, "GET", "/v1/tasks")[1] == {"tasks": []}


def test_a_running_task_gives_one_moment(server: ControlServer) -> None:
    task = server.submit()
    lease = server.run(task)
    now = time.time()
    reply = Message("assistant", (TextBlock("I pay."), ToolUseBlock("c1", "pay", {"to": "ACME"})))
    act = Effect("e1", "tool", "n2", "c1", "tool/pay", EffectClass.IRREVERSIBLE, EffectState.INTENT, key="k" * 32)
    server.record(
        lease,
        AppendNode(Node("n1", None, NodeKind.USER, user_payload("Pay"), now)),
        AppendNode(Node("n2", "n1", NodeKind.ASSISTANT, assistant_payload(reply), now)),
        PlanEffect(act),
        SaveCounters(Counters(nodes=2, effects=1)),
    )

    async def outrun() -> bytes:
        parts = session_lines(server.store, task, now)
        got = [await anext(parts)]  # the moment is fixed; now the task goes on
        result = Node("n3", "n2", NodeKind.TOOL_RESULT, result_payload("c1", "paid", is_error=False), now)
        records = (SettleEffect("e1", EffectState.DONE, {"text": "paid"}), AppendNode(result))
        await server.store.record(lease, records, now + 1, 7)
        await server.store.record(lease, [PlanEffect(replace(act, id="e2", call_id="c2"))], now + 2, 7)
        return b"".join([*got, *[part async for part in parts]])

    data = server.do(outrun())
    assert [json.loads(line)["id"] for line in lines(data, "node")] == ["n1", "n2"]
    (stored,) = [json.loads(line) for line in lines(data, "effect")]
    assert (stored["state"], stored["result"]) == ("intent", None)
    row = imported(server, data)
    assert row["unknown"] == ["e1"]
    assert ask(server, "GET", f"/v1/tasks/{task}")[1]["state"] == "running"


def test_a_long_session_leaves_in_bounded_memory(server: ControlServer) -> None:
    # 10,000 nodes of 1 KB are 10 MB; a page of them is what memory holds.
    rows = [node(number, "user", user_payload(f"{number} " + "x" * 1000)) for number in range(1, 10_001)]
    task = imported(server, sealed(str(server.workspace), rows))["task"]

    async def measured() -> tuple[int, int]:
        tracemalloc.start()
        try:
            size = sum([len(part) async for part in session_lines(server.store, task, AT)])
            return size, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    size, peak = asyncio.run_coroutine_threadsafe(measured(), server.loop).result(120)
    assert size > 10_000_000
    assert peak < 2_000_000, peak


# --- in ---------------------------------------------------------------------------------------------------------------


def test_who_goes_on_and_where_can_be_said(server: ControlServer, tmp_path: Path) -> None:
    data = sealed("/not/here/any/more")
    assert code(ask(server, "POST", "/v1/import", data)) == (404, "not_found")
    row = imported(server, data, f"?agent=crawler&workspace={tmp_path}")
    assert (row["agent"], row["workspace"]) == ("crawler", str(tmp_path))
    system = json.loads(lines(exported(server, row["task"]), "task")[0])["system"]
    assert system is None  # it was the other agent's
    assert code(ask(server, "POST", f"/v1/import?agent=nobody&workspace={tmp_path}", data)) == (404, "not_found")
    place = server.workspace.parent / "state"
    assert code(ask(server, "POST", f"/v1/import?workspace={place}", data)) == (409, "refused")


def test_an_imported_session_is_nobodys_until_a_person_resumes_it(server: ControlServer) -> None:
    row = imported(server, sealed(str(server.workspace)))
    assert server.do(server.store.claim("a1", 10, time.time(), 20.0)) == ()
    status, gone_on = ask(server, "POST", f"/v1/tasks/{row['task']}/resume", {})
    assert (status, gone_on["state"]) == (200, "queued")
    (task,) = server.do(server.store.claim("a1", 10, time.time(), 20.0))
    history = server.do(server.store.history(task.id))
    assert [one.id for one in history.path] == ["n1", "n2", "n3"]
    assert (task.counters.nodes, task.counters.effects, task.system) == (3, 1, "You are careful.")
    assert history.effects[0].state is EffectState.DONE


def test_nothing_half_comes_in(server: ControlServer) -> None:
    # An effect that is there twice reaches the store only past the reader: the unit fails as one.
    good = sealed(str(server.workspace))
    task = imported(server, good)["task"]

    async def twice() -> BaseException | None:
        outline = await server.store.outline(task)
        nodes = await server.store.stored_nodes(outline, 0, 10)
        (one,) = await server.store.stored_effects(outline, 0, 10)
        brought = Brought("x", outline.task.draft, nodes, [one[1], one[1]], [], "n3", Counters(), None)
        try:
            await server.store.bring_in(brought, time.time(), "me")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at below
            return error
        return None

    assert server.do(twice()) is not None
    assert [row["task"] for row in ask(server, "GET", "/v1/tasks")[1]["tasks"]] == [task]


def first(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new, 1)


def without_end(data: bytes) -> bytes:
    return changed(data, lambda rows: rows[:-1])


def bad_parent(*parents: int) -> Callable[[str], bytes]:
    def make(place: str) -> bytes:
        rows = talk()
        for row, parent in zip(rows, parents, strict=True):
            row["parent"] = f"n{parent}" if parent else None
        return sealed(place, rows)

    return make


def with_node(**fields: Any) -> Callable[[str], bytes]:
    return lambda place: sealed(place, [*talk(), {**node(4, "user", user_payload("More")), **fields}])


def with_blocks(*blocks: Any) -> Callable[[str], bytes]:
    return with_node(payload={"blocks": list(blocks)})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def resealed(change: Callable[[bytes], bytes]) -> Callable[[str], bytes]:
    """Changed by somebody who knows how to seal the file."""

    def make(place: str) -> bytes:
        *before, last = change(sealed(place)).splitlines(keepends=True)
        end = json.loads(last) | {"sha256": sha256(b"".join(before)).hexdigest()}
        return b"".join(before) + json.dumps(end).encode() + b"\n"

    return make


HEAD = {"type": "header", "format": "harnessd-session", "version": 1}
HOSTILE: dict[str, tuple[Callable[[str], bytes], str]] = {
    "empty": (lambda _: b"", "empty"),
    "only a line break": (lambda _: b"\n", "not JSON"),
    "torn at a line": (lambda place: without_end(sealed(place)), "torn"),
    "torn in a line": (lambda place: sealed(place)[:-40], "torn"),
    "torn after one byte": (lambda place: sealed(place)[:1], "not JSON"),
    "wrong sum": (lambda place: first(sealed(place), b"Port the", b"Bort the"), "SHA-256"),
    "a changed node": (lambda place: first(sealed(place), b"I look.", b"I hack."), "does not fit the chain"),
    "a line taken out": (lambda place: changed(sealed(place), lambda rows: [*rows[:-2], rows[-1]]), "SHA-256"),
    "a line added": (lambda place: changed(sealed(place), lambda rows: [*rows[:-1], rows[-2], rows[-1]]), "SHA-256"),
    "counts of other lines": (resealed(lambda data: first(data, b'"node":3', b'"node":4')), "counts"),
    "behind the end": (lambda place: sealed(place) + b"{}\n", "behind the last line"),
    "two files in one": (lambda place: sealed(place) * 2, "behind the last line"),
    "newer format": (lambda place: sealed(place, head={**HEAD, "version": 2}), "newer harnessd"),
    "version is a text": (lambda place: sealed(place, head={**HEAD, "version": "1"}), "no version"),
    "other format": (lambda place: sealed(place, head={**HEAD, "format": "zip"}), "no exported session"),
    "no header": (lambda place: changed(sealed(place), lambda rows: rows[1:]), "no exported session"),
    "no task": (lambda place: changed(sealed(place), lambda rows: [rows[0], *rows[2:]]), "type 'node'"),
    "unknown type": (lambda place: sealed(place, [*talk(), {"type": "virus"}]), "type 'virus'"),
    "type is a list": (lambda place: sealed(place, [*talk(), {"type": "event"}]).replace(b'"event"', b"[]"), "type"),
    "not JSON": (lambda place: sealed(place).replace(b'{"type":"task"', b'{"type";"task"', 1), "not JSON"),
    "not an object": (lambda _: b"[1,2]\n", "no JSON object"),
    "not a number": (lambda _: b'{"type":NaN}\n', "not JSON"),
    "infinity": (lambda place: first(sealed(place), b'"attempt":1', b'"attempt":1e999'), "not JSON"),
    "a huge number": (lambda _: b'{"type":' + b"9" * 5000 + b"}\n", "not JSON"),
    "not UTF-8": (lambda place: first(sealed(place), b"I look.", b"\xff\xfe"), "not UTF-8"),
    "NUL": (lambda place: first(sealed(place), b"I look.", b"I\x00look."), "NUL"),
    "half a character": (lambda place: first(sealed(place), b"I look.", b"\\ud800"), "half of a character"),
    "a huge line": (lambda _: b'{"type":"header","x":"' + b"x" * LINE_MAX + b'"}\n', "longer than"),
    "a huge line without an end": (lambda _: b"x" * (LINE_MAX + 1), "longer than"),
    "nested": (with_blocks({"type": "opaque", "protocol": "x", "wire": {"a": nested(DEPTH_MAX)}}), "nested deeper"),
    "nested without end": (lambda _: b"[" * 100_000 + b"\n", "not JSON"),
    "own parent": (bad_parent(0, 2, 2), "its own parent"),
    "circle": (bad_parent(0, 3, 2), "circle"),
    "parent behind": (bad_parent(3, 1, 0), "stands before its parent"),
    "parent nowhere": (bad_parent(0, 1, 9), "not in the file"),
    "node twice": (with_node(id="n3"), "there twice"),
    "node without a number": (with_node(id="../n4"), "no id of a node"),
    "node of another kind": (with_node(kind="system"), "kind"),
    "node at no time": (lambda place: first(sealed(place), b'"at":1800000001.5', b'"at":"now"'), "at is no number"),
    "node with a hash of its own": (
        lambda place: first(sealed(place), b'.5,"chain":"', b'.5,"chain":"00'),
        "fit the chain",
    ),
    "no blocks": (with_node(payload={}), "no blocks"),
    "payload is a text": (lambda place: first(sealed(place), b'"payload":{', b'"payload":"x","y":{'), "no blocks"),
    "block of no type": (with_blocks({}), "block that this version does not know"),
    "block of another type": (with_blocks({"type": "video"}), "block that this version does not know"),
    "text is a number": (with_blocks({"type": "text", "text": 5}), "block that this version does not know"),
    "call without a name": (with_blocks({"type": "tool_use", "id": "c"}), "block that this version does not know"),
    "facts are a list": (with_node(payload={"blocks": [], "facts": []}), "facts"),
    "answer of a user": (with_node(kind="assistant", payload={"role": "user", "blocks": []}), "no assistant"),
    "requests are a text": (with_node(payload={"blocks": [], "facts": {"requests": "x"}}), "requests"),
    "pointer nowhere": (lambda place: sealed(place, pointer="n9"), "pointer"),
    "pointer is a number": (lambda place: sealed(place, pointer=9), "pointer"),
    "fewer nodes than written": (lambda place: sealed(place, nodes=4), "holds 3 nodes"),
    "effect twice": (lambda place: sealed(place, [*talk(), effect(1), effect(1)]), "e1 is there twice"),
    "effect of no class": (lambda place: sealed(place, [*talk(), effect(1, **{"class": "fun"})]), "fun"),
    "effect of no state": (lambda place: sealed(place, [*talk(), effect(1, state="doing")]), "doing"),
    "effect with a list": (lambda place: sealed(place, [*talk(), effect(1, arguments=[1])]), "arguments"),
    "effect with a long key": (lambda place: sealed(place, [*talk(), effect(1, key="k" * 999)]), "key"),
    "effect below zero": (lambda place: sealed(place, [*talk(), effect(1, attempt=-1)]), "attempt"),
    "decision without a rule": (lambda place: sealed(place, [*talk(), decision(rule=None)]), "rule"),
    "counters below zero": (lambda place: sealed(place, counters={"turns": -5}), "turns is no number"),
    "counters of text": (lambda place: sealed(place, counters={"tokens": "many"}), "tokens is no number"),
    "counters without end": (lambda place: sealed(place, counters={"cost_usd": 10**30}), "cost_usd is no number"),
    "no draft": (lambda place: sealed(place, draft=None), "draft is no object"),
    "no prompt": (lambda place: sealed(place, draft={"agent": "coder", "workspace": place}), "no prompt"),
    "unknown agent": (lambda place: sealed(place, draft={"prompt": "x", "agent": "a", "workspace": place}), "agent"),
    "keys of a path": (lambda place: sealed(place, keys_of="../../etc"), "no id of a task"),
    "task of another language": (lambda place: sealed(place, task="\n\x1b[31m"), "no id of a task"),
    "system is an object": (lambda place: sealed(place, system={}), "system prompt"),
    "CRLF": (lambda place: sealed(place).replace(b"\n", b"\r\n"), "SHA-256"),
}


def test_hostile_files_are_refused_in_a_sentence(server: ControlServer) -> None:
    for name, (make, wanted) in HOSTILE.items():
        status, document = ask(server, "POST", "/v1/import", make(str(server.workspace)))
        assert 400 <= status < 500, (name, status, document)
        message = document["error"]["message"]
        assert wanted in message, (name, message)
        assert len(message) < 300, name
        assert not any(ord(letter) < 32 for letter in message), (name, message)
    assert ask(server, "GET", "/v1/tasks")[1] == {"tasks": []}


def test_a_full_disk_takes_nothing_of_it() -> None:
    with control_server(pragmas=("PRAGMA max_page_count = 80",)) as server:
        rows = [node(number, "user", user_payload("x" * 4000)) for number in range(1, 200)]
        assert code(ask(server, "POST", "/v1/import", sealed(str(server.workspace), rows))) == (500, "storage_full")
        assert ask(server, "GET", "/v1/tasks")[1] == {"tasks": []}
        assert imported(server, sealed(str(server.workspace)))["nodes"] == 3


def test_an_export_of_nobody_is_told(server: ControlServer) -> None:
    assert code(ask(server, "GET", "/v1/tasks/zzzzzz/export")) == (404, "not_found")
    assert code(ask(server, "GET", "/v1/tasks/..%2F/export"))[0] == 404


def test_a_task_that_said_nothing_yet_moves_too(server: ControlServer) -> None:
    task = server.submit("Port the importer", priority=5, budget={"tool_calls": 7.0})
    row = imported(server, exported(server, task))
    assert (row["state"], row["node"], row["priority"], row["nodes"]) == (TaskState.PAUSED.value, None, 5, 0)


def test_a_branch_that_was_left_comes_along(server: ControlServer) -> None:
    task = server.submit()
    lease = server.run(task)
    now = time.time()
    said = [Node(f"n{n}", None if n == 1 else "n1", NodeKind.USER, user_payload(str(n)), now) for n in (1, 2, 3)]
    server.record(lease, AppendNode(said[0]), AppendNode(said[1]))
    server.record(lease, MovePointer("n2", "n1"), AppendNode(said[2]), ChangeTask(Verb.COMPLETE))
    row = imported(server, exported(server, task))
    nodes = ask(server, "GET", f"/v1/tasks/{row['task']}/nodes")[1]
    assert [(one["node"], one["parent"]) for one in nodes["nodes"]] == [("n1", None), ("n2", "n1"), ("n3", "n1")]
    assert nodes["pointer"] == "n3"
