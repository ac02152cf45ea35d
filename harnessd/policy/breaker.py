"""Breaker: one circuit breaker for each dependency: closed, open, half-open; its settings and its moves, pure.

A state is a frozen value that the store keeps over restarts. Attempts count, not wrapped calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.domain.failure import ErrorClass
from harnessd.policy.language.figures import Count, Duration, Ratio
from harnessd.policy.language.names import ANYTHING, Name, Names
from harnessd.policy.language.shape import UNSTATED, Entry, Policy, Shape, stated
from harnessd.policy.language.source import Problem


class BreakerRule(Entry):
    """Settings of some dependencies; each leaf comes from the first entry that fits and states it."""

    for_: Annotated[tuple[Name, ...], Names(sorts=("model", "tool", "mcp"))] = Field(
        ANYTHING, alias="for", description="Which dependencies: model/ALIAS, tool/NAME, mcp/SERVER."
    )
    consecutive: Annotated[int | None, Count(low="1", high="1000", none=True)] = Field(
        None, description="Failed attempts in a row that open it."
    )
    failure_rate: Annotated[float | None, Ratio(low="1%", none=True)] = Field(
        None, description="Or this share in the window."
    )
    window: Annotated[float, Duration(low="1s", high="1h")] | None = Field(None, description="Length of the window.")
    minimum_calls: Annotated[int, Count(low="1", high="10k")] | None = Field(
        None, description="Fewer calls in the window: the rate is not looked at."
    )
    slow_over: Annotated[float | None, Duration(low="1s", high="1h", none=True)] = Field(
        None, description="A call that takes longer counts as failed (brown-out)."
    )
    open: Annotated[float, Duration(low="1s", high="24h")] | None = Field(
        None, description="Until the first probe; doubles with each failed probe, up to open_max."
    )
    open_max: Annotated[float, Duration(low="1s", high="24h")] | None = Field(
        None, description="The longest time between probes."
    )
    probes: Annotated[int, Count(low="1", high="100")] | None = Field(None, description="Calls let through half-open.")
    ramp: Annotated[float, Duration(high="1h")] | None = Field(
        None, description="After closing, concurrency grows from 1 to its limit over this time."
    )


class BreakerShape(Shape):
    """One breaker for each dependency."""

    rules: tuple[BreakerRule, ...] = Field(description="Settings by name.")


BreakerPolicy = Policy[BreakerShape]


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """The settings of one dependency; None = not looked at. Times are seconds."""

    consecutive: int | None
    failure_rate: float | None
    window_s: float
    minimum_calls: int
    slow_over_s: float | None
    open_s: float
    open_max_s: float
    probes: int
    ramp_s: float
    refs: Mapping[str, RuleRef]


_LEAVES: Mapping[str, Any] = {
    "consecutive": 10,
    "failure_rate": 0.5,
    "window": 60.0,
    "minimum_calls": 20,
    "slow_over": None,
    "open": 300.0,
    "open_max": 300.0,
    "probes": 1,
    "ramp": 60.0,
}


def settings(policy: BreakerPolicy, name: str) -> BreakerSettings:
    """The settings of one dependency (`model/primary`). An `open` above `open_max` is its own longest time."""
    values: dict[str, Any] = {}
    refs: dict[str, RuleRef] = {}
    fitting = [(i, rule) for i, rule in enumerate(policy.shape.rules) if rule.fits((name,), lambda _name: None)]
    for key, default in _LEAVES.items():
        values[key] = default
        for index, rule in fitting:
            value = stated(rule, key)
            if value is not UNSTATED:
                values[key], refs[key] = value, policy.ref("rules", index, key)
                break
    return BreakerSettings(
        consecutive=values["consecutive"],
        failure_rate=values["failure_rate"],
        window_s=values["window"],
        minimum_calls=values["minimum_calls"],
        slow_over_s=values["slow_over"],
        open_s=values["open"],
        open_max_s=max(values["open"], values["open_max"]),
        probes=values["probes"],
        ramp_s=values["ramp"],
        refs=refs,
    )


# --- moves ------------------------------------------------------------------------------------------------------------

Phase = Literal["closed", "open", "half_open"]
Outcome = Literal["ok", "failed", "neutral"]
BUCKETS = 10  # parts of the window: an outcome is forgotten at most a tenth of the window late

# Not the dependency's fault: counted neither way, and no reason to wedge a half-open breaker.
NOT_ITS_FAULT = frozenset(
    {
        ErrorClass.INVALID_ARGUMENTS,
        ErrorClass.UNKNOWN_TOOL,
        ErrorClass.PERMISSION_DENIED,
        ErrorClass.INVALID_REQUEST,
        ErrorClass.CONTEXT_OVERFLOW,
        ErrorClass.REFUSED,
        ErrorClass.MALFORMED_OUTPUT,
        ErrorClass.EXECUTION_FAILED,
    }
)


@dataclass(frozen=True, slots=True)
class BreakerState:
    """Where one breaker stands. Times are seconds since the Unix epoch; `window` holds (bucket, ok, failed).

    `round` numbers the probes that are let through together, so that what comes back late is known for what it is.
    """

    phase: Phase = "closed"
    consecutive: int = 0
    window: tuple[tuple[int, int, int], ...] = ()
    opened_at: float = 0.0
    open_s: float = 0.0
    probing: int = 0
    probe_at: float = 0.0
    probes_ok: int = 0
    closed_at: float | None = None
    tripped_until: float | None = None
    why: str = ""
    round: int = 0


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether an attempt may be made now; `wait_s` is the time left where not. `round`: it is a probe of that round."""

    allowed: bool
    state: BreakerState
    wait_s: float = 0.0
    round: int | None = None


