"""Policies of a running daemon: what is in force, what a change would do to running tasks, reload, history, revert."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from harnessd.cli.client import Client
from tests.cli.policy.conftest import Ctl
from tests.running import Running

pytestmark = pytest.mark.acceptance


def save(daemon: Running, name: str, text: str) -> None:
    """As careful editors save."""
    path = daemon.folder / "policies" / name
    path.with_name(".new").write_text(text)
    path.with_name(".new").replace(path)


def wait(client: Client, fits: Any) -> Mapping[str, Any]:
    until = time.monotonic() + 20
    while not fits(facts := client.get("/v1/policies")):
        assert time.monotonic() < until, facts
        time.sleep(0.02)
    return facts


def busy(daemon: Running, client: Client, letters: str, **body: Any) -> list[str]:
    """Tasks that have made two calls and wait for their model."""
    tasks = [
        daemon.submit(client, prompt="Count.", agent=f"slow-{letter}", workspace=str(daemon.workspace(letter)), **body)
        for letter in letters
    ]
    until = time.monotonic() + 40
    for task in tasks:
        while client.get(f"/v1/tasks/{task}")["tool_calls"] < 2:
            assert time.monotonic() < until, daemon.log[-2000:]
            time.sleep(0.05)
    return tasks


def test_what_running_tasks_would_feel_and_the_guard(daemon: Running, live: Ctl) -> None:
    # C7, C14, R7.3; policies.md "Guard"
    save(daemon, "budget.yaml", "kind: budget\nnote: INC-1\nlimits: {tool_calls: 50}\n")
    client = daemon.start()
    tasks = busy(daemon, client, "abcd", labels={"team": "web"})

    trial = daemon.folder / "trial"
    trial.mkdir()
    (trial / "all.yaml").write_text(
        "kind: budget\nlimits: {tool_calls: 2}\n---\nkind: retry\nname: strict\nmodel: {retries: 4}\n---\n"
        "kind: assign\nrules: [{when: {label.team: web}, use: {retry: strict}}]\n"
    )
    done = live("diff", "trial")
    assert done.code == 0
    assert done.out.splitlines()[0].startswith("r1, in force since ")
    assert "running tasks, with the counters they have now: 4" in done.out
    assert "stop at the next check  4  tool_calls 2 used, new limit 2" in done.out
    assert "retry/default -> retry/strict" in done.out
    assert "! above the guard (10%)" in done.out
    done = live("check", "trial", "--running", "--json")
    assert (done.code, json.loads(done.out)["running"]["would_be_held"]) == (0, True)
    assert sorted(one["task"] for one in json.loads(done.out)["running"]["stops"]) == sorted(tasks)
    assert live("check", "trial", "--running", "--strict").code == 1

    (trial / "all.yaml").write_text("kind: budget\nlimits: {tool_calls: 2}\n")
    save(daemon, "budget.yaml", (trial / "all.yaml").read_text())
    wait(client, lambda facts: "held" in facts)
    done = live("reload")
    assert (done.code, done.out) == (5, "")
    assert done.err.startswith("r2 is held: it would stop 4 of 4 running tasks at their next check (tool_calls 2, ")
    assert "policies/budget.yaml:2).\nMend it, or apply it: harnessctl policy reload --yes" in done.err
    assert live("reload").err == done.err  # the same revision, not another one each time
    rows = [line.split()[:3] for line in live("history").out.splitlines()[1:]]
    assert [(row[0], row[2]) for row in rows] == [("r2", "HELD"), ("r1", "in")]

    done = live("reload", "--yes", "--note", "INC-2 meant so")
    assert (done.code, done.err) == (0, "")
    assert done.out == "r3 is in force.\n"
    assert '"INC-2 meant so"' in live("history").out.splitlines()[1]
    for task in tasks:
        client.post(f"/v1/tasks/{task}/cancel", {})


def test_show_and_diff_of_what_is_in_force(daemon: Running, live: Ctl) -> None:
    # C15
    save(daemon, "budget.yaml", "kind: budget\nnote: INC-1\nlimits: {tool_calls: 50}\n")
    client = daemon.start()
    (task,) = busy(daemon, client, "a", budget={"tool_calls": "60"})
    done = live("show", "budget")
    assert "limits.tool_calls  50  " in done.out
    assert 'policies/budget.yaml:3  note "INC-1"   builtin 90' in done.out
    done = live("show", "budget", "--effective", "--for", task[:5])
    assert done.out.splitlines()[0].startswith(f"budget/default, task {task}, agent slow-a")
    assert "limits.tool_calls    60" in done.out
    assert "--budget tool_calls" in done.out
    assert json.loads(live("show", "--json").out)["revision"] == 1
    assert live("show", "--for", "agent/nobody").code == 4
    assert live("show", "--for", "zzzz").code == 4

    assert "No value differs." in live("diff").out
    save(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 70}\n")
    wait(client, lambda facts: facts["revision"] == 2)
    done = live("diff", "r1", "r2")
    assert "50 -> 70" in done.out
    assert live("diff", "r1").out.splitlines()[-2:] == done.out.splitlines()[-2:]
    assert live("diff", "r9").code == 4
    client.post(f"/v1/tasks/{task}/cancel", {})


def test_broken_files_are_refused_and_listed(daemon: Running, live: Ctl) -> None:
    # R7.2, A8
    client = daemon.start()
    save(daemon, "retry.yaml", "kind: retry\nmodel:\n  base: 1s\n  retrys: 3\n")
    wait(client, lambda facts: "refused" in facts)
    done = live("reload")
    assert done.code == 1
    assert done.out.endswith('policies/retry.yaml:4:3: unknown key "retrys": did you mean "retries"?\n')
    assert "r1 stays in force" in done.err
    assert json.loads(live("reload", "--json").out)["result"] == "refused"
    assert "refused" in live("history").out
    done = live("diff", "r2")
    assert done.code == 4
    done = live("diff")
    assert (done.code, "retrys" in done.out) == (1, True)
    save(daemon, "retry.yaml", "kind: retry\nmodel:\n  base: 1s\n  retries: 3\n")
    wait(client, lambda facts: "refused" not in facts)
    assert live("check").code == 0


def test_a_revert_holds_and_a_reload_ends_it(daemon: Running, live: Ctl) -> None:
    # A9, C14, R7.4
    save(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 70}\n")
    client = daemon.start()
    save(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 60}\n")
    wait(client, lambda facts: facts["revision"] == 2)
    done = live("revert", "r1", "--note", "harmful")
    assert done.code == 0
    assert done.out.startswith("r1 is in force and HELD there: files on disk are read and checked, not applied")
    # status says that the files are ahead, though no file was touched since
    assert "HELD by a revert" in daemon.ctl("status").stdout
    assert client.get("/v1/policies")["held"]["why"] == "r1 is held by a revert"
    assert "70 -> 60" in live("diff").out
    expected = json.loads(live("check", "--json").out)["hash"]
    done = live("reload", "--expect", "0123456789abcdef")
    assert (done.code, done.out) == (5, "")
    assert expected in done.err
    assert client.get("/v1/policies")["hold"] is True
    done = live("reload", "--expect", expected, "--note", "checked")
    assert (done.code, done.out) == (0, "r3 is in force.\n")
    assert live("reload", "--expect", expected).code == 0
    assert live("reload", "--expect", "0123456789abcdef").code == 5
    facts = client.get("/v1/policies")
    assert (facts["hold"], facts["hash"], "held" in facts) == (False, expected, False)
    assert live("revert", "r99").code == 4
    assert live("revert", "nonsense").code == 2


def test_an_edit_comes_into_force(daemon: Running, live: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    # A8
    script = daemon.folder / "editor.sh"
    script.write_text('#!/bin/sh\nprintf "kind: budget\\nlimits: {tool_calls: 33}\\n" > "$1"\n')
    script.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(script))
    client = daemon.start()
    done = live("edit", "budget", "--yes")
    assert done.code == 0, done
    assert "90 -> 33" in done.out
    assert done.out.endswith("policies/budget.yaml was replaced.\nr2 is in force.\n")
    assert client.get("/v1/policies")["revision"] == 2
    # under a hold the file is replaced and waits
    assert live("revert", "r1").code == 0
    script.write_text(script.read_text().replace("33", "34"))
    done = live("edit", "budget", "--yes")
    assert done.code == 5
    assert "held by a revert" in done.err
    assert "harnessctl policy reload" in done.err
    assert live("reload").out == "r3 is in force.\n"


def test_a_pinned_task_keeps_what_it_has(daemon: Running, live: Ctl) -> None:
    # policies.md, "Who gets which policy": pinned; daemon kinds are those in force
    save(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 50}\n")
    client = daemon.start()
    (task,) = busy(daemon, client, "a", pin_policies=True)
    save(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 1}\n---\nkind: chaos\nseed: 42\n")
    wait(client, lambda facts: facts["revision"] == 2)
    done = live("show", "budget", "--for", task)
    assert "limits.tool_calls  50" in done.out, done
    assert "42" in live("show", "chaos", "--for", task).out
    save(daemon, "budget.yaml", "kind: budget\nlimits: {tool_calls: 2}\n")
    wait(client, lambda facts: facts["revision"] == 3)
    found = json.loads(live("diff", "r2", "r3", "--json").out)["running"]
    assert (found["running"], found["stops"], found["other_policy"]) == (1, [], [])
    client.post(f"/v1/tasks/{task}/cancel", {})
