"""Control API: what each route does, over a real Unix socket, with the real store behind it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.task import StopReason, Verb
from tests.control_api import ask, code, draft, talk
from tests.control_server import ControlServer, control_server


@pytest.fixture
def server() -> Iterator[ControlServer]:
    with control_server() as running:
        yield running


# --- submit -----------------------------------------------------------------------------------------------------------


def test_submit_is_durable_and_idempotent_by_key(server: ControlServer) -> None:
    # security/idempotency-key-forgery
    status, task = ask(server, "POST", "/v1/tasks", draft(server, key="nightly", labels={"team": "web"}))
    assert (status, task["state"], task["agent"]) == (201, "queued", "coder")
    assert server.daemon.woken == 1
    again = ask(server, "POST", "/v1/tasks", draft(server, key="nightly", labels={"team": "web"}))
    assert (again[0], again[1]["task"], again[1]["fresh"]) == (200, task["task"], False)
    assert code(ask(server, "POST", "/v1/tasks", draft(server, key="nightly", prompt="Other"))) == (409, "conflict")


WRONG: tuple[tuple[dict[str, Any], tuple[int, str]], ...] = (
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
)


def test_a_wrong_draft_is_refused_with_what_is_wrong(server: ControlServer) -> None:
    for fields, wanted in WRONG:
        assert code(ask(server, "POST", "/v1/tasks", draft(server, **fields))) == wanted, fields
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
    assert told == ["message", "policies", "pause", "pause_now", "unpause", "cancel"]
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


def test_a_task_that_is_too_old_is_not_resumed_either(server: ControlServer) -> None:
    task = server.submit(budget={"age": 0.001})
    server.end(task, Verb.STOP, reason=StopReason.BUDGET_EXHAUSTED, sentence="Too old.")
    refused = ask(server, "POST", f"/v1/tasks/{task}/resume", {})[1]["error"]
    amount = refused["hint"].rpartition("+")[2]
    assert amount == "61m", "the task grows older while a person reads this"
    resumed = ask(server, "POST", f"/v1/tasks/{task}/resume", {"budget": {"age": f"+{amount[:-1]}0s"}})[1]
    assert resumed["state"] == "queued"


def test_a_dry_verb_answers_as_the_real_one_would(server: ControlServer) -> None:
    task = server.submit()
    path = f"/v1/tasks/{task}"
    assert ask(server, "POST", f"{path}/cancel?dry_run=1", {})[1]["dry_run"] is True
    assert ask(server, "GET", path)[1]["state"] == "queued"
    assert code(ask(server, "POST", f"{path}/retry?dry_run=1", {})) == (409, "refused")


# --- session, inbox ---------------------------------------------------------------------------------------------------


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
