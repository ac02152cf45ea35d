"""A running daemon can be watched: metrics, traces and logs tell the same story of the same tasks, and no secret."""

from __future__ import annotations

import http.client
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from harnessd.runtime.observing.figures import Figures
from tests.otlp import Collector, Span, collector
from tests.prometheus_text import Family, parse
from tests.running import Running, plain_environment, running, settings
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance

SCRIPTS: dict[str, Any] = {
    "good": {
        "turns": [
            {"when": {"last_tool": "bash"}, "say": "It says hello."},
            {"say": "I look.", "call": [{"tool": "bash", "args": {"command": "echo hello"}}]},
        ]
    }
}
SECRET = "sk-test-4711-CANARY"
TOKEN = "scrape-me-4711-token"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def metrics(daemon: Running) -> dict[str, Family]:
    connection = UnixConnection(daemon.socket)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert SECRET not in text
    return parse(text)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with running_simulator(SCRIPTS) as simulator:
        yield simulator


@pytest.fixture
def traces() -> Iterator[Collector]:
    with collector() as receiver:
        yield receiver


@pytest.fixture
def daemon(tmp_path: Path, service: SimulatedService, traces: Collector) -> Iterator[Running]:
    with running(tmp_path) as one:
        document = settings(tmp_path, service.url, {"good": "anthropic"}, traces={"endpoint": traces.url})
        document["models"]["good"] |= {"key": {"env": "MODEL_KEY"}, "prices": {"input": 3, "output": 15}}
        one.environment = {"MODEL_KEY": SECRET}
        one.configure(document)
        yield one


def test_one_attempt_is_one_trace_that_logs_events_and_show_know(
    daemon: Running, service: SimulatedService, traces: Collector
) -> None:
    service.control_now(faults={"seed": 1, "plan": [{"request": 1, "do": {"status": 529}}]})
    client = daemon.start()
    before = metrics(daemon)
    assert before["harnessd_tasks"].value(state="completed") == 0
    task = daemon.submit(client, prompt=f"Say hello, not {SECRET}.", workspace=str(daemon.workspace("a")))
    row = daemon.until_ended(client, task)
    assert row["state"] == "completed", row

    spans = traces.until(lambda all_: any(span.name.startswith("invoke_agent") for span in all_))
    (attempt,) = [span for span in spans if span.name == "invoke_agent good"]
    chats = [span for span in spans if span.name == "chat good"]
    (tool,) = [span for span in spans if span.name == "execute_tool bash"]
    assert {span.trace for span in spans} == {row["trace"]}
    assert {span.parent for span in (*chats, tool)} == {attempt.id}
    assert len(chats) == 3
    assert [span.attributes.get("error.type") for span in chats] == ["overloaded", None, None]
    check_attributes(attempt, chats[-1], tool, task)
    raw = b"".join(traces.raw)
    assert b"echo hello" not in raw  # no content unless asked
    assert SECRET.encode() not in raw

    node = client.get(f"/v1/tasks/{task}/nodes/{row['node']}")
    assert node["trace"] == row["trace"]
    logged = [json.loads(line) for line in daemon.ctl("logs", task, "--json").stdout.splitlines()]
    assert {one["trace"] for one in logged if one["type"] != "submitted"} == {row["trace"]}
    lines = [json.loads(line) for line in daemon.log.splitlines()]
    of_task = [line for line in lines if line.get("task") == task]
    assert of_task
    assert all(line["trace"] == row["trace"] for line in of_task if line["component"] in ("worker", "runner"))
    assert SECRET not in daemon.log

    check_metrics(metrics(daemon), row)
    assert daemon.stop() == 0


def check_attributes(attempt: Span, chat: Span, tool: Span, task: str) -> None:
    assert attempt.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert attempt.attributes["gen_ai.agent.name"] == "good"
    assert attempt.attributes["gen_ai.conversation.id"] == task
    assert attempt.attributes["harnessd.task.end"] == "completed"
    assert ("decision", "retry") in [(name, facts.get("harnessd.decision.do")) for name, facts in attempt.events]
    last = chat.attributes
    assert last["gen_ai.provider.name"] == "anthropic"
    assert last["gen_ai.usage.output_tokens"] > 0
    assert last["gen_ai.response.finish_reasons"] == ["stop"]
    assert tool.attributes["gen_ai.tool.name"] == "bash"


