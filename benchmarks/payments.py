"""Payments: tasks pay a service that charges and loses its answers, while daemons are killed; then the books.

    python benchmarks/payments.py --runs 1000 --seed 1

Each run is one task of a real daemon that pays one invoice, by `http_request` or by a declared command, with or
without a probe. The first request for most invoices goes wrong: no answer, a reset, a 500, before the charge or after
it. The model is told to try again, and does, in another spelling each time. The daemon is killed with SIGKILL at
seeded moments; some tasks are cancelled and resumed, some rolled back and sent again, some have their payment compacted
away and pay once more. Where nobody can know, a person is asked; here he looks into the service's books and says the
truth.

Checked: each invoice is charged at most once, by a service that knows no keys, too; nothing is reported as paid that
was not; each unknown outcome was put to a probe or a person, with its key, its time and what to do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.payment_service import FAULTS
from harnessd.cli.client import Client, Problem
from tests.running import Running, running, settings
from tests.simulated import SimulatedService, running_simulator

HERE = Path(__file__).resolve().parent
BATCH = 40  # tasks of one daemon
# What the journal says of an act whose outcome was lost, whatever was found out later.
_LOST = re.compile("interrupted by a restart|outcome was lost|as the probe found|a person ")
ENDED = ("completed", "stopped")
AGENTS = ("http", "http-probed", "command", "command-probed", "forgetful")
MANNERS = ("plain", "plain", "cancel", "rollback")
PAY = """\
import http.client, json, os, sys
service = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20)
order = json.dumps({"invoice": sys.argv[2], "amount": float(sys.argv[3])})
try:
    service.request("POST", "/pay", order, {"Idempotency-Key": os.environ["HARNESSD_IDEMPOTENCY_KEY"]})
    answer = service.getresponse()
    print(answer.status, answer.read().decode())
except Exception as error:
    sys.exit(f"no answer: {error!r}")
sys.exit(answer.status != 200)
"""
POLICIES = """\
kind: tools
rules:
  - {{for: tool/http_request, when: {{agent: http-probed, arg.method: POST}}, probe: {{tool: tool/http_request,
     arguments: {{method: GET, url: "{url}/charges?key={{key}}"}}, done: {{result.body.count: 1}},
     not_done: {{result.body.count: 0}}}}}}
  - {{for: tool/pay, when: {{agent: command-probed}}, probe: {{tool: tool/http_request,
     arguments: {{method: GET, url: "{url}/charges?key={{key}}"}}, done: {{result.body.count: 1}},
     not_done: {{result.body.count: 0}}}}}}
  - {{for: tool/pay, timeout: {{after: 1s, do: kill}}}}
permissions: [{{name: irreversible, do: allow}}]
---
kind: retry
tool: {{base: 1ms, cap: 50ms}}
---
kind: compaction
reserve: 2k
keep_turns: 1
summary: {{max_tokens: 1k}}
"""


@dataclass(slots=True)
class Books:
    """What was found over all batches."""

    runs: int = 0
    kills: int = 0
    asked: int = 0
    probed: int = 0
    unknown: int = 0
    again: int = 0
    new_ids: int = 0
    compacted: int = 0
    rolled_back: int = 0
    asked_about: set[str] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)
    manners: Counter[str] = field(default_factory=Counter)
    charged: int = 0
    broken: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The books in one line."""
        return (
            f"{self.runs} runs, {self.kills} kills of the daemon, {self.compacted} payments compacted away, "
            f"{self.rolled_back} runs rolled back and sent again, {self.new_ids} acts asked for again under a new "
            f"call id, {self.again} answered again from the journal; {self.charged} charged, {self.unknown} unknown "
            f"outcomes ({self.probed} probes, {self.asked} questions to a person), {len(self.broken)} broke a promise"
        )


@dataclass(slots=True)
class Run:
    """One task, its invoice, and what is done to it on the way."""

    task: str
    invoice: str
    agent: str
    manner: str
    then_at: float
    done: bool = False


