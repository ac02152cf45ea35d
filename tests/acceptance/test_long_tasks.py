"""A long task in a small window runs to its end on the strict simulator, with a real daemon and its own counts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import ROOT, SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance

STEPS = 150
WINDOW = 10_000
PROMPT = "Do the steps. All of them, in order, and never touch the attic."
POLICIES = """\
kind: compaction
reserve: 4k
summary: {max_tokens: 4k}
---
kind: budget
limits: {tool_calls: none, turns: none, tokens: none, cost_usd: none, working_time: none, wall_time: none}
---
kind: loop
no_progress: none
repeat_call: none
---
kind: retry
model: {base: 1ms, cap: 10ms}
"""


def script(name: str, **changes: Any) -> dict[str, Any]:
    """The shipped script that writes a file a step, in a small window, as one conversation over all compactions."""
    path = ROOT / "harnessd" / "simulator" / "scripts" / "steps.yaml"
    shipped = yaml.safe_load(path.read_text())["models"]["steps-write-*"]
    return {name: {**shipped, "window": WINDOW, "marker": r"Do the steps\. All", **changes}}


@contextmanager
def at_work(folder: Path, protocol: str, steps: int = STEPS, **about: Any) -> Iterator[tuple[Running, Client, Any]]:
    """A daemon, its client, the simulator. `declared`: in harness.yaml; `window`: the true one."""
    name = f"steps-write-{steps}"
    writer = about.get("writer")
    models = {name: protocol} | ({"writer": "anthropic"} if writer else {})
    scripts = script("steps-write-*", window=about.get("window", WINDOW)) | ({"writer": writer} if writer else {})
    with running_simulator(scripts) as service, running(folder) as daemon:
        document = settings(folder, service.url, models)
        priced = {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75}
        declared = about.get("declared", WINDOW)
        document["models"][name] |= {"window": declared, "max_output": 2_000, "prices": priced}
        daemon.configure(document)
        (folder / "policies").mkdir()
        own = POLICIES.replace("summary: {", "summary: {model: model/writer, ") if writer else POLICIES
        (folder / "policies" / "own.yaml").write_text(own)
        yield daemon, daemon.start(), service


def submitted(daemon: Running, client: Client) -> str:
    """The task, queued."""
    return daemon.submit(client, prompt=PROMPT, workspace=str(daemon.workspace("a")))


def done(daemon: Running, client: Client, task: str, steps: int) -> Mapping[str, Any]:
    """The task's row, once it has really done its steps."""
    row = daemon.until_ended(client, task, timeout_s=120)
    assert row["reason"] == "completed", row["sentence"]
    written = {path.name for path in (daemon.workspace("a") / "steps").iterdir()}
    assert written == {f"{k}.txt" for k in range(1, steps + 1)}
    return row


def last_view(service: SimulatedService) -> str:
    """What the model was shown last, as text."""
    found = service.requests_now(3, shown=True)
    return json.dumps(found["last"][-1], ensure_ascii=False)


def summaries(client: Client, task: str) -> list[Mapping[str, Any]]:
    """The journal's rows of summaries."""
    effects = client.get(f"/v1/tasks/{task}/effects")["effects"]
    return [row for row in effects if (row["arguments"] or {}).get("purpose") == "summary"]


@pytest.mark.parametrize(("protocol", "steps"), [("anthropic", STEPS), ("openai-chat", 60), ("openai-responses", 60)])
def test_a_long_task_runs_to_its_end_in_a_small_window(
    protocol: str, steps: int, tmp_path: Path
) -> None:  # R4.2, R4.4, R4.5
    with at_work(tmp_path, protocol, steps) as (daemon, client, service):
        task = submitted(daemon, client)
        row = done(daemon, client, task, steps)
        seen = service.requests_now()
        assert seen["violations"] == []
        assert seen["by_status"] == {"200": seen["total"]}, "no request was too large"
        shown = last_view(service)
        assert "never touch the attic" in shown
        assert "write_file path=steps/{1-" in shown, "the receipts"
        found = daemon.ctl_json("context", task)["context"]
        assert found["compactions"]["made"] >= 1
        assert found["compactions"]["last"]["gain"] > 0.1
        assert found["compactions"]["failures"] == 0
        assert found["used"] < 0.98
        rows = summaries(client, task)
        assert len(rows) == seen["total"] - row["turns"]
        assert sum(one["result"]["tokens"] for one in rows) > 0
        said = daemon.ctl("context", task).stdout
        for word in ("window", "made smaller", "notes of earlier turns", "last", "by a summary"):
            assert word in said
        assert "full" in daemon.ctl("why", task).stdout


