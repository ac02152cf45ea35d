"""A control server over a real Unix socket and a real store, in a thread of its own, for tests of API and client.

`FakeDaemon` stands for the running daemon: the world's edge of the control API.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import History, Refused, Submitted
from harnessd.domain.record import ChangeTask, Record
from harnessd.domain.task import Lease, TaskDraft, Verb
from harnessd.runtime.control import Lineage, Told, listen, serve
from harnessd.runtime.drafts import Known, draft_from
from harnessd.stores import SqlStore, open_store

T = TypeVar("T")
LIMITS: Mapping[str, float | None] = {"tool_calls": 90, "turns": 120, "tokens": 2_000_000, "cost_usd": 5.0}


class Clock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass
class FakeDaemon:
    """Behaves as `Live`: knows two agents, remembers what it was told."""

    known: Known
    lineage: Lineage | None = None
    pragmas: Sequence[str] = ()
    woken: int = 0
    told: list[tuple[str, Told]] = field(default_factory=list)
    faults: list[HarnessError] = field(default_factory=list)
    doing: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    started_at: float = field(default_factory=time.time)

    def wake(self) -> None:
        self.woken += 1

    def tell(self, task: str, what: Told, by: str = "") -> None:
        del by
        self.told.append((task, what))

    def lost(self, fault: HarnessError) -> None:
        self.faults.append(fault)

    def progress(self, task: str) -> Mapping[str, Any] | None:
        return self.doing.get(task)

    def status(self) -> Mapping[str, Any]:
        return {
            "version": "0.0.0",
            "pid": os.getpid(),
            "node": "a1",
            "started_at": self.started_at,
            "ready": True,
            "workers": 32,
            "running": 0,
            "draining": False,
            "warnings": self.warnings,
            "policies": {"revision": 7, "since": self.started_at, "source": "files"},
        }

    def check_draft(self, body: Mapping[str, Any]) -> TaskDraft | Refused:
        return draft_from(body, self.known)

    def effective(self, draft: TaskDraft, task: str | None) -> Mapping[str, Any]:
        return {
            "limits": {**LIMITS, **draft.budget},
            "model": draft.model or self.known.agents[draft.agent],
            "policies": {
                kind: {
                    "name": draft.policies.get(kind, "default"),
                    "why": "asked for" if kind in draft.policies else "",
                }
                for kind in ("retry", "budget")
            },
            "revision": 7,
        }

    def context(self, history: History) -> Mapping[str, Any] | Refused:
        if history.task.draft.agent not in self.known.agents:
            return Refused("refused", f"Agent {history.task.draft.agent!r} is no longer in harness.yaml.")
        return {"model": "primary", "window": 200_000, "tokens": 1_000}

    def policies(self) -> Mapping[str, Any]:
        return {"revision": 7, "hash": "0" * 64, "since": self.started_at, "source": "files", "hold": False}

    async def reload_policies(self, *, by: str, note: str, yes: bool, expect: str) -> Mapping[str, Any] | Refused:
        return {"result": "unchanged", "revision": 7, "sentence": "Nothing changed.", "problems": [], "stops": []}

    async def revert_policies(self, number: int, *, by: str, note: str) -> Mapping[str, Any] | Refused:
        if number != 7:
            return Refused("not_found", f"There is no revision r{number}.")
        return {"result": "in_force", "revision": 7, "sentence": "r7 is in force.", "problems": [], "stops": []}

    async def test_channel(self, name: str, *, by: str) -> Mapping[str, Any] | Refused:
        if name != "log":
            return Refused("not_found", f"There is no channel {name}.", "There are: log.")
        return {"channel": name, "delivered": True, "said": f"told by {by}"}

    def standing(self) -> Sequence[Mapping[str, Any]]:
        return ()


class FakeDependencies:
    """Behaves as `Dependencies`: one model, one tool, both well."""

    def breakers(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": "model/primary", "state": "closed"}]

    async def trip(self, name: str, for_s: float, by: str, note: str) -> Mapping[str, Any] | Refused:
        return {"name": name, "state": "tripped", "why": f"by {by}: {note}", "next": f"probe in {for_s:g}s"}

    async def reset(self, name: str, by: str, note: str) -> Mapping[str, Any] | Refused:
        return {"name": name, "state": "closed", "why": f"by {by}: {note}", "next": ""}

    def models(self) -> Sequence[Mapping[str, Any]]:
        return [{"model": "primary"}]

    async def check_model(self, alias: str) -> Mapping[str, Any] | Refused:
        return {"model": alias, "ok": True}

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return [{"tool": "bash"}]

    async def check_tool(self, name: str) -> Mapping[str, Any] | Refused:
        return {"tool": name, "ok": True}


@dataclass
class ControlServer:
    """A running server. `do` runs a coroutine in its loop, where the store lives."""

    socket: Path
    workspace: Path
    store: SqlStore
    daemon: FakeDaemon
    stop: asyncio.Event
    loop: asyncio.AbstractEventLoop
    leases: dict[str, Lease] = field(default_factory=dict)
    round: asyncio.Event = field(default_factory=asyncio.Event)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def submit(self, prompt: str = "Port the importer", **fields: Any) -> str:
        """Queue a task without the API; gives its id."""
        # A folder of its own: a task that has not ended holds its workspace.
        place = Path(tempfile.mkdtemp(prefix="ws-", dir=self.workspace.parent))
        draft = TaskDraft(prompt=prompt, agent="coder", workspace=str(place), **fields)
        submitted = self.do(self.store.submit(draft, time.time()))
        assert isinstance(submitted, Submitted)
        return submitted.task.id

    def run(self, task: str) -> Lease:
        """Lease a queued task, as a worker does."""
        for claimed in self.do(self.store.claim("a1", 100, time.time(), 20.0)):
            if claimed.lease:
                self.leases[claimed.id] = claimed.lease
        return self.leases.pop(task)

    def record(self, lease: Lease, *records: Record) -> None:
        """Commit one unit of work of a running task."""
        self.do(self.store.record(lease, records, time.time(), 7))

    def end(self, task: str, verb: Verb = Verb.COMPLETE, **change: Any) -> None:
        """Lease a task and end it at once."""
        self.record(self.run(task), ChangeTask(verb, **change))

    def restart(self) -> None:
        """Close the control socket for half a second, as a restart does."""
        self.loop.call_soon_threadsafe(self.round.set)

    def cli(self, *words: str, stdin: str | bytes = "", env: Mapping[str, str] | None = None) -> Ran:
        """Run the real `harnessctl` as a process of its own."""
        return harnessctl(*words, socket=self.socket, cwd=self.workspace, stdin=stdin, env=env)


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str


def client_environment(socket: Path | None, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a client's process sees: nothing of ours but where to look."""
    base = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8", "TZ": "UTC"}
    place = {"HARNESSD_SOCKET": str(socket)} if socket else {}
    return {**base, **place, **(env or {})}


