"""Stage of the demo: a simulated model service and a daemon, both real processes, in a folder of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from harnessd.cli.client import FAILED, USAGE, Client, Problem

READY_S = 20.0
# What the demo's tasks show. Model name of the simulator's script -> wire protocol it is called by.
SCRIPTS = {"report": "anthropic", "fix-test": "anthropic", "mend": "openai-chat"}
_ADDRESS = re.compile(r"listening on (http://\S+)")
_PLAIN = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")


class Stage:
    """Starts, kills and ends the processes of the demo; nothing outlives `close`."""

    def __init__(self, keep: Path | None) -> None:
        """Everything lies in `keep`, or in a scratch folder that is removed at the end."""
        self._scratch = keep is None
        self.folder = Path(tempfile.mkdtemp(prefix="harnessd-demo-")) if keep is None else keep.resolve()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"{self.folder} cannot be made: {error.strerror or error}."
            raise Problem(USAGE, what, "Write --keep with a folder that is yours.") from None
        self.url = ""
        self._service: subprocess.Popen[str] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None
        # A socket path holds 107 bytes at most, and --keep may lie deep.
        self._sockets = Path(tempfile.mkdtemp(prefix="hd-"))
        self.socket = str(self._sockets / "api.sock")

    @property
    def daemon_pid(self) -> int:
        """The daemon's process id, 0 if none runs."""
        return self._daemon.pid if self._daemon is not None else 0

    def start_service(self, faults: dict[str, Any] | None) -> None:
        """The simulated model service, on a free port of 127.0.0.1."""
        command = [sys.executable, "-m", "harnessd.simulator", "--port", "0", "--die-with-parent"]
        self._service = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=_environment()
        )
        assert self._service.stdout is not None  # noqa: S101 - asked for above
        line = self._service.stdout.readline()
        found = _ADDRESS.search(line)
        if found is None:
            raise Problem(FAILED, "The simulated model service did not start.", "Run: python -m harnessd.simulator")
        self.url = found.group(1)
        if faults:
            self.tell_service(faults={"model": "*", **faults})

    def lay_out(self) -> dict[str, Path]:
        """A scratch workspace for each task, filled by its script, and the harness.yaml that knows them."""
        work = self.folder / "work"
        spaces = {}
        for name in SCRIPTS:
            space = work / name
            space.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "harnessd.simulator", "--lay-out", name, str(space)]
            subprocess.run(command, check=True, capture_output=True, env=_environment())
            spaces[name] = space
        (self.folder / "harness.yaml").write_text(_configuration(self.url, self.socket, work), encoding="utf-8")
        return spaces

    def start_daemon(self) -> Client:
        """The daemon; gives a client once it answers."""
        log = (self.folder / "harnessd.log").open("ab")
        self._daemon = subprocess.Popen(
            [sys.executable, "-m", "harnessd", "run", "--config", str(self.folder / "harness.yaml")],
            stdout=log,
            stderr=log,
            env=_environment(),
            cwd=self.folder,
            start_new_session=True,
        )
        log.close()
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self._daemon.poll() is None:
            client = Client(self.socket)
            try:
                client.get("/v1/status")
            except Problem:
                client.close()
                time.sleep(0.05)
                continue
            return client
        last = (self.folder / "harnessd.log").read_text(errors="replace").strip().splitlines()[-1:]
        raise Problem(
            FAILED, f"The demo's daemon did not start: {' '.join(last)}", "Run it with --keep DIR for the log."
        )

    def kill_daemon(self) -> int:
        """SIGKILL, as `kill -9` sends it; gives the process id that is gone."""
        if self._daemon is None:
            return 0
        pid = self._daemon.pid
        self._daemon.send_signal(signal.SIGKILL)
        self._daemon.wait()
        self._daemon = None
        return pid

    def tell_service(self, **wish: Any) -> None:
        """Change what the service does: hold answers back, let them go, add faults."""
        self._ask("/control", json.dumps(wish).encode())

    def service_counts(self) -> dict[str, Any]:
        """What the service has seen."""
        counts: dict[str, Any] = self._ask("/requests")
        return counts

    def close(self) -> None:
        """End both processes and remove the scratch folder."""
        for process in (self._daemon, self._service):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if self._service is not None and self._service.stdout is not None:
            self._service.stdout.close()
        shutil.rmtree(self._sockets, ignore_errors=True)
        if self._scratch:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data=body, headers=headers)  # noqa: S310 - our own loopback
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as answer:
            return json.loads(answer.read() or b"{}")


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _PLAIN if name in os.environ}


def _configuration(url: str, socket: str, work: Path) -> str:
    document = {
        "store": {"url": "sqlite:state/harnessd.db"},
        "socket": {"path": socket},
        "workers": 4,
        "workspaces": {"roots": [str(work)], "mode": "in_place"},
        "models": {
            name: {
                "protocol": protocol,
                "base_url": url + ("/v1" if protocol == "openai-chat" else ""),
                "model": name,
                "window": 200_000,
                "max_output": 4096,
                "prices": {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75},
            }
            for name, protocol in SCRIPTS.items()
        },
        "agents": {
            name: {"model": name, "system": "You are a careful engineer. Look before you act."} for name in SCRIPTS
        },
        "default_agent": "report",
    }
    # JSON is YAML: no YAML library is needed to write it.
    return json.dumps(document, indent=2) + "\n"
