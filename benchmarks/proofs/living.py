"""Living: one state folder through many lives of its daemon, with the persons and clients around it.

Everything that is asked goes through the history; the daemon may die at any request. Whoever got no answer asks again
with the same key, as a client would.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.proofs import invariants
from benchmarks.proofs.history import Classes, History, classify
from benchmarks.proofs.outside import Outside
from benchmarks.proofs.scripts import ACTS, POLICIES, STEPS, TURNS, configuration
from benchmarks.proofs.snapshot import Snapshot, read
from benchmarks.proofs.warm import Forked, Warm
from harnessd.cli.client import Client, Problem
from tests.running import Running, plain_environment

ENDED = ("completed", "stopped")
BULK = "one more line of a long report, read and forgotten\n" * 320
BULKS = 12  # files, so that no two reads are the same call
READY_S = 60.0
# 2 x the lease's time: what the invariants give a task to move again after the last fault.
HEAL_S = 40.0


class Died(Exception):  # noqa: N818 - the event that the sweep waits for
    """The daemon is gone, or refuses because it is going."""


@dataclass
class Living:
    """A folder, its daemon of the moment, and what was recorded."""

    running: Running
    warm: Warm
    outside: Outside
    history: History = field(default_factory=History)
    process: Forked | None = None
    client: Client | None = None
    tasks: dict[str, str] = field(default_factory=dict)  # run -> task, once acknowledged
    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)
    start_s: float = 0.15  # what the newest start took that was waited for

    @property
    def state(self) -> Path:
        """Where the daemon's state lies."""
        return self.running.folder / "state"

    # --- lives --------------------------------------------------------------------------------------------------------

    def spawn(self, **environment: str) -> None:
        """Begin a life; nobody waits for it."""
        self.history.life += 1
        log = self.running.folder / "harnessd.log"
        self.process = self.warm.start(self.running.config, log, plain_environment() | environment)

    def await_ready(self) -> None:
        """Until it answers. Raises Died where it ended before."""
        begun = time.monotonic()
        until = begun + READY_S
        while not _answers(self.running.socket):
            if self.gone():
                raise Died
            assert time.monotonic() < until, f"not ready within {READY_S} s:\n{self.running.log[-3000:]}"
            time.sleep(0.004)
        self.start_s = time.monotonic() - begun
        self.client = Client(self.running.socket)

    def gone(self) -> bool:
        """Whether the daemon has ended."""
        return self.process is None or self.process.poll() is not None

    def kill_after(self, seconds: float) -> threading.Timer:
        """SIGKILL from another thread at that moment, whatever is being asked then."""
        assert self.process is not None
        timer = threading.Timer(seconds, os.kill, (self.process.pid, signal.SIGKILL))
        timer.daemon = True
        timer.start()
        return timer

    def kill(self, how: str) -> None:
        """SIGKILL, unless it has died already; either way its end must be a SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self._over()
        status = self.process.returncode
        assert status == -signal.SIGKILL, f"{how}: ended by itself with {status}:\n{self.running.log[-3000:]}"
        self.history.kills.append(how)

    def stop(self) -> int:
        """SIGTERM, and its status."""
        assert self.process is not None
        self.process.send(signal.SIGTERM)
        status = self.process.wait()
        self._over()
        return status

    def _over(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    # --- what persons and programs do ---------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """A look. Raises Died."""
        return self._do("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """A request. Raises Died; Problem where it is refused."""
        return self._do("POST", path, body)

    def _do(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        assert self.client is not None
        try:
            return self.client.get(path) if method == "GET" else self.client.post(path, dict(body or {}))
        except Problem as problem:
            if problem.exit_code == 3 or "drain" in problem.message or self._dying():
                raise Died from None
            raise

    def _dying(self) -> bool:
        """The kernel may need a moment between a closed socket and an end that can be collected."""
        until = time.monotonic() + 0.05
        while not self.gone():
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True

    def submit(self, run: str, agent: str, **more: Any) -> str:
        """Submit, or submit again what got no answer."""
        body = self.bodies.get(run)
        if body is None:
            space = self.running.workspace(run)
            if agent == "bulky":
                for number in range(BULKS):
                    (space / f"bulk-{number}.txt").write_text(f"report {number}\n{BULK}")
            body = {"prompt": f"Do your acts, run {run}.", "agent": agent, "workspace": str(space), "key": run, **more}
            self.bodies[run] = body
        acts = [f"{run}-a{number}" for number in range(1, ACTS.get(agent, 0) + 1)]
        about = {"agent": agent, "acts": acts}
        asked = self.history.ask("submit", run, about, lambda: self.post("/v1/tasks", body))
        assert asked.answer is not None
        self.tasks[run] = str(asked.answer["task"])
        return self.tasks[run]

    def submit_again(self) -> None:
        """Clients that got no answer ask again with their keys."""
        for run, body in list(self.bodies.items()):
            if run not in self.tasks:
                self.submit(run, str(body["agent"]))

    def tend(self) -> dict[str, Mapping[str, Any]]:
        """Persons look once: questions are answered by the truth, what is paused is resumed; the rows."""
        for question in self.get("/v1/inbox")["questions"]:
            self._answer(question)
        rows = {str(row["task"]): row for row in self.get("/v1/tasks?limit=1000")["tasks"]}
        for task, row in rows.items():
            self.history.saw_used(task, row)
            if row["state"] == "paused":
                with contextlib.suppress(Problem):
                    self.post(f"/v1/tasks/{task}/resume", {})
        return rows

    def _answer(self, question: Mapping[str, Any]) -> None:
        task, name, choices = question["task"], question["id"], question["choices"]
        if question["kind"] == "outcome":
            choice = "done" if self.outside.by_key[question["data"]["key"]] else "not-done"
        else:
            choice = next(one for one in choices if one not in ("stop", "deny"))
        about = {"task": task, "question": name, "choice": choice}
        with contextlib.suppress(Problem):  # answered before by a request that got no answer
            self.history.ask("answer", name, about, lambda: self.post(f"/v1/inbox/{task}/{name}", {"choice": choice}))

    def look(self, luck: random.Random) -> None:
        """Look at one task's session: what was shown may not be lost."""
        if self.tasks:
            task = self.tasks[luck.choice(sorted(self.tasks))]
            self.history.saw_nodes(task, self.get(f"/v1/tasks/{task}/nodes")["nodes"])

    def policies(self, turns: int) -> Mapping[str, Any]:
        """Write the policies and have them read."""
        self.write_policies(turns)
        note = f"turns {turns}"
        asked = self.history.ask("policy", note, {}, lambda: self.post("/v1/policies/reload", {"note": note}))
        return asked.answer or {}

    def write_policies(self, turns: int = TURNS) -> None:
        """The policy file, put there in one step."""
        folder = self.running.folder / "policies"
        folder.mkdir(exist_ok=True)
        fresh = folder / ".own.yaml"
        fresh.write_text(POLICIES.format(turns=turns))
        fresh.replace(folder / "own.yaml")

    def heal(self) -> None:
        """No more faults: until every task has ended. Raises AssertionError with those that do not (I4)."""
        self.submit_again()
        until = time.monotonic() + HEAL_S
        while True:
            rows = self.tend()
            late = {task: row for task, row in rows.items() if row["state"] not in ENDED}
            if not late:
                return
            if time.monotonic() > until:
                told = [(task, row["state"], row.get("why"), row.get("doing")) for task, row in late.items()]
                raise AssertionError(f"I4: not ended {HEAL_S:g} s after the last fault: {told}")
            time.sleep(0.03)

    # --- the books ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The store as it lies there; the daemon has ended."""
        return read(self.state / "harnessd.db")

    def broken_now(self) -> list[str]:
        """What must hold at every moment, and does not."""
        return invariants.broken(self.history, self.snapshot()) if (self.state / "harnessd.db").exists() else []

    def books(self) -> Classes:
        """After an orderly stop: everything compared with everything."""
        store = self.snapshot()
        found = classify(self.history, store, self.outside, ended=True)
        found.broken += invariants.broken(self.history, store)
        found.broken += invariants.left_over(store, self.running.folder)
        for run, task in self.tasks.items():
            row = store.tasks.get(task)
            if row is not None and row["state"] != "completed":
                found.broken.append(f"I4: {run} ended as {row['state']} {row['reason']}: {row['sentence']}")
            elif row is not None and row["agent"] == STEPS:
                found.broken += _ledger(run, self.running.workspace(run) / "ledger.txt")
        return found


def _ledger(run: str, path: Path) -> list[str]:
    lines = path.read_text().split() if path.exists() else []
    wanted = ["step", "1", "step", "2"]
    return [] if lines == wanted else [f"I3: the ledger of {run} says {' '.join(lines)!r}"]


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as there:
        try:
            there.connect(path)
        except OSError:
            return False
    return True


@contextlib.contextmanager
def living(folder: Path, warm: Warm, outside: Outside, url: str) -> Iterator[Living]:
    """A folder with its configuration; whatever still runs is ended at the end."""
    sockets = Path(tempfile.mkdtemp(prefix="hd-"))  # the path of a socket has at most 107 bytes
    running = Running(folder, str(sockets / "api.sock"))
    one = Living(running, warm, outside)
    running.configure(configuration(folder, url))
    one.write_policies()
    (folder / "work").mkdir(exist_ok=True)
    try:
        yield one
    finally:
        if one.client is not None:
            one.client.close()
        if one.process is not None and not one.gone():
            one.process.kill()
        shutil.rmtree(sockets, ignore_errors=True)