@contextmanager
def payment_service(*arguments: str) -> Iterator[str]:
    """The service as a process; its address."""
    words = [sys.executable, str(HERE / "payment_service.py"), *arguments]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def scripts(naive: str, honest: str) -> dict[str, Any]:
    """A model for each agent: it pays, tries again in another spelling when told of an error."""
    return {name: _script(name, honest if name == "command" else naive) for name in AGENTS}


def _script(name: str, url: str) -> dict[str, Any]:
    order = {"invoice": "{invoice}", "amount": 100}
    if name.startswith("command"):
        first = {"tool": "pay", "args": {"port": url.rsplit(":", 1)[1], "invoice": "{invoice}", "amount": 100}}
        again = {"tool": "pay", "args": {"amount": 100.0, "invoice": "{invoice} ", "port": url.rsplit(":", 1)[1]}}
    else:
        first = {
            "tool": "http_request",
            "args": {"method": "POST", "url": f"{url}/pay", "json": order, "timeout_s": 0.6},
        }
        again = {"tool": "http_request", "args": {
            "timeout_s": 0.9, "json": {"amount": 100.0, "invoice": "{invoice}"}, "url": f"{url}/pay#again",
            "headers": {"X-Request-Id": "try-{turn}", "Idempotency-Key": "mine-{turn}"}, "method": "POST"}}  # fmt: skip
    invoice = {"user_matches": r"invoice (?P<invoice>PAY[\w-]+)"}
    paid = {"matches": r'"paid": |was done'}
    turns: list[dict[str, Any]] = [{"when": {**invoice, "first": True}, "say": "I pay.", "call": first}]
    if name == "forgetful":
        read = {"tool": "bash", "args": {"command": "head -c 6000 bulk.txt; echo {turn}"}}
        small = "made the earlier history smaller"
        read_on = "I read on. " + "What I think of it is long. " * 100  # results are squeezed first; words are not
        turns += [
            {"when": {**invoice, **paid, "shown_matches": small}, "say": "Paid {invoice}."},
            {"when": {**invoice, **paid}, "say": "Now I read.", "call": read},
            {
                "when": {**invoice, "last_tool": "bash", "shown_matches": small},
                "say": "Was it paid? I pay.",
                "call": again,
            },
            {"when": {**invoice, "last_tool": "bash", "turn": {"max": 20}}, "say": read_on, "call": read},
        ]
    turns += [
        {"when": {**invoice, **paid}, "say": "Paid {invoice}."},
        {"when": {**invoice, "results": {"max": 8}}, "say": "I am told to try again.", "call": again},
        {"say": "I give up."},
    ]
    return {"turns": turns, "ids": "fresh"} | ({"window": 9000} if name == "forgetful" else {})


def batch(folder: Path, seed: int, runs: int, books: Books) -> None:
    """One daemon, killed and started again, with many tasks."""
    luck = random.Random(seed)
    with ExitStack() as stack:
        naive, honest = (stack.enter_context(payment_service(*words)) for words in ((), ("--honours-keys",)))
        service = stack.enter_context(running_simulator(scripts(naive, honest)))
        daemon = stack.enter_context(running(folder))
        _configure(daemon, service, naive)
        client = daemon.start()
        begun = time.monotonic()
        made = [_submit(daemon, client, luck, seed * 1000 + number, books) for number in range(runs)]
        kills = sorted(begun + luck.uniform(0.3, 1.0 + runs * 0.12) for _ in range(3))
        client = _live_through(daemon, client, made, kills, books, (naive, honest))
        for one in made:
            _check(client, one, books, (naive, honest))
        daemon.stop()
    books.runs += runs