def test_a_window_smaller_than_declared_is_found_out(tmp_path: Path) -> None:  # R4.3
    with at_work(tmp_path, "anthropic", 90, declared=100_000, window=8_000) as (daemon, client, service):
        task = submitted(daemon, client)
        done(daemon, client, task, 90)
        seen = service.requests_now()
        assert 1 <= seen["by_status"]["400"] <= 3, "what was learnt is kept"
        found = daemon.ctl_json("context", task)["context"]
        assert found["window_found"] <= 8_000
        assert "declared 100k" in daemon.ctl("context", task).stdout


def test_a_dead_summariser_stops_no_task(tmp_path: Path) -> None:  # R4.5
    down = {"turns": [{"say": "no"}], "faults": {"rate": [{"p": 1.0, "do": "overloaded"}]}}
    with at_work(tmp_path, "anthropic", 60, writer=down) as (daemon, client, _):
        task = submitted(daemon, client)
        done(daemon, client, task, 60)
        asked = {row["name"] for row in summaries(client, task)}
        assert asked == {"model/writer", "model/steps-write-60"}, "its chain: the task's own model writes it"


def test_kill_while_a_summary_is_written(tmp_path: Path) -> None:  # J17
    with at_work(tmp_path, "anthropic", 60, writer={"turns": []}) as (daemon, client, service):
        service.control_now(hold={"model": "writer"})
        task = submitted(daemon, client)
        until = time.monotonic() + 60
        while service.requests_now(1)["held"] < 1:
            assert time.monotonic() < until
            time.sleep(0.05)
        daemon.kill()
        service.control_now(release=True)
        again = daemon.start()
        done(daemon, again, task, 60)
        rows = summaries(again, task)
        assert [row["state"] for row in rows[:2]] == ["unknown", "done"]
        assert service.requests_now()["violations"] == []


def test_kill_between_summary_and_node(tmp_path: Path) -> None:  # J17
    with at_work(tmp_path, "anthropic", 60) as (daemon, _, service):
        assert daemon.stop() == 0
        crashing = daemon.start(HARNESSD_CRASH="J17:1")
        task = submitted(daemon, crashing)
        assert daemon.process is not None
        daemon.process.wait(60)
        again = daemon.start()
        done(daemon, again, task, 60)
        kinds = [node["kind"] for node in again.get(f"/v1/tasks/{task}/nodes")["nodes"]]
        assert kinds.count("compaction") == daemon.ctl_json("context", task)["context"]["compactions"]["made"] >= 1
        assert service.requests_now()["violations"] == []


def test_what_the_how_to_says_can_be_written(tmp_path: Path) -> None:  # R4.2, R4.3
    page = (ROOT / "docs" / "how-to" / "when-the-window-fills.md").read_text()
    (own,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    with running(tmp_path) as daemon:
        models = dict.fromkeys(("primary", "small", "long"), "anthropic")
        daemon.configure(settings(tmp_path, "http://127.0.0.1:1", models))
        (tmp_path / "policies").mkdir()
        (tmp_path / "policies" / "own.yaml").write_text(own)
        checked = daemon.ctl("policy", "check", "policies", "--config", str(daemon.config))
        assert checked.returncode == 0, checked.stdout + checked.stderr
        for command in re.findall(r"^\$ harnessctl (.*)$", page, re.MULTILINE):
            assert daemon.ctl(*command.split()).returncode == 0
