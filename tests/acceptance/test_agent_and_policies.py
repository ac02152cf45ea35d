"""An agent that goes for the policies: naming their path is refused; what its tools wrote waits for a person.

Where the kernel tells who writes, it does not matter how the agent names the files, and no person's edit waits.
"""

from __future__ import annotations

import base64
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.running import running, settings
from tests.simulated import running_simulator
from tests.writing import needs_the_kernel

pytestmark = pytest.mark.acceptance


def script(folder: Path) -> dict[str, Any]:
    more = "kind: budget\\nlimits: {tool_calls: 9999}\\n"
    tries = [
        f"printf '{more}' > {folder}/policies/budget.yaml; echo tried",
        f"printf '{more}' > ../../policies/budget.yaml; sleep 1; echo sly",
    ]
    turns: list[dict[str, Any]] = [
        {"when": {"results": number}, "say": "I help myself.", "call": {"tool": "bash", "args": {"command": words}}}
        for number, words in enumerate(tries)
    ]
    return {"sly": {"turns": [*turns, {"say": "Done."}]}}


def test_an_agent_cannot_raise_its_own_budget_in_the_files(tmp_path: Path) -> None:
    # Case h22
    with running_simulator(script(tmp_path)) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"sly": "anthropic"}))
        (tmp_path / "policies").mkdir()
        client = daemon.start()
        task = daemon.submit(client, prompt="Go.", agent="sly", workspace=str(daemon.workspace("a")))
        assert daemon.until_ended(client, task)["state"] == "completed"
        nodes = client.get(f"/v1/tasks/{task}/nodes")["nodes"]
        first = next(node for node in nodes if node["kind"] == "tool_result")
        assert "permission_denied" in first["text"]
        assert "not for agents" in first["text"]
        assert 9999 not in {one["limit"] for one in client.get(f"/v1/tasks/{task}")["budgets"]}
        facts = client.get("/v1/policies")
        assert facts["revision"] == 1
        assert task in facts["held"]["why"]
        frames = [frame.data for frame in client.stream([("after", 0)]) if isinstance(frame.data, dict)]
        (held,) = [frame["data"] for frame in frames if frame.get("type") == "policy_held"]
        assert task in held["what"]
        done = client.post("/v1/policies/reload", {"yes": True, "note": "it was right"})
        assert done["result"] == "applied", "a person may still say so"


RICH = "kind: budget\nlimits: {tool_calls: 9999}\n"
IN_BASE64 = base64.b64encode(f"printf '{RICH}' > ../../policies/budget.yaml".encode()).decode()
# None of them holds the name of a file of the configuration.
HIDDEN = {
    "joined": "python3 - <<'E'\nopen('../../pol' + 'icies/bud' + 'get.yaml', 'w')"
    ".write('kind: budget\\nlimits: {tool_calls: 9999}\\n')\nE",
    "globbed": "cd ../..; cd pol*; sed -i 's/80/9999/' bud*",
    "encoded": f"echo {IN_BASE64} | base64 -d > run.sh; bash run.sh",
    "linked": "ln -s ../../pol* near; cd near/; sed -i 's/80/9999/' *",
    "moved": "sed 's/80/9999/' ../../pol*/bud* > x; mv x $(ls ../../pol*/bud*)",
    "later": "(setsid bash -c 'sleep 0.7; cd ../../pol*; sed -i s/80/9999/ bud*' >/dev/null 2>&1 &); echo begun",
    "folder": "cd ../..; mv pol* q; cp -r q pol''icies; sed -i 's/80/9999/' pol*/*",
    "agents": "cd ../..; sed -i 's/careful/reckless/' *.yaml",
}


def turns(*commands: str) -> dict[str, Any]:
    calls: list[dict[str, Any]] = [
        {"when": {"results": number}, "say": "Now.", "call": {"tool": "bash", "args": {"command": words}}}
        for number, words in enumerate(commands)
    ]
    return {"turns": [*calls, {"say": "Done."}]}


