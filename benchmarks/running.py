"""A daemon of ours with nothing to do, for the benches that need one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(sys.executable).parent
READY_S = 20.0
# The model is never called: nothing is submitted.
CONFIGURATION = """\
store: {{url: "sqlite:{folder}/state/harnessd.db"}}
socket: {{path: {folder}/api.sock}}
policies: {{dir: {folder}/policies}}
workspaces: {{roots: [{folder}/work]}}
models:
  primary:
    {{protocol: anthropic, base_url: "http://127.0.0.1:9", model: unused, window: 200k, max_output: 8192, prices: free}}
agents:
  idle: {{model: primary, system: "Nothing is to be done.", tools: [bash, read_file]}}
default_agent: idle
"""


@dataclass(frozen=True, slots=True)
class Running:
    """A daemon and where it listens."""

    pid: int
    socket: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to reach it."""
        return os.environ | {"HARNESSD_SOCKET": str(self.socket)}


@contextmanager
def idle_daemon() -> Iterator[Running]:
    """Start a daemon, wait until it answers, end it by SIGTERM."""
    # A socket's path has at most 107 bytes, so not below the working folder.
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        (folder / "policies").mkdir()
        (folder / "work").mkdir()
        (folder / "harness.yaml").write_text(CONFIGURATION.format(folder=folder), encoding="utf-8")
        log = folder / "log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                [PROGRAMS / "harnessd", "run", "--config", folder / "harness.yaml"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        running = Running(child.pid, folder / "api.sock")
        try:
            await_ready(child, running, log)
            yield running
        finally:
            child.terminate()
            child.wait(timeout=30)


def await_ready(child: subprocess.Popen[bytes], running: Running, log: Path) -> None:
    """Return once `harnessctl status --ready` says so."""
    until = time.monotonic() + READY_S
    while child.poll() is None and time.monotonic() < until:
        if running.socket.exists():
            asked = subprocess.run(
                [PROGRAMS / "harnessctl", "status", "--ready"],
                env=running.environment, capture_output=True, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if asked.returncode == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the daemon did not get ready:\n{log.read_text(errors='replace')[-2000:]}")
