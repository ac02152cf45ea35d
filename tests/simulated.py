"""The simulator as a process for tests: started on a free port of loopback, asked, ordered about, and seen to end.

async with simulator({"m": {"turns": [{"say": "Hello."}]}}) as service:
    ...  # point a client at service.url
    assert (await service.requests())["total"] == 1
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START_S = 20.0


@dataclass(frozen=True, slots=True)
class SimulatedService:
    """A running simulator. `*_now` are for synchronous tests; the others do not block the loop."""

    url: str
    pid: int

    def ask_now(self, method: str, path: str, body: Any = None) -> Any:
        """One request to the service's own routes; the JSON of the answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None

    def requests_now(self, last: int = 200, *, shown: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = self.ask_now("GET", f"/requests?last={last}{'&shown=1' if shown else ''}")
        return found

    def control_now(self, **order: Any) -> dict[str, Any]:
        done: dict[str, Any] = self.ask_now("POST", "/control", order)
        return done

    def reset_now(self) -> None:
        self.ask_now("POST", "/reset", {})

    async def requests(self, last: int = 200, *, shown: bool = False) -> dict[str, Any]:
        """Counts, violations, refusals and the last entries; with `shown`, what the model was shown each time."""
        return await asyncio.to_thread(self.requests_now, last, shown=shown)

    async def control(self, **order: Any) -> dict[str, Any]:
        """`hold=True`, `release=True | N`, `faults={...}`, `clear_faults=True`, `scripts={...}`."""
        return await asyncio.to_thread(self.control_now, **order)

    async def reset(self) -> None:
        await asyncio.to_thread(self.reset_now)

    async def wait_until(self, fits: Callable[[dict[str, Any]], bool], timeout_s: float = 10.0) -> dict[str, Any]:
        """Wait until what `GET /requests` says fits."""
        ends = time.monotonic() + timeout_s
        while not fits(seen := await self.requests()):
            assert time.monotonic() < ends, f"not within {timeout_s} s: {json.dumps(seen)[:2000]}"
            await asyncio.sleep(0.02)
        return seen

    async def wait_held(self, count: int = 1, timeout_s: float = 10.0) -> dict[str, Any]:
        """Wait until that many answers are kept back."""
        return await self.wait_until(lambda seen: seen["held"] >= count, timeout_s)


def command(scripts: Sequence[str | os.PathLike[str]] = (), *arguments: str) -> list[str]:
    """The command line that starts the simulator."""
    options = [word for path in scripts for word in ("--scripts", os.fspath(path))]
    # The kernel's parent-death signal follows the *thread* that started the child: start it from one that lives on.
    return [sys.executable, "-m", "harnessd.simulator", "--port", "0", "--die-with-parent", *options, *arguments]


@contextlib.contextmanager
def running_simulator(
    scripts: Mapping[str, Any] | str | os.PathLike[str] | None = None, *arguments: str
) -> Iterator[SimulatedService]:
    """Start, wait for the address, hand out, stop, and see that the process is gone.

    `scripts`: a map of model name to script, or the path of a file or folder; the shipped ones are always there.
    """
    paths = [scripts] if isinstance(scripts, (str, os.PathLike)) else []
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command(paths, *arguments), cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), f"the simulator said {line!r}"
        service = SimulatedService(line.split()[-1], process.pid)
        if isinstance(scripts, Mapping):
            service.control_now(scripts={"models": dict(scripts)})
        yield service
    finally:
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(START_S)
            raise
        finally:
            process.stdout.close()
    assert process.returncode == 0, f"the simulator ended with {process.returncode}"


@contextlib.asynccontextmanager
async def simulator(
    scripts: Mapping[str, Any] | str | os.PathLike[str] | None = None, *arguments: str
) -> AsyncIterator[SimulatedService]:
    """The same for asynchronous tests; the start blocks the loop for the few tenths of a second it takes."""
    with running_simulator(scripts, *arguments) as service:
        yield service
