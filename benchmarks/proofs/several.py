"""Several: two daemons on one PostgreSQL server that is stopped again and again, while they are killed and paused.

5,000 tasks: none lost, none run twice at the same time, every unknown outcome resolved (G8, G9, F30).

    python benchmarks/proofs/several.py --tasks 5000 --seed 1

The server is Debian's, with its durable settings. Clients submit all the time, to either daemon, and ask again with
their keys where no answer came. Each task acts outside twice, one act a step: by `http_request` or a command, at a
receiver that knows no keys, or at one that honours them. A person is asked where nobody can know, looks into the
books of the world outside, and says the truth. `--pace 0.25` makes everything four times as quick: blows and leases.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.proofs import invariants
from benchmarks.proofs.history import Classes, History, classify
from benchmarks.proofs.nemesis import Nemesis
from benchmarks.proofs.outside import Outside, outside
from benchmarks.proofs.scripts import ACTS, POLICIES, STEPS, TURNS, configuration, scripts
from benchmarks.proofs.snapshot import Snapshot, read_server
from harnessd.cli.client import Client, Problem
from tests.running import Running, running
from tests.simulated import SimulatedService, running_simulator
from tests.stores.postgres_server import Server, programs

NODES = ("a", "b")
TTL_S, SHORTEST_TTL_S = 20.0, 5.0
KINDS = ("payer",) * 4 + ("putter",) * 3 + ("caller",) * 2 + (STEPS,)
RATE = 5.0  # tasks that are submitted a second, at most
OPEN = 60  # at most so many at once
ANSWER_S = 4.0  # a client asks elsewhere then: the daemon may be paused
LOOK_S = 0.5
ACT_S = 0.2  # blows are seconds apart: acts are long enough to be hit
HEAL_TTLS, HEAL_S = 4.0, 90.0  # what tasks get to end once nothing is hurt any more
DATABASE = "store"
ENDED = invariants.ENDED
KEYED = "rules:\n  - {{for: tool/http_request, when: {{arg.method: PUT}}, effect: idempotent}}\n"


@dataclass
class Site:
    """Two daemons, what they share, and what clients and persons remember."""

    server: Server
    nodes: Mapping[str, Running]
    outside: Outside
    service: SimulatedService
    luck: random.Random
    work: Path
    history: History = field(default_factory=History)
    waiting: list[dict[str, Any]] = field(default_factory=list)  # submits that got no answer
    answered: dict[tuple[str, str], str] = field(default_factory=dict)
    shunned: dict[str, float] = field(default_factory=dict)  # node -> until when nobody asks it
    _clients: dict[str, Client] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
        """Ask either daemon; None where it gave no answer, or none that settles anything."""
        now = time.monotonic()
        there = [name for name in NODES if self.shunned.get(name, 0.0) <= now]
        if not there:
            return None
        name = self.luck.choice(there)
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = Client(self.nodes[name].socket)
            client.patience_s = ANSWER_S
        try:
            return client.get(path) if method == "GET" else client.post(path, dict(body or {}))
        except Problem as problem:
            if problem.code in ("not_found", "conflict", "invalid", "bad_request"):
                raise
            self._clients.pop(name).close()
            self.shunned[name] = time.monotonic() + 0.5
            return None

    def submit(self, number: int) -> None:
        """A new task."""
        run, agent = f"r{number}", self.luck.choice(KINDS)
        space = self.work / run
        space.mkdir()
        self._submit({"prompt": f"Do your acts, run {run}.", "agent": agent, "key": run, "workspace": str(space)})

    def submit_again(self) -> None:
        """Clients without an answer ask again with their keys."""
        again, self.waiting = self.waiting, []
        for body in again:
            self._submit(body)

    def _submit(self, body: dict[str, Any]) -> None:
        run, agent = body["key"], body["agent"]
        acts = [f"{run}-a{number}" for number in range(1, ACTS.get(agent, 0) + 1)]
        about = {"agent": agent, "acts": acts}
        with contextlib.suppress(_NoAnswer):
            self.history.ask("submit", run, about, lambda: self._answer_to("POST", "/v1/tasks", body))
            return
        self.waiting.append(body)

    def _answer_to(self, method: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = self.ask(method, path, body)
        if answer is None:
            raise _NoAnswer
        return answer

    def tend(self) -> None:
        """The person looks once: what happened outside is the truth."""
        inbox = self.ask("GET", "/v1/inbox")
        for question in (inbox or {}).get("questions", ()):
            task, name = str(question["task"]), str(question["id"])
            if question["kind"] == "outcome":
                choice = "done" if self.outside.by_key[question["data"]["key"]] else "not-done"
            else:
                choice = next(one for one in question["choices"] if one not in ("stop", "deny"))
            # Once said, it stays said: a second look might see what the first answer brought about.
            choice = self.answered.setdefault((task, name), choice)
            self._say(task, name, choice)

    def _say(self, task: str, name: str, choice: str) -> None:
        about = {"task": task, "question": name, "choice": choice}
        path, body = f"/v1/inbox/{task}/{name}", {"choice": choice}
        with contextlib.suppress(_NoAnswer, Problem):  # Problem: an earlier answer was taken after all
            self.history.ask("answer", name, about, lambda: self._answer_to("POST", path, body))

    def open_tasks(self) -> int | None:
        """How many have not ended, as the server says; None while it is away."""
        try:
            told = self.server.ask("SELECT count(*) FROM tasks WHERE state NOT IN ('completed', 'stopped')", DATABASE)
        except subprocess.CalledProcessError:
            return None
        return int(told)

    def await_all(self, timeout_s: float = 90.0) -> None:
        """Until both daemons answer, or the time is out: what is missing then is told by the books."""
        until = time.monotonic() + timeout_s
        for one in self.nodes.values():
            client = Client(one.socket)
            while time.monotonic() < until:
                with contextlib.suppress(Problem):
                    client.get("/v1/nodes")
                    break
                time.sleep(0.1)
            client.close()

    def close(self) -> None:
        """All connections."""
        for client in self._clients.values():
            client.close()


class _NoAnswer(Exception):  # noqa: N818 - an event
    pass


@contextlib.contextmanager
def site(folder: Path, luck: random.Random, ttl_s: float) -> Iterator[Site]:
    """Server, model service, world outside, and two configured daemons; nothing of it is left at the end."""
    with ExitStack() as stack:
        server = Server(memory=False)
        stack.callback(server.remove)
        server.start()
        server.ask(f"CREATE DATABASE {DATABASE}")
        world = stack.enter_context(outside())
        world.answer_after_s = ACT_S
        service = stack.enter_context(running_simulator(scripts(world)))
        work = folder / "work"
        nodes = {}
        policies = POLICIES.replace("rules:\n", KEYED, 1).format(turns=TURNS)
        for name in NODES:
            (folder / name / "policies").mkdir(parents=True)
            nodes[name] = stack.enter_context(running(folder / name))
            nodes[name].configure(_configuration(nodes[name], service.url, server, work, ttl_s))
            (folder / name / "policies" / "own.yaml").write_text(policies)
        work.mkdir()
        one = Site(server, nodes, world, service, luck, work)
        stack.callback(one.close)
        yield one


def _configuration(one: Running, url: str, server: Server, work: Path, ttl_s: float) -> dict[str, Any]:
    document = configuration(one.folder, url)
    lease = {"ttl": f"{ttl_s:g}s", "heartbeat": f"{ttl_s / 5:g}s"}
    document["store"] = {"url": server.url(DATABASE), "node": one.folder.name, "lease": lease}
    document["workspaces"] = {"roots": [str(work)]}
    return document


def live_through(on: Site, nemesis: Nemesis, tasks: int, rate: float, heal_s: float) -> str:
    """Submit all, hurt all the while, heal; what was not ended in time, in words."""
    begun = looked = time.monotonic()
    submitted, still = 0, 0
    healing_since: float | None = None
    while True:
        now = time.monotonic()
        while submitted < min(tasks, (now - begun) * rate) and still + len(on.waiting) < OPEN:
            on.submit(submitted)
            submitted, still = submitted + 1, still + 1
        if now - looked > LOOK_S:
            looked = now
            on.submit_again()
            on.tend()
            still = OPEN if (told := on.open_tasks()) is None else told
            if submitted == tasks and not on.waiting and still == 0:
                nemesis.calm()
                return ""
        if nemesis.faults:
            return "the run was given up"
        if submitted == tasks and healing_since is None and still < OPEN:
            nemesis.calm()
            healing_since = now
        if healing_since is not None and now - healing_since > heal_s:
            return f"I4: {still} tasks have not ended {heal_s:g} s after the last blow"
        time.sleep(0.02)


# --- the books --------------------------------------------------------------------------------------------------------


def books(on: Site) -> tuple[Classes, Snapshot]:
    """Everything compared with everything, after both daemons were stopped in order."""
    store = read_server(lambda text: on.server.ask(text, DATABASE))
    found = classify(on.history, store, on.outside, ended=True)
    found.broken += invariants.broken(on.history, store)
    found.broken += invariants.left_over(store, on.nodes["a"].folder)
    found.broken += [f"I9: process {pid} lives on" for pid in invariants.processes(on.nodes["b"].folder / "state")]
    found.broken += [
        f"I4: {row['key']} ended as {row['state']} {row['reason']}: {row['sentence']}"
        for row in store.tasks.values()
        if row["state"] != "completed"
    ]
    found.broken += [
        f"G7: {task} {name} was asked and never answered: {row['sentence']}"
        for (task, name), row in store.questions.items()
        if row["choice"] is None
    ]
    found.broken += [*_leases(store), *_windows(on.outside), *_ledgers(on, store)]
    seen = on.service.requests_now(last=1)
    found.broken += [f"I5: the service objects to {entry}" for entry in (*seen["violations"], *seen["refusals"])]
    return found, store


def _leases(store: Snapshot) -> Iterator[str]:
    """From `started` to what ends it: one at a time, each under an epoch of its own."""
    holds: dict[str, str] = {}
    times: Counter[str] = Counter()
    for event in store.events:
        task, data = event["task"], json.loads(event["data"])
        if event["type"] == "started":
            if task in holds:
                yield f"I11: {task} was given to {data['owner']} while {holds[task]} had it"
            holds[task] = data["owner"]
            times[task] += 1
        elif event["type"] in invariants.GIVES_UP:
            if event["type"] == "interrupted" and data["owner"] != holds.get(task):
                yield f"I11: {task} was taken from {data['owner']} while {holds.get(task)} had it"
            holds.pop(task, None)
    for task, row in store.tasks.items():
        if times[task] != row["epoch"]:
            yield f"I11: {task} was given out {times[task]} times, and its epoch is {row['epoch']}"


def _windows(world: Outside) -> Iterator[str]:
    """From a request's arrival to its answer: a task that is at work twice at the same time shows here."""
    until: dict[str, tuple[float, str]] = {}
    for name, came, answered in sorted(world.windows, key=lambda one: one[1]):
        run = name.rsplit("-", 1)[0]
        if run in until and came < until[run][0]:
            yield f"I11: {name} came while {until[run][1]} was not answered: two were at work on {run}"
        until[run] = (answered, name)


