"""No descriptor is left: the daemon stays up, says so now and then, and goes on when there are some again."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from pathlib import Path

import pytest

from harnessd.cli.client import Problem
from tests.running import running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

SCRIPT = {
    "m": {
        "turns": [
            {
                "when": {"results": {"max": 3}},
                "call": {"tool": "bash", "args": {"command": "echo x >> out; sleep 0.3"}},
            },
            {"say": "Done."},
        ]
    }
}


def test_a_daemon_without_descriptors_recovers_by_itself(tmp_path: Path) -> None:
    # F18, I4, I10
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon, contextlib.ExitStack() as held:
        daemon.configure(settings(tmp_path, service.url, {"m": "anthropic"}))
        client = daemon.start()
        assert daemon.process is not None
        pid = daemon.process.pid
        before = daemon.submit(client, prompt="Work.", agent="m", workspace=str(daemon.workspace("a")))
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        allowed = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 4, allowed[1]))
        # Connections that nobody gives back: accepted while there are descriptors, then left waiting.
        for _ in range(40):
            one = held.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(daemon.socket)
        time.sleep(4.0)
        assert daemon.process.poll() is None, daemon.log
        flood = len(daemon.log.splitlines())
        assert flood < 60, daemon.log[-4000:]
        assert daemon.log.count("no_descriptors") == 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, allowed)
        held.close()
        ends = time.monotonic() + 60
        while True:
            with contextlib.suppress(Problem, OSError):
                after = daemon.submit(client, prompt="Work.", agent="m", workspace=str(daemon.workspace("b")))
                break
            assert time.monotonic() < ends, daemon.log
        for task, name in ((before, "a"), (after, "b")):
            row = daemon.until_ended(client, task)
            assert row["state"] == "completed", row
            assert (daemon.workspace(name) / "out").read_text() == "x\n" * 4
        assert "Traceback" not in daemon.log, daemon.log[-4000:]