def check_metrics(after: dict[str, Family], row: Mapping[str, Any]) -> None:
    calls = after["harnessd_model_calls_total"]
    assert calls.value(model="good", outcome="ok", **{"class": ""}) == 2
    assert calls.value(model="good", outcome="failed", **{"class": "overloaded"}) == 1
    assert after["harnessd_tool_calls_total"].value(tool="bash", outcome="ok", **{"class": ""}) == 1
    assert after["harnessd_decisions_total"].value(do="retry", **{"class": "overloaded"}) == 1
    assert after["harnessd_tasks"].value(state="completed") == 1
    assert after["harnessd_tasks_ended_total"].value(reason="completed") == 1
    assert after["harnessd_events_total"].value(type="task_completed") == 1
    assert after["harnessd_attempts_ended_total"].value(end="completed") == 1
    assert after["harnessd_cost_usd_total"].value(model="good") == pytest.approx(row["cost_usd"], abs=1e-6)
    assert after["harnessd_breaker_state"].value(dependency="model/good", state="closed") == 1
    assert after["harnessd_store_commit_seconds"].samples["_count", ()] > 5
    assert after["process_open_fds"].value() > 5
    assert after["process_resident_memory_bytes"].value() > 10 << 20
    assert after["harnessd_trace_spans_total"].value(outcome="exported") >= 4


def test_a_collector_that_is_down_costs_no_task(daemon: Running, traces: Collector) -> None:
    traces.answer = 503
    client = daemon.start()
    task = daemon.submit(client, prompt="Say hello.", workspace=str(daemon.workspace("a")))
    assert daemon.until_ended(client, task)["state"] == "completed"
    begun = time.monotonic()
    assert daemon.stop(60.0) == 0
    assert time.monotonic() - begun < 50


def test_metrics_over_tcp_want_the_token_and_serve_nothing_else(daemon: Running) -> None:
    port = free_port()
    document = json.loads(daemon.config.read_text())
    document["metrics"] = {"listen": f"127.0.0.1:{port}", "token": {"env": "SCRAPE_TOKEN"}}
    daemon.configure(document)
    daemon.start(SCRAPE_TOKEN=TOKEN)

    def ask(path: str, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    bearer = {"Authorization": f"Bearer {TOKEN}"}
    until = time.monotonic() + 30
    while True:  # it listens as soon as its part of the daemon has run once
        try:
            status, text = ask("/metrics", **bearer)
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.02)
            continue
        break
    assert status == 200
    assert parse(text)["harnessd_build_info"].samples
    assert ask("/metrics")[0] == 401
    assert ask("/metrics", Authorization="Bearer wrong")[0] == 401
    assert ask("/metrics", Authorization="Bearer wörng")[0] == 401
    assert ask("/v1/status", **bearer)[0] == 404
    assert ask("/metrics", **bearer, Origin="http://evil.example")[0] == 403
    assert ask("/metrics", **bearer, Host="evil.example")[0] == 403
    assert TOKEN not in daemon.log
    assert daemon.stop() == 0


def test_top_shows_what_is_at_work_on_any_terminal(daemon: Running, service: SimulatedService) -> None:
    service.control_now(hold=True)
    client = daemon.start()
    hostile = "red \x1b[31m\x07 title\u202e"
    task = daemon.submit(client, prompt=hostile, workspace=str(daemon.workspace("a")))
    later = daemon.submit(client, prompt="later", workspace=str(daemon.workspace("b")), after=[task])
    daemon.until(client, task, ("running",))
    until = time.monotonic() + 30
    while service.requests_now()["held"] < 1:
        assert time.monotonic() < until, f"{service.requests_now()}\n{client.get('/v1/tasks/' + task)}\n{daemon.log}"
        time.sleep(0.02)
    found = daemon.ctl_json("top")
    assert found["states"]["running"] == 1
    assert [row["task"] for row in found["tasks"]] == [task, later]
    assert found["tasks"][0]["waits"].startswith("waiting for model/good")
    assert found["tasks"][1]["waits"] == f"after {task}"
    told = daemon.ctl("top", "--once")
    assert told.returncode == 0, told.stderr
    assert task in told.stdout
    assert re.search(r"TASK +STATE +AGENT +STEP +TOKENS +USD +USED +SINCE +WAITING FOR", told.stdout)
    for columns in (200, 80, 40):
        screen = on_a_terminal(daemon, columns)
        assert task in screen
        shown = [line for line in screen.replace("\r", "").split("\n") if task in line]
        assert all(len(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line)) <= columns for line in shown)
        assert "\x07" not in screen
        assert "\u202e" not in screen
        assert "\x1b[31m" not in screen
    service.control_now(release=True)
    daemon.until_ended(client, task)
    daemon.until_ended(client, later)
    assert "No task is under way." in daemon.ctl("top", "--once").stdout


