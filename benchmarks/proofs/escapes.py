"""Escapes: eight shapes of tools that do not want to end; whatever ends them, nothing of them lives 10 s later (G12).

    python benchmarks/proofs/escapes.py --times 100

All eight run at once, each in a task of its own of one daemon. Then the tasks are cancelled; or their time is over; or
the daemon is stopped, crashes, or is killed with SIGKILL. A daemon that starts after that must get its lock at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.proofs.warm import Forked, Warm, warm
from harnessd.cli.client import Client, Problem
from tests.running import Running, plain_environment, running, settings
from tests.simulated import SimulatedService, running_simulator

GONE_S = 10.0
BEGUN_S = 40.0
# {n} is a word that nobody else's command line holds. The file and the memory are bounded: others live here, too.
SHAPES: Mapping[str, str] = {
    "forks twice": """exec python3 -c '
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(9999)
    os._exit(0)
time.sleep(9999)  # {n}'""",
    "leaves its session": "(setsid setsid sleep {n} &); exec sleep {n}",
    "ignores every signal": "trap '' TERM INT HUP QUIT USR1 PIPE; while :; do sleep {n}; done",
    "holds the pipe": "exec 7>&1 8>&2; (setsid sleep {n} >/dev/null 2>&1 &); exec sleep {n}",
    "inherits descriptors": """exec python3 -c '
import fcntl, os, time
for fd in range(3, 64):
    try: os.set_inheritable(fd, True)
    except OSError: pass
os.setsid() if os.fork() == 0 else None
os.execvp("sleep", ["sleep", "{n}"])'""",
    "fills the disk": "head -c 24000000 /dev/zero > fill; (setsid tail -f fill -s {n} &); exec tail -f fill -s {n}",
    "eats memory": "exec python3 -c 'x = bytearray(96 << 20); import time; time.sleep(9999)  # {n}'",
    "floods its output": "(setsid bash -c 'while :; do echo {n}; done' &); while :; do echo {n}; sleep 0.01; done",
}
ENDS = ("cancel", "time-out", "stop", "crash", "kill -9")
MODELS = {f"escape-{number}": shape for number, shape in enumerate(SHAPES)}
TIMEOUT = "kind: tools\nrules: [{for: tool/bash, timeout: {after: 3s, do: kill}}]\n"


@dataclass(slots=True)
class Found:
    """What one end of all shapes left."""

    end: str
    shapes: int = 0
    took_s: float = 0.0
    broken: list[str] = field(default_factory=list)


def scripts(words: Mapping[str, str]) -> dict[str, Any]:
    """A model for each shape: it calls it once, whatever comes of it."""
    return {
        model: {
            "turns": [
                {"when": {"first": True}, "call": {"tool": "bash", "args": {"command": command(shape, words[shape])}}},
                {"say": "Done."},
            ]
        }
        for model, shape in MODELS.items()
    }


def command(shape: str, word: str) -> str:
    """The shape's command line."""
    return SHAPES[shape].replace("{n}", word)


