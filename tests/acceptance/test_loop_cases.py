"""Scenes of agents and daemons that do the same again and again, on a real daemon: what must stop, what must not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance


def bash(command: str) -> dict[str, Any]:
    return {"tool": "bash", "args": {"command": command}}


def circle(*calls: Any) -> dict[str, Any]:
    """An agent that makes these calls in turn, for ever."""
    count = len(calls)
    turns = [
        {"when": {"turn": [turn for turn in range(60) if turn % count == place]}, "say": "Next.", "call": call}
        for place, call in enumerate(calls)
    ]
    return {"turns": turns}


def polling(*states: str) -> dict[str, Any]:
    """An agent that looks at one state until it is the last."""
    last = {"when": {"last_tool": "bash", "matches": states[-1]}, "say": "It is over."}
    looks = 'n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n; set -- STATES; shift $n; echo "$1"'
    words = " ".join(f"'{state}'" for state in states)
    return {"turns": [last, {"say": "I look.", "call": bash(looks.replace("STATES", words))}]}


A, B, C = bash("echo a"), bash("echo b"), bash("echo c")
READ = [
    {"tool": "read_file", "args": {"path": "x", "offset": 1}},
    {"tool": "read_file", "args": {"path": "y", "limit": 9}},
]
OTHER_ORDER = [
    {"tool": "read_file", "args": {"limit": 9, "path": "y"}},
    {"tool": "read_file", "args": {"offset": 1, "path": "x"}},
]
STAMPS = (
    "date; echo pid $$; cat /proc/sys/kernel/random/uuid; date +%s%N; mktemp -u; printf '0x%x\\n' $RANDOM; echo down"
)
CUT = {"tool": "write_file", "args": {"path": "x"}}
# name -> (script, the detector that must find it; None: it must come to its own end)
SCENES: Mapping[str, tuple[dict[str, Any], str | None]] = {
    "same": (circle(A), "repeat_call"),
    "spelled": (circle(bash("echo  a"), bash("echo a"), bash(" echo a\n")), "repeat_call"),
    "fan-out": (circle(READ, OTHER_ORDER), "repeat_call"),
    "stamps": (circle(bash(STAMPS)), "repeat_call"),
    "two": (circle(A, B), "alternate"),
    "three": (circle(A, B, C), "alternate"),
    "error": (circle(*(bash(f"cat gone; false # {n}") for n in range(7))), "same_error"),
    "poll": (polling("running 10%", "running 40%", "running 80%", "running 95%", "exit 0"), None),
    "poll-slow": (polling("queued", "queued", "running", "running", "exit 0"), None),
}


@pytest.fixture(scope="module")
def service() -> Iterator[SimulatedService]:
    scripts = {name: script for name, (script, _) in SCENES.items()}
    scripts["cut"] = {"turns": [{"say": "I write.", "call": CUT, "finish": "length"}]}
    scripts["raw-cut"] = {
        "turns": [
            {"say": "I write.", "call": {"tool": "write_file", "raw_args": '{"path": "x", "con'}, "finish": "length"}
        ]
    }
    scripts["wrong"] = {"turns": [{"say": "x"}], "faults": {"rate": [{"p": 1.0, "do": {"invalid_request": True}}]}}
    scripts["down"] = {"turns": [{"say": "Done."}]}
    with running_simulator(scripts) as found:
        yield found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, service: SimulatedService) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("loops")
    with running(folder) as found:
        (folder / "policies").mkdir()
        (folder / "policies" / "own.yaml").write_text(
            "kind: loop\ndo: [stop]\n---\nkind: breaker\n"
            "rules: [{for: model/down, open: 1s, ramp: 0s, consecutive: 5}]\n"
            "---\nkind: retry\nmodel: {base: 10ms, cap: 20ms, classes: {server_error: {retries: 2}}}\n"
        )
        names = [*SCENES, "cut", "raw-cut", "wrong", "down"]
        document = settings(folder, service.url, dict.fromkeys(names, "anthropic"), workers=32)
        found.configure(document)
        found.start()
        yield found


def submit(daemon: Running, agent: str, name: str = "") -> str:
    space = daemon.workspace(name or agent)
    (space / "x").write_text("one\n")
    (space / "y").write_text("two\n")
    return daemon.submit(daemon.clients[0], prompt="Do it.", agent=agent, workspace=str(space))


@pytest.mark.parametrize("name", SCENES)
def test_what_goes_in_circles_is_stopped_and_what_waits_is_not(daemon: Running, name: str) -> None:
    # R3.10, c11, c12
    detector = SCENES[name][1]
    row = daemon.until_ended(daemon.clients[0], submit(daemon, name))
    if detector is None:
        assert row["state"] == "completed", row["sentence"]
        assert row["tool_calls"] == 5, "polling is counted all the same"
        return
    assert (row["reason"], row["class"]) == ("loop_detected", "loop_detected"), row["sentence"]
    assert f"({detector})" in row["sentence"]
    assert row["turns"] <= 12


@pytest.mark.parametrize("name", ["cut", "raw-cut"])
def test_a_call_cut_by_the_output_cap_is_never_run_and_noticed_by_the_third_time(
    daemon: Running, service: SimulatedService, name: str
) -> None:
    # c20, R2.3, R3.14
    task = submit(daemon, name)
    row = daemon.until(daemon.clients[0], task, ("stopped", "waiting"))
    assert row["turns"] <= 3
    sent = [one for one in service.requests_now(shown=True)["last"] if one["model"] == name]
    assert len(sent) == 3
    assert "token limit" in str(sent[-1]["shown"])
    assert "several calls" in str(sent[-1]["shown"])
    assert (daemon.folder / "work" / name / "x").read_text() == "one\n"


def test_a_request_that_is_refused_is_not_sent_again_as_it_is(daemon: Running, service: SimulatedService) -> None:
    # c15, R3.3
    row = daemon.until_ended(daemon.clients[0], submit(daemon, "wrong"))
    assert (row["reason"], row["class"]) == ("error", "invalid_request")
    assert sum(one["model"] == "wrong" for one in service.requests_now()["last"]) <= 2


def test_one_probe_at_a_time_and_no_breaker_stays_wedged(daemon: Running, service: SimulatedService) -> None:
    # c17, c18, R3.5
    client: Client = daemon.clients[0]
    service.control_now(faults={"model": "down", "plan": [{"at": {"times": "always"}, "do": {"status": 503}}]})
    tasks = [submit(daemon, "down", f"down{number}") for number in range(20)]
    until = time.monotonic() + 20
    while client.get("/v1/tasks", [("state", "parked")])["tasks"] == [] or breaker(client)["state"] != "open":
        assert time.monotonic() < until, daemon.log
        time.sleep(0.02)
    # The first look after the wait is refused for a reason of its own: that says nothing against the service.
    service.control_now(clear_faults=True)
    service.control_now(faults={"model": "down", "plan": [{"at": {"times": "always"}, "do": {"status": 400}}]})
    time.sleep(1.2)
    service.control_now(clear_faults=True)
    for task in tasks:
        row = daemon.until(client, task, ("completed", "stopped"), 30)
        assert row["state"] == "completed" or row["class"] == "invalid_request", row
    assert breaker(client)["state"] == "closed"


def breaker(client: Client) -> Mapping[str, Any]:
    rows = client.get("/v1/breakers")["breakers"]
    return next((row for row in rows if row["name"] == "model/down"), {"state": "closed"})