def on_a_terminal(daemon: Running, columns: int) -> str:
    """What `harnessctl top` writes to a terminal of so many columns until Ctrl-C."""
    main, side = pty.openpty()
    subprocess.run(["stty", "cols", str(columns), "rows", "30"], stdin=side, check=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "harnessd.cli", "top", "--every", "0.5"],
        cwd=daemon.folder,
        stdin=side,
        stdout=side,
        stderr=side,
        env=plain_environment() | {"HARNESSD_SOCKET": daemon.socket, "TERM": "xterm"},
    )
    os.close(side)
    screen = b""
    while screen.count(b"\x1b[2J") < 2:
        screen += os.read(main, 65536)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    os.close(main)
    return screen.decode()


def test_bench_measures_a_disk_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    command = [sys.executable, "-m", "harnessd.cli", "bench", "--dir", str(folder), "--seconds", "0.2"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert [one["sessions"] for one in found["steps"]] == [1, 32, 256]
    assert all(one["per_s"] > 0 and one["p99_s"] >= one["p50_s"] > 0 for one in (found["sync"], *found["steps"]))
    assert found["means"]
    assert list(tmp_path.rglob("*")) == [folder]
    gone = subprocess.run(
        [*command[:-4], "--dir", str(tmp_path / "no" / "such")], capture_output=True, text=True, check=False
    )
    assert gone.returncode == 1
    assert gone.stderr.count("\n") == 2


def test_the_how_to_does_what_it_says(daemon: Running) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "watch-harnessd.md").read_text(encoding="utf-8")
    commands = [line for block in fenced(page, "sh") for line in block.splitlines()]
    assert len(commands) == 4
    written = {key: value for block in fenced(page, "yaml") for key, value in yaml.safe_load(block).items()}
    document = json.loads(daemon.config.read_text())
    good = document | {key: written[key] for key in ("metrics", "traces")}
    daemon.configure(good)
    checked = subprocess.run(
        [sys.executable, "-m", "harnessd", "check", "--config", str(daemon.config)],
        env=plain_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    daemon.configure(document)
    daemon.start()
    for command in commands:
        if command.startswith("harnessctl "):
            told = daemon.ctl(*command.split()[1:])
            assert told.returncode == 0, (command, told.stderr)
        else:
            shown = subprocess.run(
                ["sh", "-c", command], env=plain_environment() | {"HARNESSD_SOCKET": daemon.socket},
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            if shown.returncode != 127:  # a machine without curl
                assert parse(shown.stdout)["harnessd_build_info"].samples
    named = set(re.findall(r"`(harnessd_\w+)", page))
    assert named
    assert named <= {meter.name for meter in Figures()}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"metrics": {"listen": "0.0.0.0:9464", "token": {"env": "T"}}}, "is not a port of this machine"),
        ({"metrics": {"listen": "127.0.0.1:9464"}}, "token"),
        ({"metrics": {"listen": "127.0.0.1:9464", "token": "open-sesame"}}, "a secret is never written here"),
        ({"traces": {"endpoint": "http://user:pw@127.0.0.1:4318"}}, "this is not an address of a collector"),
        ({"traces": {"contents": True}}, "content"),
    ],
)
def test_what_cannot_be_is_told_with_its_place(daemon: Running, wrong: dict[str, Any], words: str) -> None:
    daemon.configure(json.loads(daemon.config.read_text()) | wrong)
    checked = subprocess.run(
        [sys.executable, "-m", "harnessd", "check", "--config", str(daemon.config)],
        env=plain_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    told = checked.stdout + checked.stderr
    assert checked.returncode != 0
    assert words in told
    assert "open-sesame" not in told
    assert "user:pw" not in told
    assert "harness.yaml:" in told


def fenced(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
