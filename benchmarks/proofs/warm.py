"""Warm starts: daemons forked from one process that has imported harnessd already, so that a sweep can pay for 10,000.

Each is the real program (`harnessd run`), a process of its own with its own files, signals and end; what it does not
do again is start an interpreter and import. `python -m benchmarks.proofs.warm` is that process: one JSON line in, one
out. It has no thread and no loop, so that a fork of it is sound.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Forked:
    """One daemon, with as much of `subprocess.Popen` as is needed of it."""

    pid: int
    warm: Warm
    returncode: int | None = None

    def poll(self) -> int | None:
        """The status once it has ended, negative for a signal."""
        if self.returncode is None:
            self.returncode = self.warm.ask(poll=self.pid)["status"]
        return self.returncode

    def wait(self, timeout_s: float = 60.0) -> int:
        """The status. Raises TimeoutError."""
        until = time.monotonic() + timeout_s
        pause_s = 0.0005
        while (status := self.poll()) is None:
            if time.monotonic() > until:
                raise TimeoutError(f"the daemon {self.pid} did not end within {timeout_s} s")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.02)
        return status

    def send(self, number: int) -> None:
        """A signal; nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and its end."""
        self.send(signal.SIGKILL)
        self.wait()


@dataclass(slots=True)
class Warm:
    """The process that forks."""

    process: subprocess.Popen[str]
    forked: list[Forked] = field(default_factory=list)

    def ask(self, **order: Any) -> dict[str, Any]:
        """One order, one answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process that forks has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start(self, config: Path, log: Path, environment: Mapping[str, str]) -> Forked:
        """Start a daemon; it is not ready yet."""
        answer = self.ask(start={"config": str(config), "log": str(log), "environment": dict(environment)})
        one = Forked(answer["pid"], self)
        self.forked = [other for other in self.forked if other.returncode is None]
        self.forked.append(one)
        return one


@contextlib.contextmanager
def warm(package: Path = ROOT) -> Iterator[Warm]:
    """The process, with the harnessd that lies in `package`; whatever it started is ended with it."""
    environment = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR") if name in os.environ
    }
    environment |= {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, __file__],
        env=environment,
        cwd=package,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = Warm(process)
    try:
        found.ask(ready=True)
        yield found
    finally:
        for one in found.forked:
            with contextlib.suppress(OSError, AssertionError, TimeoutError):
                one.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


# --- the process itself -----------------------------------------------------------------------------------------------


def _become(order: Mapping[str, Any]) -> None:
    """In the child: nothing of the parent is left but its imported modules."""
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 64)
    os.setsid()
    config = Path(order["config"])
    os.chdir(config.parent)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["harnessd", "run", "--config", str(config)]
    status: Any = 70
    try:
        from harnessd.cli import harnessd

        harnessd()
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 - as the interpreter does it: the traceback, and status 1
        import traceback

        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def _status(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def main() -> None:
    """Import everything, then fork on demand."""
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]
    import harnessd.app
    import harnessd.cli.daemon  # noqa: F401
    from harnessd.config.load import shipped

    shipped()  # the defaults are parsed once in a process's life, here in the parent's
    gc.collect()
    gc.freeze()  # no collection of a child walks, and so copies, what all share
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        if "start" in order:
            pid = os.fork()
            if pid == 0:
                _become(order["start"])
            answer["pid"] = pid
        elif "poll" in order:
            answer["status"] = _status(order["poll"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