def outcome_of(limits: BreakerSettings, error_class: ErrorClass | None, elapsed_s: float) -> Outcome:
    """What an attempt says of the dependency. An answer that was too slow counts as failed."""
    if error_class in NOT_ITS_FAULT:
        return "neutral"
    if error_class is not None:
        return "failed"
    return "failed" if limits.slow_over_s is not None and elapsed_s > limits.slow_over_s else "ok"


def admit(limits: BreakerSettings, state: BreakerState, now: float) -> Admission:
    """May an attempt be made? A probe that never comes back is given up after the open time."""
    state = _not_ahead(state, now)
    if state.tripped_until is not None:
        if now < state.tripped_until:
            return Admission(False, state, state.tripped_until - now)
        state = replace(state, tripped_until=None, phase="half_open", probing=0, probes_ok=0, round=state.round + 1)
    if state.phase == "closed":
        return Admission(True, state)
    if state.phase == "open":
        wait = state.opened_at + state.open_s - now
        if wait > 0:
            return Admission(False, state, wait)
        state = replace(state, phase="half_open", probing=0, probes_ok=0, round=state.round + 1)
    if state.probing >= limits.probes - state.probes_ok:
        wait = state.probe_at + limits.open_s - now
        if wait > 0:
            return Admission(False, state, wait)
        state = replace(state, probing=0, round=state.round + 1)
    return Admission(True, replace(state, probing=state.probing + 1, probe_at=now), round=state.round)


def _not_ahead(state: BreakerState, now: float) -> BreakerState:
    """No moment lies in the future: where the machine's clock was set back, what began then begins now."""
    if max(state.opened_at, state.probe_at, state.closed_at or 0.0) <= now:
        return state
    closed_at = None if state.closed_at is None else min(state.closed_at, now)
    return replace(state, opened_at=min(state.opened_at, now), probe_at=min(state.probe_at, now), closed_at=closed_at)


def settle(
    limits: BreakerSettings, state: BreakerState, outcome: Outcome, now: float, probe: int | None = None
) -> BreakerState:
    """The state after an attempt that was admitted; `probe` is the round of a probe, None: the newest, 0: it was none.

    A late answer while open changes nothing. Nor does one while half-open that is not a probe of this round: it was
    sent before the outage, or given up, and says nothing of how the dependency is now.
    """
    if state.phase == "half_open":
        return _probed(limits, state, outcome, now) if probe in (None, state.round) else state
    if state.phase == "open" or outcome == "neutral":
        return state
    window = _counted(limits, state.window, outcome, now)
    if outcome == "ok":
        return replace(state, consecutive=0, window=window)
    state = replace(state, consecutive=state.consecutive + 1, window=window)
    why = _why_open(limits, state)
    if why is None:
        return state
    return replace(state, phase="open", opened_at=now, open_s=limits.open_s, why=why, closed_at=None)


def _probed(limits: BreakerSettings, state: BreakerState, outcome: Outcome, now: float) -> BreakerState:
    probing = max(0, state.probing - 1)
    if outcome == "neutral":
        return replace(state, probing=probing)
    if outcome == "failed":
        longer = min(max(state.open_s, limits.open_s) * 2, limits.open_max_s)
        return replace(state, phase="open", opened_at=now, open_s=longer, probing=0, probes_ok=0, why="a probe failed")
    if state.probes_ok + 1 < limits.probes:
        return replace(state, probing=probing, probes_ok=state.probes_ok + 1)
    return BreakerState(closed_at=now, round=state.round)


def _counted(
    limits: BreakerSettings, window: tuple[tuple[int, int, int], ...], outcome: Outcome, now: float
) -> tuple[tuple[int, int, int], ...]:
    bucket = int(now / (limits.window_s / BUCKETS))
    counts = {number: (ok, failed) for number, ok, failed in window if bucket - BUCKETS < number <= bucket}
    ok, failed = counts.get(bucket, (0, 0))
    counts[bucket] = (ok + (outcome == "ok"), failed + (outcome == "failed"))
    return tuple((number, *counts[number]) for number in sorted(counts))


def _why_open(limits: BreakerSettings, state: BreakerState) -> str | None:
    if limits.consecutive is not None and state.consecutive >= limits.consecutive:
        return f"{state.consecutive} failures in a row"
    failed = sum(bucket[2] for bucket in state.window)
    calls = failed + sum(bucket[1] for bucket in state.window)
    if limits.failure_rate is None or calls < limits.minimum_calls or failed / calls < limits.failure_rate:
        return None
    return f"{failed} of {calls} calls failed"


def trip(state: BreakerState, until: float, note: str) -> BreakerState:
    """Opened by hand: no probes until its time is over."""
    return replace(state, phase="open", tripped_until=until, why=note)


def admitted_concurrency(limits: BreakerSettings, state: BreakerState, limit: int, now: float) -> int:
    """After closing, concurrency grows from 1 to its limit over `ramp`: parked tasks come back gradually."""
    if state.closed_at is None or limits.ramp_s <= 0 or now >= state.closed_at + limits.ramp_s:
        return limit
    part = max(0.0, now - state.closed_at) / limits.ramp_s
    return max(1, min(limit, int(1 + (limit - 1) * part)))


def relations(policy: BreakerPolicy) -> Iterator[Problem]:
    """Open <= open_max, within one entry."""
    for index, rule in enumerate(policy.shape.rules):
        if rule.open is not None and rule.open_max is not None and rule.open > rule.open_max:
            path = ("rules", index)
            message = f"open {policy.written(*path, 'open')} is above open_max {policy.written(*path, 'open_max')}"
            place = policy.blame((*path, "open"), (*path, "open_max"))
            yield Problem.at(place, message, "write open <= open_max")