CLIENT = (sys.executable, "-c", "from harnessd.cli import harnessctl; harnessctl()")


def harnessctl(
    *words: str,
    socket: Path | None,
    cwd: Path,
    stdin: str | bytes = "",
    env: Mapping[str, str] | None = None,
) -> Ran:
    given = stdin.encode() if isinstance(stdin, str) else stdin
    root = Path(__file__).resolve().parents[1]
    environment = client_environment(socket, {"PYTHONPATH": str(root), **(env or {})})
    done = subprocess.run(
        [*CLIENT, *words], input=given, capture_output=True, cwd=cwd, env=environment, timeout=30, check=False
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@contextmanager
def control_server(
    lineage: Lineage | None = None, pragmas: Sequence[str] = (), **known: Any
) -> Iterator[ControlServer]:
    """A server in a short folder of its own (a socket path holds 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="hd-") as place:
        folder = Path(place).resolve()
        workspace = folder / "ws"
        workspace.mkdir()
        defaults: dict[str, Any] = {
            "agents": {"coder": "primary", "crawler": "second"},
            "models": ("primary", "second"),
            "default_agent": "coder",
            "policies": {"retry": ("default", "strict"), "budget": ("default", "long")},
            "protected": (folder / "state", folder / "run"),
        }
        daemon = FakeDaemon(Known(**{**defaults, **known}), lineage, pragmas)
        ready: list[ControlServer] = []
        started = threading.Event()
        thread = threading.Thread(
            target=lambda: asyncio.run(_run(folder, workspace, daemon, ready.append, started)),
            name="control",
            daemon=True,
        )
        thread.start()
        assert started.wait(10)
        server = ready[0]
        try:
            yield server
        finally:
            server.loop.call_soon_threadsafe(server.stop.set)
            thread.join(10)
            assert not thread.is_alive()


async def _run(
    folder: Path,
    workspace: Path,
    daemon: FakeDaemon,
    ready: Callable[[ControlServer], None],
    started: threading.Event,
) -> None:
    store = open_store(folder / "state" / "harnessd.db", pragmas=daemon.pragmas)
    await store.open("a1")
    path = folder / "run" / "api.sock"
    server = ControlServer(path, workspace, store, daemon, asyncio.Event(), asyncio.get_running_loop())
    ready(server)
    try:
        while not server.stop.is_set():
            round_ = server.round = asyncio.Event()
            ending = asyncio.ensure_future(_either(server.stop, round_))
            listener, lineage = listen(path), daemon.lineage
            await serve(
                listener,
                store,
                daemon,
                round_,
                clock=Clock(),
                uid=os.geteuid(),
                started=started.set,
                lineage=lineage,
                dependencies=FakeDependencies(),
            )
            await ending
            if not server.stop.is_set():
                await asyncio.sleep(0.5)
    finally:
        await store.close()


async def _either(stop: asyncio.Event, round_: asyncio.Event) -> None:
    """The round ends with the whole."""
    waiting = [asyncio.ensure_future(event.wait()) for event in (stop, round_)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()
    round_.set()