def _configure(daemon: Running, service: SimulatedService, naive: str) -> None:
    document = settings(daemon.folder, service.url, dict.fromkeys(AGENTS, "anthropic"), workers=10)
    document["http_request"] = {"private": ["127.0.0.0/8"]}
    (daemon.folder / "pay.py").write_text(PAY)
    text = {"type": "string"}
    document["tools"] = {
        "pay": {
            "command": [sys.executable, "-I", "-S", str(daemon.folder / "pay.py"), "{port}", "{invoice}", "{amount}"],
            "schema": {"type": "object", "properties": {"port": text, "invoice": text, "amount": {"type": "number"}}},
            "about": "Pay an invoice.",
        }
    }
    for name in AGENTS:
        document["agents"][name]["tools"] = ["bash", "http_request", "pay"]
    document["models"]["forgetful"] |= {"window": 9_000, "max_output": 1_000}
    daemon.configure(document)
    policies = daemon.folder / "policies"
    policies.mkdir(exist_ok=True)
    (policies / "own.yaml").write_text(POLICIES.format(url=naive))


def _submit(daemon: Running, client: Client, luck: random.Random, number: int, books: Books) -> Run:
    agent, manner = AGENTS[number % len(AGENTS)], luck.choice(MANNERS)
    fault = luck.choice(FAULTS)
    invoice = f"PAY-{number}-{fault}"
    books.faults[fault] += 1
    books.manners[f"{agent} {manner}"] += 1
    space = daemon.workspace(f"w{number}")
    if agent == "forgetful":
        (space / "bulk.txt").write_text("one more line of a long report, read and forgotten\n" * 200)
    task = daemon.submit(client, prompt=f"Pay the invoice {invoice} .", agent=agent, workspace=str(space))
    return Run(task, invoice, agent, manner, luck.uniform(0.05, 2.0))


def _live_through(
    daemon: Running, client: Client, made: list[Run], kills: list[float], books: Books, urls: tuple[str, str]
) -> Client:
    until = time.monotonic() + 90 + 4 * len(made)
    seen_running: dict[str, float] = {}
    problems: dict[str, str] = {}
    while time.monotonic() < until:
        if kills and time.monotonic() > kills[0]:
            kills.pop(0)
            daemon.kill()
            books.kills += 1
            client = daemon.start()
        with contextlib.suppress(Problem):
            rows = {row["task"]: row for row in client.get("/v1/tasks?limit=1000")["tasks"]}
            for question in client.get("/v1/inbox")["questions"]:
                _answer(client, question, books, urls)
            for one in made:
                try:
                    _meddle(client, one, rows[one.task], seen_running)
                except Problem as problem:
                    if problem.exit_code != 5:
                        continue
                    problems[one.invoice] = problem.message
                    one.done = True
            if all(one.done and rows[one.task]["state"] in ENDED for one in made):
                return client
        time.sleep(0.05)
    stuck = [(one, client.get(f"/v1/tasks/{one.task}")) for one in made]
    late = [(one.invoice, one.manner, row["state"], row.get("why")) for one, row in stuck if row["state"] not in ENDED]
    raise AssertionError(f"these did not end: {late}\n{problems}\n{daemon.log[-3000:]}")


def _meddle(client: Client, one: Run, row: Mapping[str, Any], began: dict[str, float]) -> None:
    """Cancel and resume, or roll back and go on, once a task."""
    state = row["state"]
    if state == "paused":  # a daemon that was killed three times within minutes holds what was interrupted
        client.post(f"/v1/tasks/{one.task}/resume", {})
    elif one.done or one.manner == "plain":
        one.done = True
    elif state == "running":
        began.setdefault(one.task, time.monotonic())
        if one.manner == "cancel" and time.monotonic() - began[one.task] > one.then_at:
            client.post(f"/v1/tasks/{one.task}/cancel", {})
            began[one.task] = float("inf")
    elif state in ENDED:
        if one.manner == "rollback":
            client.post(f"/v1/tasks/{one.task}/rollback", {"to": "n1", "prompt": f"Pay the invoice {one.invoice} ."})
        elif state == "stopped":
            client.post(f"/v1/tasks/{one.task}/resume", {"say": "Try again."})
        one.done = True