@needs_the_kernel
def test_it_does_not_matter_how_the_files_are_named(tmp_path: Path) -> None:
    # Case h22; security/shell-cd-then-relative, as far as what harnessd itself obeys
    scripts = {name: turns(words, "sleep 1") for name, words in HIDDEN.items()}
    with running_simulator(scripts) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, dict.fromkeys(HIDDEN, "anthropic")))
        as_it_was = daemon.config.read_text()
        budget = tmp_path / "policies" / "budget.yaml"
        budget.parent.mkdir()
        budget.write_text("kind: budget\nlimits: {tool_calls: 80}\n")
        client = daemon.start()
        for name in HIDDEN:
            task = daemon.submit(client, prompt="Go.", agent=name, workspace=str(daemon.workspace(name)))
            assert daemon.until_ended(client, task)["state"] == "completed"
            held = client.get("/v1/policies")
            assert held["revision"] == 1, name
            assert f"a tool of {task}" in held["held"]["why"], name
            assert 80 in {one["limit"] for one in client.get(f"/v1/tasks/{task}")["budgets"]}, name
            # What a person restores is in force, and nothing waits any more.
            budget.write_text("kind: budget\nlimits: {tool_calls: 80}\n")
            daemon.config.write_text(as_it_was)
            until(lambda: "held" not in client.get("/v1/policies"))


def test_what_was_held_stays_held_over_a_restart_and_a_plain_reload(tmp_path: Path) -> None:
    with running_simulator(script(tmp_path)) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"sly": "anthropic"}))
        (tmp_path / "policies").mkdir()
        client = daemon.start()
        task = daemon.submit(client, prompt="Go.", agent="sly", workspace=str(daemon.workspace("a")))
        daemon.until_ended(client, task)
        before = client.get("/v1/policies")["held"]
        daemon.kill()
        client = daemon.start()
        until(lambda: "held" in client.get("/v1/policies"))
        facts = client.get("/v1/policies")
        assert (facts["revision"], facts["held"]) == (1, before)
        assert daemon.ctl("policy", "reload").returncode == 5
        assert daemon.ctl("policy", "reload", "--yes", "--note", "seen").returncode == 0
        assert client.get("/v1/policies")["revision"] > 1


@needs_the_kernel
@pytest.mark.parametrize(
    "edit",
    [
        "sed -i 's/{tool_calls: 2}/{tool_calls: 9}/' policies/budget.yaml",
        "sed 's/{tool_calls: 2}/{tool_calls: 9}/' policies/budget.yaml > new; cp new policies/budget.yaml",
        "sed 's/{tool_calls: 2}/{tool_calls: 9}/' policies/budget.yaml > new; mv new policies/budget.yaml",
    ],
    ids=["sed", "cp", "mv"],
)
def test_a_person_raises_the_budget_while_the_task_runs_a_command(tmp_path: Path, edit: str) -> None:
    # R7.2: nothing of it waits, although a tool runs and even names the file
    busy = turns("echo budget.yaml", "sleep 2; echo budget.yaml", "echo 3", "echo 4")
    with running_simulator({"busy": busy}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"busy": "anthropic"}))
        (tmp_path / "policies").mkdir()
        (tmp_path / "policies" / "budget.yaml").write_text("kind: budget\nlimits: {tool_calls: 2}\n")
        client = daemon.start()
        task = daemon.submit(client, prompt="Go.", agent="busy", workspace=str(daemon.workspace("a")))
        until(lambda: client.get(f"/v1/tasks/{task}")["tool_calls"] == 2)
        subprocess.run(["bash", "-c", edit], cwd=tmp_path, check=True)
        ended = daemon.until_ended(client, task)
        assert (ended["state"], ended["tool_calls"]) == ("completed", 4), ended["sentence"]
        assert "held" not in client.get("/v1/policies")


def until(holds: Any, within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
