"""A daemon as a process for tests: from a harness.yaml in its own folder, asked by the real client, killed for real."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessd.cli.client import Client, Problem

START_S = 60.0


def settings(folder: Path, url: str, models: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """A harness.yaml as data: `models` maps alias (and script name) to protocol; each gets an agent of its name."""
    document: dict[str, Any] = {
        "store": {"url": "sqlite:state/harnessd.db"},
        "workers": 8,
        "drain": "5s",
        "policies": {"dir": "policies"},
        "workspaces": {"roots": [str(folder / "work")]},
        "models": {
            name: {
                "protocol": protocol,
                "base_url": url + ("/v1" if protocol == "openai-chat" else ""),
                "model": name,
                "window": "200k",
                "max_output": "4k",
                "prices": "free",
            }
            for name, protocol in models.items()
        },
        "agents": {name: {"model": name, "system": "You are a careful engineer."} for name in models},
        "default_agent": next(iter(models)),
    }
    return document | more


@dataclass(slots=True)
class Running:
    """One daemon's folder, and the process while there is one."""

    folder: Path
    socket: str
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    clients: list[Client] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "harness.yaml"

    @property
    def log(self) -> str:
        return (self.folder / "harnessd.log").read_text(errors="replace")

    def configure(self, document: Mapping[str, Any]) -> None:
        """Write harness.yaml (JSON is YAML)."""
        whole = {**document, "socket": {"path": self.socket}}
        self.config.write_text(json.dumps(whole, indent=1))

    def workspace(self, name: str) -> Path:
        """A workspace below the configured root."""
        space = self.folder / "work" / name
        space.mkdir(parents=True, exist_ok=True)
        return space

    def start(self, **environment: str) -> Client:
        """Start the daemon and wait until it answers."""
        self.spawn(**environment)
        return self.until_up()

    def until_up(self) -> Client:
        """Wait until the process that was started answers."""
        assert self.process is not None
        until = time.monotonic() + START_S
        told = ""
        while time.monotonic() < until:
            client = Client(self.socket)
            try:
                client.get("/v1/status")
            except Problem as problem:
                told = problem.message
                client.close()
                assert self.process.poll() is None, f"the daemon ended with {self.process.returncode}:\n{self.log}"
                time.sleep(0.02)
                continue
            self.clients.append(client)
            return client
        raise AssertionError(f"the daemon did not answer within {START_S} s: {told}\n{self.log}")

    def spawn(self, *arguments: str, **environment: str) -> None:
        """Start the process without waiting."""
        with (self.folder / "harnessd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harnessd", "run", "--config", str(self.config), *arguments],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=plain_environment() | self.environment | environment,
            )

    def kill(self) -> None:
        """kill -9, as an operator or the kernel does it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, timeout_s: float = 20.0) -> int:
        """SIGTERM, and the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout_s)

    def ctl(self, *arguments: str, stdin: str = "", timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """The real harnessctl, as a person calls it."""
        return subprocess.run(
            [sys.executable, "-m", "harnessd.cli", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=plain_environment() | {"HARNESSD_SOCKET": self.socket},
            timeout=timeout_s,
            check=False,
        )

    def ctl_json(self, *arguments: str) -> Any:
        """The same with --json."""
        done = self.ctl(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, client: Client, **body: Any) -> str:
        """Submit over the API; the task's id."""
        answer = client.post("/v1/tasks", body)
        return str(answer["task"])

    def until_ended(self, client: Client, task: str, timeout_s: float = 60.0) -> Mapping[str, Any]:
        """The task's row once it is stopped or completed."""
        return self.until(client, task, ("completed", "stopped"), timeout_s)

    def until(self, client: Client, task: str, states: Sequence[str], timeout_s: float = 60.0) -> Mapping[str, Any]:
        """The task's row once it is in one of the states."""
        row: Mapping[str, Any] = {}
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            row = client.get(f"/v1/tasks/{task}")
            if row["state"] in states:
                return row
            time.sleep(0.02)
        raise AssertionError(f"task {task} is {row.get('state')} after {timeout_s} s: {row}\n{self.log[-4000:]}")


def plain_environment() -> dict[str, str]:
    """No HARNESSD_ variable and no key of the person who runs the tests."""
    keep = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "COVERAGE_PROCESS_START")
    return {name: os.environ[name] for name in keep if name in os.environ}


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Running]:
    """A folder for one daemon; whatever still runs is ended at the end."""
    sockets = Path(tempfile.mkdtemp(prefix="hd-"))  # tmp_path is too deep for a socket (107 bytes)
    daemon = Running(folder, str(sockets / "api.sock"))
    try:
        yield daemon
    finally:
        for client in daemon.clients:
            client.close()
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()
        shutil.rmtree(sockets, ignore_errors=True)