def _ledgers(on: Site, store: Snapshot) -> Iterator[str]:
    for row in store.tasks.values():
        if row["agent"] == STEPS:
            path = on.work / str(row["key"]) / "ledger.txt"
            lines = path.read_text().splitlines() if path.exists() else []
            if lines != ["step 1", "step 2"]:
                yield f"I3: the ledger of {row['key']} says {lines}"


def run(tasks: int, seed: int, pace: float, rate: float = RATE, *, keep: Path | None = None) -> tuple[str, list[str]]:
    """One run: its line of sums, and one line for each broken promise."""
    ttl_s = max(SHORTEST_TTL_S, TTL_S * pace)
    luck = random.Random(seed)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="several-") as place, site(Path(place), luck, ttl_s) as on:
        nemesis = Nemesis(on.server, on.nodes, random.Random(seed + 1), pace, ttl_s)
        nemesis.begin()
        try:
            late = live_through(on, nemesis, tasks, rate, HEAL_S + HEAL_TTLS * ttl_s)
        finally:
            nemesis.calm()
            on.await_all()
            nemesis.end()
            _keep(on, keep)
        stopped = {name: one.stop(60) for name, one in on.nodes.items()}
        found, store = books(on)
        broken = [*nemesis.faults, *([late] if late else []), *found.broken]
        broken += [f"daemon {name} ended with {status} at its stop" for name, status in stopped.items() if status]
        broken += [f"log of {name}: a traceback" for name, one in on.nodes.items() if "Traceback" in one.log]
        refused = sum(one.log.count("lease_lost") for one in on.nodes.values())
        taken = sum(event["type"] == "interrupted" for event in store.events)
        resolved = sum(row["kind"] == "outcome" and bool(row["choice"]) for row in store.questions.values())
        _keep(on, keep)
    line = (
        f"seed {seed}: {tasks} tasks, {len(store.events) + sum(map(len, store.nodes.values()))} events in "
        f"{time.monotonic() - begun:.0f} s; {nemesis.line()}. {found.acknowledged} acknowledged, {found.acts} acts: "
        f"{found.lost} lost, {found.unexpected} unexpected, {found.duplicated} duplicated, {found.recovered} "
        f"recovered; {taken} tasks taken over, {refused} runs cut for a lost lease; {found.in_doubt} unknown outcomes, "
        f"{resolved} resolved by a person; {len(broken)} broken"
    )
    return line, list(dict.fromkeys(broken))


def _keep(on: Site, folder: Path | None) -> None:
    if folder is not None:
        for name, one in on.nodes.items():
            (folder / f"{name}.log").write_text(one.log)
        on.history.dump(folder / "history.jsonl")


def main() -> int:
    """Run it and print its books."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=1.0, help="the time between blows, and a lease's, times this")
    parser.add_argument("--rate", type=float, default=RATE, help="how many tasks are submitted a second, at most")
    parser.add_argument("--keep", type=Path, help="a folder for the daemons' logs and the clients' history")
    asked = parser.parse_args()
    if programs() is None:
        print("There is no PostgreSQL here. Install it: apt-get install postgresql", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a server and two daemons are not left behind
    line, broken = run(asked.tasks, asked.seed, asked.pace, asked.rate, keep=asked.keep)
    for words in broken:
        print(f"  BROKEN {words}")
    print(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
