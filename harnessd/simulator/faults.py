"""Faults: what may go wrong, when it is planned, and the draw that makes the same seed give the same faults."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harnessd.simulator.transcript import Transcript
from harnessd.simulator.values import ScriptError, count_of, fits, one_of_keys

# Named errors with the service's own words: status, type, code and headers come with the name.
NAMED = (
    *("rate_limited", "overloaded", "server_error", "unavailable", "timeout", "quota", "billing", "auth", "forbidden"),
    *("too_large", "invalid_request", "overflow"),
)
# What replaces the answer as a whole.
INSTEAD = ("status", "html_502", "reset", "garbage", "gzip_bomb", "endless")
# What changes the answer, or its way over the wire.
WITHIN = (
    *("delay_headers", "stall", "pings_only", "cut_after", "error_event", "empty_answer", "done_without_finish"),
    *("malformed_args", "cut_call", "duplicate_ids", "slow_drip", "split", "unknown_events", "bad_utf8", "refusal"),
    *("content_filter",),
)
KINDS = (*NAMED, *INSTEAD, *WITHIN)
# Keys that say more about a kind.
MORE = (
    "headers",
    "body",
    "retry_after",
    "type",
    "message",
    "code",
    "after",
    "end",
    "every",
    "bytes",
    "echo_key",
    "size",
)
PLAN_KEYS = ("request", "at", "do", "model")
RATE_KEYS = ("p", "do", "attempts", "lasting", "over", "under")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. `options` are the words of the script."""

    kind: str
    value: Any
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault for the n-th request of a script, or for the first tries at one point of the transcript."""

    fault: Fault
    request: Any = None
    turn: Any = None
    results: Any = None
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class Rated:
    """A fault by chance; with `attempts`, only on the first tries at a point, so that patience is rewarded.

    `lasting`: drawn once a point, so that no patience helps there. `over`, `under`: only for prompts of more, of fewer
    tokens, so that a smaller view of the history helps.
    """

    fault: Fault
    p: float
    attempts: int | None = None
    lasting: bool = False
    over: int | None = None
    under: int | None = None

    def concerns(self, tokens: int, attempt: int) -> bool:
        """Whether a request of this size, shown so often, may meet it."""
        return (
            (self.attempts is None or attempt <= self.attempts)
            and (self.over is None or tokens > self.over)
            and (self.under is None or tokens < self.under)
        )


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All that a script does wrong."""

    seed: int = 7
    plan: tuple[Planned, ...] = ()
    rate: tuple[Rated, ...] = ()


def read_faults(raw: Any, where: str) -> FaultPlan:
    """`{seed, plan: [{request | at, do}], rate: [{p, do}]}`. Raises ScriptError."""
    one_of_keys(raw, ("seed", "plan", "rate"), where)
    plan = tuple(read_planned(entry, f"{where}.plan[{n}]") for n, entry in enumerate(raw.get("plan") or []))
    rate = tuple(read_rated(entry, f"{where}.rate[{n}]") for n, entry in enumerate(raw.get("rate") or []))
    return FaultPlan(count_of(raw.get("seed", 7), f"{where}.seed"), plan, rate)


def read_planned(raw: Any, where: str) -> Planned:
    """One entry of the plan."""
    one_of_keys(raw, PLAN_KEYS, where)
    fault = read_fault(raw.get("do"), f"{where}.do")
    if ("request" in raw) == ("at" in raw):
        raise ScriptError(f"{where}: either `request: N` or `at: {{turn: N, times: K}}`")
    if "request" in raw:
        fits(0, raw["request"], f"{where}.request")
        return Planned(fault, request=raw["request"])
    at = raw["at"]
    one_of_keys(at, ("turn", "results", "times"), f"{where}.at")
    for key in ("turn", "results"):
        if key in at:
            fits(0, at[key], f"{where}.at.{key}")
    times = at.get("times", 1)
    always = times == "always"
    limit = None if always else count_of(times, f"{where}.at.times")
    return Planned(fault, turn=at.get("turn"), results=at.get("results"), times=limit)


def read_rated(raw: Any, where: str) -> Rated:
    """One entry of the rates."""
    one_of_keys(raw, RATE_KEYS, where)
    p = raw.get("p")
    if not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise ScriptError(f"{where}.p: a ratio between 0 and 1")
    counts = {
        key: None if raw.get(key) is None else count_of(raw[key], f"{where}.{key}")
        for key in ("attempts", "over", "under")
    }
    return Rated(read_fault(raw.get("do"), f"{where}.do"), float(p), lasting=bool(raw.get("lasting")), **counts)


def read_fault(raw: Any, where: str) -> Fault:
    """`do`: one word, or a map with exactly one kind and words that say more about it."""
    entry = {raw: True} if isinstance(raw, str) else raw
    one_of_keys(entry, (*KINDS, *MORE), where)
    kinds = [key for key in entry if key in KINDS]
    if len(kinds) != 1:
        raise ScriptError(f"{where}: exactly one of {', '.join(KINDS)}")
    return Fault(kinds[0], entry[kinds[0]], {key: value for key, value in entry.items() if key in MORE})


def draw(plan: FaultPlan, transcript: Transcript, request: int, attempt: int) -> Fault | None:
    """The fault of this request, if any. `request` and `attempt` count from 1."""
    for planned in plan.plan:
        if planned.request is not None:
            if fits(request, planned.request, "request"):
                return planned.fault
        elif at_point(planned, transcript) and (planned.times is None or attempt <= planned.times):
            return planned.fault
    for n, rated in enumerate(plan.rate):
        if not rated.concerns(transcript.tokens, attempt):
            continue
        drawn = 0 if rated.lasting else attempt
        if chance(plan.seed, transcript.model, transcript.shape, drawn, n) < rated.p:
            return rated.fault
    return None


def at_point(planned: Planned, transcript: Transcript) -> bool:
    """Whether the transcript stands where the fault is planned."""
    turn_fits = planned.turn is None or fits(transcript.turn, planned.turn, "turn")
    return turn_fits and (planned.results is None or fits(len(transcript.results), planned.results, "results"))


def chance(*key: object) -> float:
    """A number in [0, 1) that depends on the key alone."""
    hashed = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return int.from_bytes(hashed[:8], "big") / 2**64
