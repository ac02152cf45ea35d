"""Demo: three real tasks on a real daemon; a 429, a kill -9 and a wrong path, each shown as it is dealt with."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, USAGE, Client, Problem
from harnessd.cli.demo.stage import SCRIPTS, Stage
from harnessd.cli.sessions import event_line

TOTAL_S = 60.0
_PROMPTS = {
    "report": "Count the words of the notes and write report.md.",
    "fix-test": "Make the tests of this project pass.",
    "mend": "Set retries to 5 in the settings.",
}
_SHOWN = {
    "started", "assistant", "tool_call", "tool_result", "retry_wait", "parked", "interrupted", "task_completed",
    "task_stopped", "budget_warning", "needs_human",
}  # fmt: skip
_CHECKS = {
    "report": ("report.md is written", ["grep", "-q", "Words in the notes", "report.md"]),
    "fix-test": ("the project's tests pass", [sys.executable, "-m", "unittest", "-q", "test_stats"]),
    "mend": ("retries is 5", ["grep", "-q", "retries = 5", "config/app-settings.ini"]),
}
# The daemon is killed while the model is asked for the turn after this many answers of this task.
_KILLED, _KILLED_AT = "fix-test", 3


@click.command()
@click.option("--faults", metavar="MIX", help="More faults of the model service, e.g. overloaded=10%,network=5%.")
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="Work in DIR and leave everything there.")
def demo(faults: str | None, keep: Path | None) -> int:
    """Show the defences at work: no key, no network, nothing to set up.

    A daemon, a simulated model service on loopback that speaks the real wire protocols, and three real tasks.
    """
    mix = read_mix(faults) if faults else None
    stage = Stage(keep)
    began = time.monotonic()
    # A demo that is ended leaves no daemon behind: SIGTERM goes the way of Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return Show(stage, began).play(mix)
    finally:
        stage.close()
        if keep is not None:
            render.out(f"Everything is left in {stage.folder}: harness.yaml, the store, the log, the workspaces.")


def read_mix(text: str) -> dict[str, Any]:
    """`overloaded=10%,network=5%` as the service takes it. Raises Problem."""
    words = {"network": {"reset": True}, "cut": {"cut_after": 4}}
    known = ("rate_limited", "overloaded", "server_error", "timeout", "unavailable", *words)
    rates = []
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        try:
            p = float(share.removesuffix("%")) / 100
        except ValueError:
            p = -1.0
        if name not in known or not 0 <= p <= 1:
            raise Problem(USAGE, f'"{part}" is not a fault with a share.', f"Write NAME=10%; names: {', '.join(known)}")
        rates.append({"p": p, "do": words.get(name, name)})
    return {"seed": 7, "rate": rates}


class Show:
    """Plays the three tasks and tells what happens."""

    def __init__(self, stage: Stage, began: float) -> None:
        self._stage = stage
        self._began = began
        self._names: dict[str, str] = {}
        self._seen = 0
        self._turns: Counter[str] = Counter()
        self._met: dict[str, list[str]] = {name: [] for name in SCRIPTS}
        self._ended: dict[str, Mapping[str, Any]] = {}

    def play(self, mix: dict[str, Any] | None) -> int:
        """The whole show; 0 if all three tasks completed and the files say so too."""
        stage = self._stage
        self._tell("", "A simulated model service starts on loopback; nothing leaves this machine.")
        stage.start_service(mix)
        spaces = stage.lay_out()
        stage.tell_service(hold={"model": _KILLED, "turn": _KILLED_AT})
        client = stage.start_daemon()
        self._tell("", f"harnessd runs (pid {stage.daemon_pid}). Three tasks are submitted:")
        for name, space in spaces.items():
            body = {"prompt": _PROMPTS[name], "agent": name, "workspace": str(space), "key": name}
            task = client.post("/v1/tasks", body)
            self._names[str(task.get("id") or task.get("task"))] = name
            self._tell(name, f'"{_PROMPTS[name]}"')
        client = self._crash(client)
        self._follow(client, until=lambda: len(self._ended) == len(SCRIPTS))
        rows = {name: client.get(f"/v1/tasks/{task}") for task, name in self._names.items()}
        return self._sum_up(rows, spaces)

    def _crash(self, client: Client) -> Client:
        """Follow until the model is asked for the held turn, then kill -9 and start again."""
        self._follow(client, until=lambda: self._turns[_KILLED] >= _KILLED_AT and self._held())
        gone = self._stage.kill_daemon()
        self._met[_KILLED].append("kill -9 of the daemon")
        self._tell("", f"kill -9 {gone}: the daemon is dead, in the middle of a model call of {_KILLED}.")
        self._stage.tell_service(release=True)
        client.close()
        again = self._stage.start_daemon()
        self._tell("", f"harnessd runs again (pid {self._stage.daemon_pid}) and takes its tasks up by itself.")
        return again

    def _held(self) -> bool:
        return bool(self._stage.service_counts().get("held"))

    def _follow(self, client: Client, until: Any) -> None:
        while not until():
            if time.monotonic() - self._began > TOTAL_S:
                raise Problem(
                    FAILED, f"The demo did not end within {TOTAL_S:g} s.", "Run it with --keep and read the log."
                )
            before = self._seen
            for frame in client.stream([("after", self._seen)]):
                if isinstance(frame.data, dict) and "seq" in frame.data:
                    self._seen = frame.data["seq"]
                    self._event(frame.data)
            if self._seen == before:
                time.sleep(0.05)

    def _event(self, event: Mapping[str, Any]) -> None:
        name = self._names.get(str(event.get("task")))
        kind = str(event["type"])
        if name is None or kind not in _SHOWN:
            return
        if kind == "assistant":
            self._turns[name] += 1
        if kind == "retry_wait":
            self._met[name].append(f"{_data(event, 'class') or 'a fault'} of the model service, waited out")
        if kind == "tool_result" and _data(event, "is_error"):
            self._met[name].append("a failed tool call, corrected by the model")
        if kind in ("task_completed", "task_stopped"):
            self._ended[name] = event
        self._tell(name, event_line(event).split("  ", 1)[-1])

    def _tell(self, name: str, words: str) -> None:
        stamp = f"{time.monotonic() - self._began:5.1f}s"
        render.out(render.cut(f"{stamp}  {render.pad(name, 9)} {words}", render.terminal_width() or 160))

    def _sum_up(self, rows: Mapping[str, Mapping[str, Any]], spaces: Mapping[str, Path]) -> int:
        good = 0
        table: list[list[object]] = []
        for name, row in rows.items():
            claim, check = _CHECKS[name]
            on_disk = subprocess.run(check, cwd=spaces[name], capture_output=True, check=False).returncode == 0
            good += on_disk and row["state"] == "completed"
            met = "; ".join(dict.fromkeys(self._met[name])) or "nothing"
            table.append([name, row["state"], met, f"{claim}: {'yes' if on_disk else 'NO'}"])
        render.out()
        render.out_lines(render.table(table, head=("TASK", "STATE", "MET", "ON DISK")))
        counts = self._stage.service_counts()
        render.out()
        render.out(
            f"{good} of {len(rows)} tasks done: availability {good / len(rows):.0%}. The model service answered "
            f"{counts.get('total', 0)} requests, {counts.get('faults', {}).get('total', 0)} of them with a fault."
        )
        return 0 if good == len(rows) else FAILED


def _data(event: Mapping[str, Any], name: str) -> Any:
    data = event.get("data")
    return data.get(name) if isinstance(data, Mapping) else None