def pids_of(word: str) -> list[int]:
    """Live processes whose command line holds the word."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def run(folder: Path, starter: Warm, service: SimulatedService, end: str) -> Found:
    """All shapes at once, ended in one way."""
    words = {shape: f"9{secrets.randbelow(10**8):08d}.{number}" for number, shape in enumerate(SHAPES)}
    service.control_now(scripts={"models": scripts(words)})
    found = Found(end)
    with running(folder) as daemon:
        daemon.configure(settings(folder, service.url, dict.fromkeys(MODELS, "anthropic"), workers=16))
        if end == "time-out":
            (folder / "policies").mkdir()
            (folder / "policies" / "own.yaml").write_text(TIMEOUT)
        process, client = _started(daemon, starter)
        try:
            tasks = [_submit(daemon, client, model) for model in MODELS]
            found.shapes = _begun(words, found)
            begun = time.monotonic()
            _end(end, process, client, tasks)
            found.broken += _left(words, end)
            found.took_s = time.monotonic() - begun
            if end in ("cancel", "time-out"):
                found.broken += _told(client, tasks, end)
            else:
                client.close()
                again, client = _started(daemon, starter)  # the lock is free, whoever inherited what
                again.kill()
        finally:
            client.close()
            process.kill()
            for word in words.values():
                for pid in pids_of(word):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
    return found


def _started(daemon: Running, starter: Warm) -> tuple[Forked, Client]:
    process = starter.start(daemon.config, daemon.folder / "harnessd.log", plain_environment())
    until = time.monotonic() + BEGUN_S
    while time.monotonic() < until:
        client = Client(daemon.socket)
        try:
            client.get("/v1/status")
        except Problem:
            client.close()
            assert process.poll() is None, daemon.log[-2000:]
            time.sleep(0.01)
            continue
        return process, client
    raise AssertionError(f"the daemon did not answer: {daemon.log[-2000:]}")


def _submit(daemon: Running, client: Client, model: str) -> str:
    return daemon.submit(client, prompt="Go.", agent=model, workspace=str(daemon.workspace(model)))


def _begun(words: Mapping[str, str], found: Found) -> int:
    """Until every shape runs."""
    waiting, until = dict(words), time.monotonic() + BEGUN_S
    while waiting and time.monotonic() < until:
        waiting = {shape: word for shape, word in waiting.items() if not pids_of(word)}
        time.sleep(0.02)
    found.broken += [f"{shape}: never ran" for shape in waiting]
    return len(words) - len(waiting)


def _end(end: str, process: Forked, client: Client, tasks: list[str]) -> None:
    match end:
        case "cancel":
            for task in tasks:
                with contextlib.suppress(Problem):  # it has ended: told below
                    client.post(f"/v1/tasks/{task}/cancel", {})
        case "stop":
            process.send(signal.SIGTERM)
            process.send(signal.SIGINT)  # the second one does not wait for the drain
            process.wait()
        case "crash":
            process.send(signal.SIGABRT)
            process.wait()
        case "kill -9":
            process.kill()
        case _:
            _until(lambda: all(_row(client, task)["state"] in ("completed", "stopped") for task in tasks), BEGUN_S)


def _left(words: Mapping[str, str], end: str) -> Iterator[str]:
    """What still lives 10 s later."""
    _until(lambda: not any(pids_of(word) for word in words.values()), GONE_S)
    for shape, word in words.items():
        if pids := pids_of(word):
            yield f"{shape}, {end}: {len(pids)} processes live on"


def _told(client: Client, tasks: list[str], end: str) -> Iterator[str]:
    """How it is told: 124 at the end of its time, aborted by a cancel."""
    for task in tasks:
        _until(lambda task=task: _row(client, task)["state"] in ("completed", "stopped"), GONE_S)  # type: ignore[misc]
        row = _row(client, task)
        nodes = client.get(f"/v1/tasks/{task}/nodes")["nodes"]
        results = " ".join(node["text"] for node in nodes if node["kind"] == "tool_result")
        if end == "time-out" and "timed out after 3000 ms" not in results:
            yield f"{MODELS[row['agent']]}: its time-out is not told: {results[:300]}"
        if end == "cancel" and row["reason"] != "aborted":
            yield f"{MODELS[row['agent']]}: cancelled, and it is {row['state']} {row['reason']}: {results[:300]}"


def _row(client: Client, task: str) -> Mapping[str, Any]:
    row: Mapping[str, Any] = client.get(f"/v1/tasks/{task}")
    return row


def _until(holds: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)


def main() -> int:
    """Run the ends and print what was left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1)
    asked = parser.parse_args()
    everything = []
    with running_simulator() as service, warm() as starter:
        for _ in range(asked.times):
            for end in ENDS:
                with tempfile.TemporaryDirectory(prefix="escapes-") as folder:
                    found = run(Path(folder), starter, service, end)
                everything.append(found)
                print(
                    f"{end:9} {found.shapes} shapes, gone after {found.took_s:4.1f} s {found.broken or 'ok'}",
                    flush=True,
                )
    wrong = [words for found in everything for words in found.broken]
    print(
        f"{sum(found.shapes for found in everything)} tools ended in {len(ENDS)} ways, {len(wrong)} broke the promise"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
