"""A session moved between daemons: what was done is not done again, what is unknown is asked, secrets stay behind."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.effect import effect_key
from harnessd.domain.messages import Message, ToolUseBlock
from harnessd.domain.session import assistant_payload, result_payload, user_payload
from tests.running import Running, running, settings
from tests.session_files import effect, node, sealed
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance
KEY = "sk-test-4711-CANARY-export"


def step(number: int, command: str) -> dict[str, Any]:
    return {"when": {"results": number}, "say": "Working.", "call": {"tool": "bash", "args": {"command": command}}}


def until_there(daemon: Running, path: Path) -> None:
    until = time.monotonic() + 40
    while not path.exists():
        assert time.monotonic() < until, daemon.log[-2000:]
        time.sleep(0.02)


@pytest.mark.parametrize("protocol", ["anthropic", "openai-chat", "openai-responses"])
def test_a_session_goes_on_at_another_daemon(protocol: str, tmp_path: Path) -> None:
    # R5.1, R6.1, R4.7: exported while it runs, and taken in by a daemon that never saw it
    script = {"m": {"turns": [step(0, "echo one"), step(1, "touch begun; sleep 600"), {"say": "All done."}]}}
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with running_simulator(script) as service, running(here) as first, running(there) as second:
        first.configure(settings(here, service.url, {"m": protocol}))
        second.configure(settings(there, service.url, {"m": protocol}))
        client, other = first.start(), second.start()
        space = first.workspace("a")
        task = first.submit(client, prompt="Go.", agent="m", workspace=str(space))
        until_there(first, space / "begun")
        file = tmp_path / "session.jsonl"
        assert first.ctl("export", task, "-o", str(file)).returncode == 0
        assert client.get(f"/v1/tasks/{task}")["state"] == "running"
        assert client.post(f"/v1/tasks/{task}/cancel", {})
        done = second.ctl("import", str(file), "--workspace", str(second.workspace("b")))
        assert done.returncode == 0, done.stderr
        new = done.stdout.split()[0]
        assert other.get(f"/v1/tasks/{new}")["state"] == "paused"
        assert second.ctl("resume", new).returncode == 0
        row = second.until_ended(other, new)
        assert row["state"] == "completed", (row, second.log[-3000:])
        asked = service.requests_now(shown=True)["last"]
        assert [entry["status"] for entry in asked if entry["status"] >= 400] == []
        assert "outcome unknown" in json.dumps(asked[-1])
        checked = second.ctl("export", new)
        assert json.loads(checked.stdout.splitlines()[-1])["type"] == "end"


def test_an_act_whose_outcome_is_unknown_is_asked_and_never_repeated(tmp_path: Path) -> None:
    # R3.13: no rule says what the tool does, so it counts as irreversible
    call = {"when": {"results": 0}, "say": "I pay.", "call": {"tool": "pay", "args": {"to": "ACME"}}}
    script = {"m": {"turns": [call, {"say": "All done."}]}}
    with running_simulator(script) as service, running(tmp_path) as daemon:
        log = tmp_path / "paid.log"
        pays = ["/bin/sh", "-c", f"echo paid >> {log}; sleep 600", "pay", "{to}"]
        schema = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
        tools = {"pay": {"command": pays, "about": "Pays.", "schema": schema}}
        document = settings(tmp_path, service.url, {"m": "anthropic"}, tools=tools)
        document["agents"]["m"]["tools"] = ["bash", "pay"]
        daemon.configure(document)
        client = daemon.start()
        space = daemon.workspace("a")
        task = daemon.submit(client, prompt="Pay.", agent="m", workspace=str(space))
        wants = daemon.until(client, task, ("waiting",))
        assert daemon.ctl("approve", wants["questions"][0]["id"]).returncode == 0
        until_there(daemon, log)
        file = tmp_path / "session.jsonl"
        assert daemon.ctl("export", task, "-o", str(file)).returncode == 0
        client.post(f"/v1/tasks/{task}/cancel", {})
        daemon.until_ended(client, task)
        row = daemon.ctl_json("import", str(file))
        (act,) = row["unknown"]
        before = {one["effect"]: one for one in client.get(f"/v1/tasks/{task}/effects")["effects"]}
        assert daemon.ctl("resume", row["task"]).returncode == 0
        waits = daemon.until(client, row["task"], ("waiting", "stopped", "completed"))
        assert waits["state"] == "waiting", waits
        after = {one["effect"]: one for one in client.get(f"/v1/tasks/{row['task']}/effects")["effects"]}
        assert after[act]["key"] == before[act]["key"]
        (question,) = waits["questions"]
        assert daemon.ctl("answer", question["id"], "done").returncode == 0
        assert daemon.until_ended(client, row["task"])["state"] == "completed"
        assert log.read_text() == "paid\n"


def test_an_act_that_was_done_is_not_done_again_by_the_new_task(tmp_path: Path) -> None:
    # R3.13: the pointer stands before the act, as after a rollback; the model plans it once more.
    call = {"when": {"results": 0}, "say": "I pay.", "call": {"tool": "pay", "args": {"to": "ACME"}}}
    script = {"m": {"turns": [call, {"say": "All done."}]}}
    with running_simulator(script) as service, running(tmp_path) as daemon:
        log = tmp_path / "paid.log"
        schema = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
        pays = ["/bin/sh", "-c", f"echo paid >> {log}", "pay", "{to}"]
        document = settings(tmp_path, service.url, {"m": "anthropic"})
        document["tools"] = {"pay": {"command": pays, "about": "Pays.", "schema": schema}}
        document["agents"]["m"]["tools"] = ["bash", "pay"]
        daemon.configure(document)
        client = daemon.start()
        reply = Message("assistant", (ToolUseBlock("c1", "pay", {"to": "ACME"}),))
        rows = [
            node(1, "user", user_payload("Pay.")),
            node(2, "assistant", assistant_payload(reply)),
            node(3, "tool_result", result_payload("c1", "receipt 4711", is_error=False, tool="pay", state="done")),
            effect(
                1,
                name="tool/pay",
                key=effect_key("abc123", "tool/pay", {"to": "ACME"}, 1),
                arguments={"to": "ACME"},
                result={"text": "receipt 4711"},
            ),
        ]
        space = str(daemon.workspace("a"))
        file = tmp_path / "session.jsonl"
        draft = {"prompt": "Pay.", "agent": "m", "workspace": space}
        file.write_bytes(sealed(space, rows, pointer="n1", draft=draft))
        row = daemon.ctl_json("import", str(file))
        assert daemon.ctl("resume", row["task"]).returncode == 0
        wants = daemon.until(client, row["task"], ("waiting", "stopped", "completed"))
        if wants["state"] == "waiting":  # undeclared, so a person allows it first
            (question,) = wants["questions"]
            assert question["kind"] == "approval", question
            assert daemon.ctl("approve", question["id"]).returncode == 0
        ended = daemon.until_ended(client, row["task"])
        assert ended["state"] == "completed", ended
        assert not log.exists()
        nodes = client.get(f"/v1/tasks/{row['task']}/nodes")["nodes"]
        assert "receipt 4711" in next(one["text"] for one in nodes[3:] if one["kind"] == "tool_result")


def test_no_secret_leaves_with_a_session(tmp_path: Path) -> None:
    # Security: secrets-in-logs-db-errors
    script = {"m": {"turns": [step(0, f"echo the key is {KEY}; echo {KEY} >&2; false"), {"say": "All done."}]}}
    with running_simulator(script) as service, running(tmp_path) as daemon:
        document = settings(tmp_path, service.url, {"m": "anthropic"})
        document["models"]["m"]["key"] = {"env": "MY_KEY"}
        daemon.configure(document)
        client = daemon.start(MY_KEY=KEY)
        space = daemon.workspace("a")
        (space / "key").write_text(KEY)
        script["m"]["turns"][0] = step(0, "cat key; cat key >&2; false")
        service.control_now(scripts={"models": script})
        task = daemon.submit(client, prompt="Look.", agent="m", workspace=str(space))
        assert daemon.until_ended(client, task)["state"] == "completed"
        for form in ((), ("--html",)):
            shown = daemon.ctl("export", task, *form).stdout
            assert "[secret]" in shown
            assert KEY not in shown
            assert KEY[8:] not in shown


def test_a_transcript_of_another_agent_goes_on(tmp_path: Path) -> None:
    # R4.7
    script = {"m": {"turns": [{"when": {"matches": "a.py"}, "say": "I saw a.py."}, {"say": "Lost."}]}}
    talk = [
        {"role": "user", "content": "What is here?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "ls_it", "arguments": '{"p":1'}}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "a.py"},
    ]
    for protocol in ("anthropic", "openai-responses"):
        place = tmp_path / protocol
        place.mkdir()
        with running_simulator(script) as service, running(place) as daemon:
            daemon.configure(settings(place, service.url, {"m": protocol}))
            client = daemon.start()
            file = place / "talk.json"
            file.write_text(json.dumps(talk))
            row = daemon.ctl_json("import", str(file), "--workspace", str(daemon.workspace("a")), "--agent", "m")
            assert daemon.ctl("resume", row["task"]).returncode == 0
            ended = daemon.until_ended(client, row["task"])
            assert ended["state"] == "completed", (ended, daemon.log[-2000:])
            statuses = [entry["status"] for entry in service.requests_now()["last"]]
            assert statuses
            assert [status for status in statuses if status >= 400] == []
