"""Acts that must happen once, by a real daemon: twins planned anew meet the old key, two that are wanted both run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

# It acts first, and then answers, or goes on for long, or fails: as the file of the invoice's name says.
PAY = """#!/bin/sh
echo "$HARNESSD_IDEMPOTENCY_KEY $1" >>{folder}/ledger
[ -e "{folder}/then/$1" ] && . "{folder}/then/$1"
echo "paid $1"
"""
POLICY = """kind: tools
rules:
  - {for: tool/pay, when: {agent: slow}, timeout: {after: 1s, do: kill}}
  - {for: tool/pay, when: {agent: job}, timeout: {after: 1s, do: background, life: 60s}}
  - {for: tool/pay, effect: irreversible, timeout: {after: 60s}}
permissions: [{name: pays, for: tool/pay, do: allow}]
---
kind: compaction
reserve: 2k
keep_turns: 1
summary: {max_tokens: 1k}
"""
ASKED = {"user_matches": r"[Pp]ay (?P<invoice>INV-\w+)"}
ONE = {"tool": "pay", "args": {"invoice": "{invoice}", "amount": 100}}
AGAIN = {"tool": "pay", "args": {"amount": 100.0, "invoice": "{invoice} "}}  # the same, in another spelling
SETTLED = {**ASKED, "matches": r"paid INV|was done"}
READ = {"tool": "bash", "args": {"command": "head -c 6000 bulk; echo {turn}"}}
SMALLER = "made the earlier history smaller"
PLAIN = {
    "ids": "fresh",
    "turns": [
        {"when": {**ASKED, "first": True}, "say": "I pay.", "call": ONE},
        {"when": SETTLED, "say": "Paid {invoice}."},
        {"when": {**ASKED, "results": {"max": 6}}, "say": "Once more.", "call": AGAIN},
        {"say": "I give up."},
    ],
}
TWICE = {
    "ids": "fresh",
    "turns": [
        {"when": {**ASKED, "first": True}, "say": "One, and one beside it.", "call": [ONE, ONE]},
        {"when": {**ASKED, "results": 2}, "say": "And one more.", "call": ONE},
        {"say": "Three payments."},
    ],
}
FORGETS = {
    "ids": "fresh",
    "window": 9000,
    "turns": [
        {"when": {**ASKED, "first": True}, "say": "I pay.", "call": ONE},
        {"when": {**ASKED, "matches": "paid INV", "shown_matches": SMALLER}, "say": "Paid {invoice}."},
        {"when": {**ASKED, "matches": "paid INV"}, "say": "Now I read.", "call": READ},
        {
            "when": {**ASKED, "last_tool": "bash", "shown_matches": SMALLER},
            "say": "Was it paid? I pay.",
            "call": AGAIN,
        },
        {"when": {**ASKED, "last_tool": "bash", "turn": {"max": 20}}, "say": "I read on.", "call": READ},
        {"say": "I give up."},
    ],
}
JOB = {
    "ids": "fresh",
    "turns": [
        {"when": {**ASKED, "first": True}, "say": "I pay.", "call": ONE},
        {"when": {**ASKED, "user_matches": "(?s)[Pp]ay (?P<invoice>INV-second).*Job .* ended with exit code 0",
                  "results": 1}, "say": "And a second.", "call": ONE},
        {"when": {**ASKED, "user_matches": r"(?s)[Pp]ay (?P<invoice>INV-\w+).*Job .* ended with exit code [1-9]",
                  "results": 1}, "say": "It failed: again.", "call": AGAIN},
        {"say": "I wait."},
    ],
}  # fmt: skip
BATCH = {
    "turns": [
        {"when": {"first": True}, "say": "Three things.", "call": [
            {"tool": "pay", "args": {"invoice": "INV-batch", "amount": 1}},
            {"tool": "bash", "args": {"command": "echo noted >>note"}},
            {"tool": "pay", "args": {"invoice": "INV-late", "amount": 1}},
        ]},
        {"say": "All three."},
    ]
}  # fmt: skip
SCRIPTS: Mapping[str, Any] = {
    "batch": BATCH,
    "plain": PLAIN, "slow": PLAIN, "twice": TWICE, "forgets": FORGETS, "job": JOB,
}  # fmt: skip


@dataclass
class House:
    """The daemon, its client of this moment, and the books of whoever is paid."""

    daemon: Running
    client: Client

    def then(self, invoice: str, script: str) -> None:
        """What the program does after it has paid this invoice."""
        (self.daemon.folder / "then" / invoice).write_text(script)

    def pay(self, agent: str, invoice: str) -> str:
        space = self.daemon.workspace(invoice)
        (space / "bulk").write_text("one more line of a long report, read and forgotten\n" * 200)
        return self.daemon.submit(self.client, prompt=f"Pay {invoice} .", agent=agent, workspace=str(space))

    def pay_by_job(self, invoice: str, end: str) -> str:
        """A payment that goes on in the background until it is let go."""
        gate = self.daemon.folder / "then" / f"{invoice}.go"
        self.then(invoice, f"until [ -e '{gate}' ]; do sleep 0.1; done; {end}")
        task = self.pay("job", invoice)
        self.daemon.until(self.client, task, ("parked",))
        return task

    def let_go(self, invoice: str) -> None:
        (self.daemon.folder / "then" / f"{invoice}.go").touch()

    def keys(self, invoice: str) -> list[str]:
        """The key of each payment that was made of this invoice, in order."""
        ledger = self.daemon.folder / "ledger"
        rows = [line.split() for line in ledger.read_text().splitlines()] if ledger.exists() else []
        return [key for key, paid in rows if paid.strip() == invoice]

    def states(self, task: str) -> list[tuple[str, str]]:
        """Key and state of each payment in the journal."""
        effects = self.daemon.ctl_json("effects", task)["effects"]
        return [(effect["key"], effect["state"]) for effect in effects if effect["name"] == "tool/pay"]

    def question(self, task: str) -> Mapping[str, Any]:
        row = self.daemon.until(self.client, task, ("waiting", "completed", "stopped"))
        assert row["state"] == "waiting", row
        (found,) = row["questions"]
        assert found["kind"] == "outcome"
        return dict(found)

    def sentence(self, task: str) -> str:
        row = self.daemon.until_ended(self.client, task)
        assert row["state"] == "completed", (row, self.daemon.log[-3000:])
        return str(row["sentence"])


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "the condition did not come"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("acts")
    for name in ("bin", "then", "policies"):
        (folder / name).mkdir()
    (folder / "policies" / "own.yaml").write_text(POLICY)
    (folder / "bin" / "pay").write_text(PAY.format(folder=folder))
    (folder / "bin" / "pay").chmod(0o755)
    with running_simulator(SCRIPTS) as service, running(folder) as daemon:
        text, number = {"type": "string"}, {"type": "number"}
        pay = {"command": ["./bin/pay", "{invoice}", "{amount}"], "about": "Pay an invoice.",
               "schema": {"type": "object", "properties": {"invoice": text, "amount": number}}}  # fmt: skip
        document = settings(folder, service.url, dict.fromkeys(SCRIPTS, "anthropic"), tools={"pay": pay})
        document["models"]["forgets"] |= {"window": 9_000, "max_output": 1_000}
        for agent in document["agents"].values():
            agent["tools"] = ["bash", "pay", "job_output"]
        daemon.configure(document)
        yield House(daemon, daemon.start())


def test_equal_payments_that_are_wanted_all_run(house: House) -> None:
    # R3.13, g06: two in one answer and a third after their results
    task = house.pay("twice", "INV-twice")
    assert house.sentence(task) == "Three payments."
    made = house.keys("INV-twice")
    assert len(made) == len(set(made)) == 3
    assert house.states(task) == [(key, "done") for key in made]


def test_a_twin_after_a_timeout_meets_the_old_key(house: House) -> None:
    # R3.13, g03, g05: started -> unknown; nobody sends it again by himself, whoever asks for it anew
    house.then("INV-slow", "sleep 60")
    task = house.pay("slow", "INV-slow")
    asked = house.question(task)
    (key,) = house.keys("INV-slow")
    assert (asked["data"]["key"], house.states(task)) == (key, [(key, "unknown")])
    assert key in asked["sentence"]
    # A person sends the agent back to work without an answer; it asks for the same under another call id.
    assert house.daemon.ctl("cancel", task).returncode == 0
    house.daemon.until_ended(house.client, task)
    assert house.daemon.ctl("resume", task, "--say", "Try again.").returncode == 0
    asked = house.question(task)
    assert (asked["data"]["key"], house.keys("INV-slow")) == (key, [key])
    assert house.daemon.ctl("answer", asked["id"], "done").returncode == 0
    assert house.sentence(task) == "Paid INV-slow."
    assert house.keys("INV-slow") == [key]


def test_a_twin_after_a_crash_meets_the_old_key(house: House) -> None:
    # R3.13, R6.1, g05
    house.then("INV-crash", "sleep 60")
    task = house.pay("plain", "INV-crash")
    until(lambda: house.keys("INV-crash"))
    house.daemon.kill()
    house.then("INV-crash", "")
    house.client = house.daemon.start()
    asked = house.question(task)
    (key,) = house.keys("INV-crash")
    assert asked["data"]["key"] == key
    assert house.daemon.ctl("cancel", task).returncode == 0
    house.daemon.until_ended(house.client, task)
    assert house.daemon.ctl("resume", task, "--say", "Try again.").returncode == 0
    asked = house.question(task)
    assert (asked["data"]["key"], house.keys("INV-crash")) == (key, [key])
    # It was not done, says who looked: then it is sent under the same key, so that its receiver can tell.
    assert house.daemon.ctl("answer", asked["id"], "not-done").returncode == 0
    assert house.sentence(task) == "Paid INV-crash."
    assert house.keys("INV-crash") == [key, key]


def test_a_crash_in_the_last_of_three_leaves_two_done(house: House) -> None:
    # R3.13, R6.1, g02: each result was stored when it came, and only the third is in question
    house.then("INV-late", "sleep 60")
    task = house.pay("batch", "INV-batch")
    until(lambda: house.keys("INV-late"))
    house.daemon.kill()
    house.client = house.daemon.start()
    asked = house.question(task)
    (key,) = house.keys("INV-late")
    assert asked["data"]["key"] == key
    assert sorted(state for _, state in house.states(task)) == ["done", "unknown"]
    assert house.daemon.ctl("answer", asked["id"], "done").returncode == 0
    assert house.sentence(task) == "All three."
    assert (len(house.keys("INV-batch")), house.keys("INV-late")) == (1, [key])
    assert (house.daemon.workspace("INV-batch") / "note").read_text() == "noted\n"


def test_a_twin_after_a_compaction_is_given_the_old_outcome(house: House) -> None:
    # R3.13, R4.5
    task = house.pay("forgets", "INV-forgets")
    assert house.sentence(task) == "Paid INV-forgets."
    (key,) = house.keys("INV-forgets")
    assert house.states(task) == [(key, "done")]
    results = [node["text"] for node in house.client.get(f"/v1/tasks/{task}/nodes")["nodes"]]
    assert sum("It was done before and not again" in text for text in results) == 1


def test_a_twin_after_a_rollback_is_given_the_old_outcome(house: House) -> None:
    # R3.13, R5.4
    task = house.pay("plain", "INV-back")
    assert house.sentence(task) == "Paid INV-back."
    for _ in range(2):
        back = house.daemon.ctl("rollback", task, "--to", "n1", "--prompt", "Once more: pay INV-back .")
        assert back.returncode == 0, back.stderr
        assert house.sentence(task) == "Paid INV-back."
    (key,) = house.keys("INV-back")
    assert house.states(task) == [(key, "done")]


@pytest.mark.parametrize(
    ("invoice", "end", "state"),
    [("INV-good", "", "done"), ("INV-bad", "exit 3", "failed"), ("INV-shot", "kill -9 $$", "unknown")],
)
def test_the_end_of_its_job_settles_a_payment(house: House, invoice: str, end: str, state: str) -> None:
    # R3.13, R3.12: it goes on in the background, and its exit code is its outcome
    task = house.pay_by_job(invoice, end)
    assert [one for _, one in house.states(task)] == ["unknown"]
    house.let_go(invoice)
    row = house.daemon.until(house.client, task, ("completed", "stopped", "waiting"))
    states, made = house.states(task), house.keys(invoice)
    if state == "done":
        assert (row["state"], len(made), states) == ("completed", 1, [(made[0], "done")])
    elif state == "failed":  # the agent asked again: the same key
        assert (states[0], len(set(made))) == ((made[0], "failed"), 1)
        house.daemon.ctl("cancel", task)
    else:
        assert row["state"] == "waiting", "asked again, and held: nobody knows"
        assert (len(made), states) == (1, [(made[0], "unknown")])
        house.daemon.ctl("cancel", task)


def test_a_second_payment_after_the_first_ones_job_is_a_new_one(house: House) -> None:
    # R3.13, g06
    task = house.pay_by_job("INV-second", "")
    house.let_go("INV-second")
    assert house.sentence(task) == "I wait."
    made = house.keys("INV-second")
    assert len(made) == len(set(made)) == 2
    assert house.states(task) == [(key, "done") for key in made]
