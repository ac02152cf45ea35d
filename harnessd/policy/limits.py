"""Limits: what is allowed at the same time, per minute, per day, and how long one call may take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.policy.language.figures import Count, Duration, Ratio, Usd
from harnessd.policy.language.names import Ladder, Name, Names
from harnessd.policy.language.shape import UNSTATED, Entry, Policy, Shape, stated
from harnessd.policy.language.source import Problem

FREE_RETRIES_PER_MINUTE = 10  # a retry share never holds back so few


class CallTimeout(Shape):
    """The clocks of one attempt."""

    connect: Annotated[float, Duration(low="100ms", high="5m")] | None = Field(None, description="Until connected.")
    first_event: Annotated[float, Duration(low="1s", high="1h")] | None = Field(
        None, description="From sent to the first useful event; pings are none."
    )
    idle: Annotated[float, Duration(low="1s", high="1h")] | None = Field(None, description="Between useful events.")
    call: Annotated[float, Duration(low="1s", high="6h")] | None = Field(None, description="One attempt, whole.")


class LimitRule(Entry):
    """Limits of some names; each leaf comes from the first entry that fits and states it."""

    for_: Annotated[tuple[Name, ...], Names(star=False)] = Field(
        alias="for", description='Required; each concrete name has counters of its own. A bare "*" is refused.'
    )
    concurrency: Annotated[int | None, Count(low="1", high="10k", none=True)] = Field(
        None, description="Calls (model, tool, mcp) or running tasks (agent, label, daemon) at once; more wait in line."
    )
    requests_per_minute: Annotated[int | None, Count(low="1", high="1M", none=True)] = Field(
        None, description="Calls in a minute."
    )
    tokens_per_minute: Annotated[int | None, Count(low="1", high="1000M", none=True)] = Field(
        None, description="Tokens in a minute."
    )
    cost_usd_per_day: Annotated[float | None, Usd(high="1000000", none=True)] = Field(
        None, description="By UTC day, reserved before the call."
    )
    do: Annotated[tuple[str, ...], Ladder(actions=("park", "fallback", "needs_human", "stop"))] | None = Field(
        None, description="When the day's money is used up; park = until 00:00 UTC."
    )
    retry_share: Annotated[float | None, Ratio(low="1%", none=True)] = Field(
        None, description="Retries may be this part of a minute's calls; 10 a minute are always free."
    )
    timeout: CallTimeout | None = Field(None, description="The clocks of one attempt.")


class LimitsShape(Shape):
    """What is allowed at the same time, per minute, per day, and how long one call may take."""

    rules: tuple[LimitRule, ...] = Field(description="Settings by name.")


LimitsPolicy = Policy[LimitsShape]


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """The limits of one concrete name; None = no such limit. Times are seconds; `refs` gives the line of each leaf."""

    name: str
    concurrency: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    cost_usd_per_day: float | None
    do: tuple[str, ...]
    retry_share: float | None
    connect_s: float
    first_event_s: float
    idle_s: float
    call_s: float
    refs: Mapping[str, RuleRef]


_LEAVES: Mapping[tuple[str, ...], Any] = {
    ("concurrency",): None,
    ("requests_per_minute",): None,
    ("tokens_per_minute",): None,
    ("cost_usd_per_day",): None,
    ("do",): ("park",),
    ("retry_share",): None,
    ("timeout", "connect"): 10.0,
    ("timeout", "first_event"): 55.0,
    ("timeout", "idle"): 55.0,
    ("timeout", "call"): 600.0,
}


def settings(policy: LimitsPolicy, name: str) -> LimitSettings:
    """The limits of one name (`model/primary`, `agent/coder`, `label/team=web`, `daemon`)."""
    values, refs = _leaves(policy, (name,))
    return LimitSettings(
        name=name,
        concurrency=values["concurrency"],
        requests_per_minute=values["requests_per_minute"],
        tokens_per_minute=values["tokens_per_minute"],
        cost_usd_per_day=values["cost_usd_per_day"],
        do=values["do"],
        retry_share=values["retry_share"],
        connect_s=values["timeout.connect"],
        first_event_s=values["timeout.first_event"],
        idle_s=values["timeout.idle"],
        call_s=values["timeout.call"],
        refs=refs,
    )


def _leaves(policy: LimitsPolicy, touched: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, RuleRef]]:
    values: dict[str, Any] = {}
    refs: dict[str, RuleRef] = {}
    fitting = [(i, rule) for i, rule in enumerate(policy.shape.rules) if rule.fits(touched, lambda _name: None)]
    for path, default in _LEAVES.items():
        key = ".".join(path)
        values[key] = default
        for index, rule in fitting:
            value = stated(rule, *path)
            if value is not UNSTATED:
                values[key], refs[key] = value, policy.ref("rules", index, *path)
                break
    return values, refs


@dataclass(frozen=True, slots=True)
class Load:
    """What runs and ran under one name: now, in the last minute, in this UTC day (reservations included)."""

    running: int = 0
    requests_in_minute: int = 0
    tokens_in_minute: int = 0
    retries_in_minute: int = 0
    cost_usd_today: float = 0.0


@dataclass(frozen=True, slots=True)
class Held:
    """Why a call does not pass now: it waits in line, or `do` is the ladder where the day's money is used up."""

    limit: str
    sentence: str
    rule: RuleRef
    do: tuple[str, ...] = ()


def admit(
    limits: LimitSettings, load: Load, *, tokens: int = 0, cost_usd: float = 0.0, retry: bool = False
) -> Held | None:
    """None where one more call passes; `tokens` and `cost_usd` are what it is expected to use."""
    cost = limits.cost_usd_per_day
    if cost is not None and load.cost_usd_today + cost_usd > cost:
        sentence = f"{load.cost_usd_today:.2f} of {cost:.2f} USD a day used by {limits.name}"
        return Held("cost_usd_per_day", sentence, limits.refs["cost_usd_per_day"], limits.do)
    counted = (
        ("concurrency", limits.concurrency, load.running, 1),
        ("requests_per_minute", limits.requests_per_minute, load.requests_in_minute, 1),
        ("tokens_per_minute", limits.tokens_per_minute, load.tokens_in_minute, tokens),
    )
    for key, limit, used, more in counted:
        # A single call larger than a whole minute's limit passes alone: waiting longer would not help it.
        if limit is not None and used and used + more > limit:
            return Held(key, f"{used} of {limit} {key} used by {limits.name}", limits.refs[key])
    if retry and limits.retry_share is not None and load.retries_in_minute >= FREE_RETRIES_PER_MINUTE:
        allowed = limits.retry_share * max(1, load.requests_in_minute)
        if load.retries_in_minute + 1 > allowed:
            sentence = f"{load.retries_in_minute} of {load.requests_in_minute} calls in a minute were retries"
            return Held("retry_share", sentence, limits.refs["retry_share"])
    return None


def relations(policy: LimitsPolicy) -> Iterator[Problem]:
    """idle, first_event <= call, within one entry."""
    for index, rule in enumerate(policy.shape.rules):
        if rule.timeout is None:
            continue
        call = stated(rule.timeout, "call")
        for key in ("idle", "first_event"):
            value = stated(rule.timeout, key)
            if value and call and value > call:
                path = ("rules", index, "timeout")
                message = f"timeout.{key} {policy.written(*path, key)} is above call {policy.written(*path, 'call')}"
                yield Problem.at(policy.place(*path, key), message, f"write a call of at least {key}")
