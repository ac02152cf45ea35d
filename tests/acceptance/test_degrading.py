"""What a model gets wrong, and what stands in where something is down, on a running daemon in all three protocols."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

PROTOCOLS = ("anthropic", "openai-chat", "openai-responses")
FORM = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
LIST = {"tool": "list_files", "args": {"path": "."}}
Ended = tuple[Running, Client, dict[str, dict[str, Any]]]
ENDED = ("completed", "stopped", "waiting")


def _faults(do: str, times: int = 99) -> dict[str, Any]:
    return {"plan": [{"at": {"turn": 0, "times": times}, "do": {do: True}}]}


WORK = [
    {"when": {"first": True}, "call": LIST},
    {"when": {"tool_failed": True}, "call": LIST},
    {"when": {"last_tool": "list_files"}, "say": "Done: looked."},
]
# What is wrong with the answers -> the script, and how its task ends: state, error class, calls that were made.
WRONG: Mapping[str, tuple[dict[str, Any], tuple[str, str | None, int]]] = {
    "args": ({"turns": WORK, "faults": _faults("malformed_args", 1)}, ("completed", None, 1)),
    "raw": (
        {
            "turns": [
                {"when": {"first": True}, "call": {"tool": "list_files", "raw_args": "{path: nope"}},
                {"when": {"tool_failed": True}, "say": "Done: it was no JSON."},
            ]
        },
        ("completed", None, 0),
    ),
    "alwaysraw": (
        {"turns": [{"call": {"tool": "list_files", "raw_args": "nope"}}]},
        ("waiting", None, 0),  # three invalid calls in a row go to a person
    ),
    "cut": ({"turns": WORK, "faults": _faults("cut_call")}, ("stopped", "malformed_output", 0)),
    "empty": ({"turns": WORK, "faults": _faults("empty_answer")}, ("stopped", "malformed_output", 0)),
    "thought": ({"turns": [{"think": "I only think."}]}, ("stopped", "malformed_output", 0)),
    "afterthought": (
        {
            "turns": [
                {"when": {"user_matches": "neither words nor a tool call"}, "say": "Done now."},
                {"think": "Let me see."},
            ]
        },
        ("completed", None, 0),
    ),
}
STANDING_IN = {
    "full": {
        "turns": [
            {"when": {"turn": 0}, "call": LIST},
            {"when": {"user_matches": "Go on as feature/basic-"}, "say": "Only counted."},
            {"say": "I was not told."},
        ]
    },
    "down": {"turns": [{"say": "Never."}], "faults": _faults("overloaded")},
    "small": {"turns": [{"when": {"user_matches": "Go on as agent/small-"}, "say": "Done by the small one."}]},
}
FORMS = {
    "second": {
        "turns": [
            {"when": {"turn": 0}, "say": '{"path": 42}'},
            {
                "when": {"turn": 1, "user_matches": "path: expected string, got number 42"},
                "say": 'Here it is:\n```json\n{"path": "a.py"}\n```',
            },
        ]
    },
    "never": {"turns": [{"say": "All is done."}]},
}


def _configure(daemon: Running, url: str, names: Mapping[str, str]) -> None:
    """An agent for each script and protocol; features, forms, chains, and a tool that is down for some."""
    document = settings(daemon.folder, url, names, chaos=True, features={}, workers=16)
    agents, features, chains = document["agents"], document["features"], {}
    for protocol in PROTOCOLS:
        for name, tools in (("full", ["list_files", "task_list"]), ("basic", ["task_list"])):
            features[f"{name}-{protocol}"] = {"agent": f"full-{protocol}", "tools": tools}
        agents[f"full-{protocol}"]["feature"] = f"full-{protocol}"
        agents[f"small-{protocol}"]["tools"] = ["read_file"]
        agents[f"second-{protocol}"]["output"] = {"schema": FORM}
        agents[f"never-{protocol}"]["output"] = {"schema": FORM, "safe": {"path": ""}}
        chains[f"feature/full-{protocol}"] = [f"feature/basic-{protocol}"]
        chains[f"agent/down-{protocol}"] = [f"agent/small-{protocol}"]
    daemon.configure(document)
    down = {"for": "tool/list_files", "when": {"agent": "full-*"}, "rate": "100%", "inject": {"fail": "unavailable"}}
    policies = (
        "kind: retry\nmodel: {base: 5ms, cap: 20ms}\ntool: {base: 5ms, cap: 20ms}\n",
        f"kind: fallback\nchains: {json.dumps(chains)}\n",
        f"kind: chaos\nrules: {json.dumps([down])}\n",
    )
    folder = daemon.folder / "policies"
    folder.mkdir()
    (folder / "own.yaml").write_text("---\n".join(policies))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """All tasks, by agent, on one daemon; ended, or put to a person."""
    scripts = {**{name: script for name, (script, _) in WRONG.items()}, **STANDING_IN, **FORMS}
    names = {f"{name}-{protocol}": protocol for name in scripts for protocol in PROTOCOLS}
    plays = {f"{name}-*": script for name, script in scripts.items()}
    with running_simulator(plays) as service, running(tmp_path_factory.mktemp("degrading")) as daemon:
        _configure(daemon, service.url, names)
        client = daemon.start()
        tasks: dict[str, str] = {}
        for name in names:
            body = {"prompt": "Work.", "agent": name, "workspace": str(daemon.workspace(name))}
            tasks[name] = client.post("/v1/tasks", body)["task"]
        found: dict[str, dict[str, Any]] = {}
        until = time.monotonic() + 90
        while len(found) < len(tasks):
            assert time.monotonic() < until, sorted(tasks.keys() - found.keys())
            for name in tasks.keys() - found.keys():
                task = client.get(f"/v1/tasks/{tasks[name]}")
                if task["state"] in ENDED:
                    found[name] = dict(task)
            time.sleep(0.05)
        yield daemon, client, found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_model_gets_wrong_ends_in_progress_or_a_named_stop(  # R3.14, R2.3, R2.4
    wrong: str, protocol: str, ended: Ended
) -> None:
    task = ended[2][f"{wrong}-{protocol}"]
    state, error_class, made = WRONG[wrong][1]
    assert (task["state"], task["class"] if state == "stopped" else None) == (state, error_class), task
    assert task["tool_calls"] == made, "what was cut or is no JSON is never run"
    if state == "stopped":
        assert "malformed_output" in task["sentence"]
        assert task["next"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_answer_has_the_declared_form_in_the_end(protocol: str, ended: Ended) -> None:  # R3.14
    task = ended[2][f"second-{protocol}"]
    assert (task["state"], task["output"], task["turns"]) == ("completed", {"path": "a.py"}, 2)
    assert "safe" not in task


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_declared_safe_answer_is_handed_out_and_marked(protocol: str, ended: Ended) -> None:  # R3.14
    daemon, _, found = ended
    task = found[f"never-{protocol}"]
    assert (task["output"], task["safe"], task["class"]) == ({"path": ""}, True, "malformed_output")
    assert task["degraded"] == {f"agent/never-{protocol}": "safe"}
    assert task["turns"] == 3, "asked again twice"
    status, waited = daemon.ctl("status", task["task"]), daemon.ctl("wait", task["task"], "--json")
    assert "degraded: no answer had the wanted form" in status.stdout
    assert 'output   {"path": ""}' in status.stdout
    assert json.loads(waited.stdout)["output"] == {"path": ""}
    assert daemon.ctl("show", task["task"]).stdout.splitlines()[1] == '{"path": ""}'


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_feature_stands_in_where_a_tool_is_down(protocol: str, ended: Ended) -> None:  # R3.4
    daemon, _, found = ended
    task = found[f"full-{protocol}"]
    assert (task["state"], task["sentence"]) == ("completed", "Only counted.")
    assert task["degraded"] == {f"feature/full-{protocol}": f"feature/basic-{protocol}"}
    assert f"fallback to feature/basic-{protocol}" in daemon.ctl("why", task["task"]).stdout
    assert "degraded" in daemon.ctl("logs", task["task"]).stdout


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_agent_stands_in_where_the_models_are_down(protocol: str, ended: Ended) -> None:  # R3.4
    daemon, _, found = ended
    task = found[f"down-{protocol}"]
    assert (task["state"], task["sentence"]) == ("completed", "Done by the small one.")
    assert task["degraded"] == {f"agent/down-{protocol}": f"agent/small-{protocol}"}
    assert f"fallback to agent/small-{protocol}" in daemon.ctl("why", task["task"]).stdout
