"""Mix: what goes wrong in the fault campaign, and the task that meets it; played by the simulated model services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

REQUESTS = 5  # of a task without faults: look three times, act, report
_OLD = 3  # the place from which on a request holds something old that can be left out
_LONG = 5000  # tokens; requests before that place are shorter, all others longer, unless their view was made smaller
FILES = ("first.txt", "second.txt", "third.txt")
LINES = 120  # of each file that is read: what makes the later requests long


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of requests that meet a fault, and of tasks that walk into a poisoned path (`rough`).

    `passing`: gone at the next try. `view`: gone with a smaller view of the history; the first requests have nothing to
    leave out, so there it is passing. Together they are repairable. `lasting`: never gone at that dependency.
    """

    passing: float = 0.297
    view: float = 0.033
    lasting: float = 0.08
    rough: float = 0.01

    @property
    def repairable(self) -> float:
        """Gone with a retry or another view."""
        return self.passing + self.view

    @property
    def failing(self) -> float:
        """Of all requests."""
        return self.repairable + self.lasting

    def passing_at(self, place: int) -> float:
        """Of the requests at one place of the task, counted from 0."""
        return self.passing if place >= _OLD else self.repairable

    def view_at(self, place: int) -> float:
        """Of the requests at one place of the task, counted from 0."""
        return self.view if place >= _OLD else 0.0

    def faults(self) -> Sequence[Mapping[str, Any]]:
        """The rates of a simulated service: drawn one after the other, so each is a share of what is left."""
        lasting, passing = self.lasting, self.passing
        shares: Sequence[tuple[float, Mapping[str, Any]]] = (
            (lasting * 0.50, {"do": "refusal", "lasting": True}),
            (lasting * 0.25, {"do": "quota", "lasting": True}),
            (lasting * 0.25, {"do": "auth", "lasting": True}),
            (self.view, {"do": "overflow", "lasting": True, "over": _LONG}),
            (self.view, {"do": "overloaded", "attempts": 1, "under": _LONG}),
            (passing * 0.20, {"do": "overloaded", "attempts": 1}),
            (passing * 0.20, {"do": "server_error", "attempts": 1}),
            (passing * 0.20, {"do": {"status": 429, "headers": {"retry-after-ms": "10"}}, "attempts": 1}),
            (passing * 0.15, {"do": "reset", "attempts": 1}),
            (passing * 0.15, {"do": {"cut_after": "300B"}, "attempts": 1}),
            (passing * 0.10, {"do": "garbage", "attempts": 1}),
        )
        rates, left = [], {True: 1.0, False: 1.0}  # of long and of short requests
        for share, fault in shares:
            long, short = "under" not in fault, "over" not in fault
            rates.append({"p": round(min(1.0, share / left[long]), 6), **fault})
            left = {True: left[True] - share * long, False: left[False] - share * short}
        return rates

    def is_rough(self, seed: int, number: int) -> bool:
        """Whether a task walks into a poisoned path."""
        drawn = int.from_bytes(sha256(f"{seed}/rough/{number}".encode()).digest()[:8], "big") / 2**64
        return drawn < self.rough


def prompt(job: str, *, rough: bool) -> str:
    """What a task is asked. The job makes its requests its own, so that each draws faults for itself."""
    return f"Job {job}{', rough' if rough else ''}: read all three files, then have it signed once."


# A rough path: the model writes what is wrong and tries to correct it, until it is told that it was taken back.
_TAKEN_BACK = r"You are back at this point"


def script(mix: Mix, seed: int, place: str) -> dict[str, Any]:
    """What each model says, and what goes wrong on the way; the draw is each model's own. `place` counts effects."""
    sign = {"tool": "http_request", "args": {"method": "POST", "url": f"http://{place}/sign/{{job}}", "body": "sign"}}
    wrong = [
        {"tool": "write_file", "args": {"path": "wrong.txt", "content": "wrong {step}"}},
        {"tool": "bash", "args": {"command": "grep -q right wrong.txt || { echo wrong.txt is not right; exit 3; }"}},
    ]
    job = {"job": r"Job ([a-z0-9-]+)"}

    def look(name: str) -> dict[str, Any]:
        return {"tool": "read_file", "args": {"path": name}}

    turns = [
        {"name": "report", "when": {"matches": "RECEIPT"}, "say": "Signed."},
        {"name": "look", "when": {"first": True}, "call": look(FILES[0])},
        *(
            {"name": f"look at {name}", "when": {"matches": f"of {before}"}, "call": look(name)}
            for before, name in pairwise(FILES)
        ),
        {
            "name": "sign after all",
            "when": {"user_matches": "rough", "shown_matches": _TAKEN_BACK},
            "captures": job,
            "call": sign,
        },
        {"name": "go wrong", "when": {"user_matches": "rough", "results": {"max": 14}}, "call": wrong},
        {"name": "give up", "when": {"user_matches": "rough"}, "say": "I do not get on."},
        {"name": "sign", "when": {"user_matches": "Job"}, "captures": job, "call": sign},
    ]
    return {"turns": turns, "faults": {"seed": seed, "rate": mix.faults()}}