def _answer(client: Client, question: Mapping[str, Any], books: Books, urls: tuple[str, str]) -> None:
    if question["kind"] != "outcome":
        choice = next(one for one in question["choices"] if one not in ("stop", "deny"))
    else:
        books.asked += 1
        books.asked_about.add(f"{question['task']} {question['data']['key']}")
        key, data = question["data"]["key"], question["data"]
        told = question["sentence"]
        if not (key and key in told and data["started_at"] and question["choices"] == ["done", "not-done", "stop"]):
            books.broken.append(f"a question that does not say enough: {question}")
        choice = "done" if any(_books(url)["keys"].get(key) for url in urls) else "not-done"
    client.post(f"/v1/inbox/{question['task']}/{question['id']}", {"choice": choice})


def _books(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/books", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _check(client: Client, one: Run, books: Books, urls: tuple[str, str]) -> None:
    """The task's own word, the journal and the services' books agree."""
    of_service = _books(urls[1] if one.agent == "command" else urls[0])
    charged = of_service["invoices"].get(one.invoice, 0)
    books.charged += charged > 0
    row = client.get(f"/v1/tasks/{one.task}")
    effects = client.get(f"/v1/tasks/{one.task}/effects")["effects"]
    pays = [effect for effect in effects if effect["kind"] == "tool" and effect["key"]]
    what = f"{one.invoice} by {one.agent}, {one.manner}"
    if charged > 1:
        books.broken.append(f"{what}: charged {charged} times under {of_service['keys_of'][one.invoice]}")
    if f"Paid {one.invoice}" in str(row.get("sentence")) and not charged:
        books.broken.append(f"{what}: reported as paid, and never charged")
    if not charged and "give up" not in str(row.get("sentence")):
        books.broken.append(f"{what}: ended as {row['state']} {row.get('reason')}: {row.get('sentence')}")
    for effect in pays:
        if effect["state"] == "done" and not of_service["keys"].get(effect["key"]):
            books.broken.append(f"{what}: {effect['effect']} is done in the journal, and its key was never charged")
    _check_escalated(one, pays, effects, what, books)
    books.probed += sum(effect["kind"] == "probe" for effect in effects)
    calls = {key: {effect["call"] for effect in pays if effect["key"] == key} for key in {e["key"] for e in pays}}
    books.new_ids += sum(len(each) - 1 for each in calls.values())
    nodes = client.get(f"/v1/tasks/{one.task}/nodes")["nodes"]
    books.again += sum("It was done before" in node["text"] for node in nodes if node["kind"] == "tool_result")
    books.compacted += any(node["kind"] == "compaction" and node["text"] for node in nodes)
    books.rolled_back += sum(node["kind"] == "user" for node in nodes) > 1 and one.manner == "rollback"


def _check_escalated(
    one: Run, pays: Sequence[Mapping[str, Any]], effects: Sequence[Mapping[str, Any]], what: str, books: Books
) -> None:
    """Whatever had no outcome was put to the service or to a person."""
    probes = " ".join(str(effect["arguments"]) for effect in effects if effect["kind"] == "probe")
    unknown = [effect for effect in pays if effect["state"] == "unknown" or _LOST.search(str(effect["result"]))]
    books.unknown += len({effect["key"] for effect in unknown})
    for effect in unknown:
        if effect["key"] not in probes and f"{one.task} {effect['key']}" not in books.asked_about:
            books.broken.append(f"{what}: the outcome of {effect['effect']} is not known, and nobody was asked")


def campaign(runs: int, seed: int, *, size: int = BATCH, say: bool = True) -> Books:
    """All batches."""
    books = Books()
    while books.runs < runs:
        before = len(books.broken)
        with tempfile.TemporaryDirectory(prefix="payments-") as folder:
            batch(Path(folder), seed, min(size, runs - books.runs), books)
        if say:
            print(f"seed {seed}: {books.line()}", flush=True)
            for line in books.broken[before:]:
                print(f"  BROKEN: {line}", flush=True)
        seed += 1
    return books


def main() -> int:
    """Run the campaign and print its books."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=BATCH, help="tasks of one daemon")
    asked = parser.parse_args()
    books = campaign(asked.runs, asked.seed, size=asked.size)
    for name, times in sorted((books.faults + books.manners).items()):
        print(f"  {times:5} {name}")
    print(books.line())
    return 1 if books.broken else 0


if __name__ == "__main__":
    sys.exit(main())
