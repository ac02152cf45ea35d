"""Budget: what one task may use; warnings on the way, one stop at the end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.policy.language.facts import BUDGETS
from harnessd.policy.language.figures import Count, Duration, Ratio, Usd
from harnessd.policy.language.shape import Policy, Shape
from harnessd.policy.language.source import MapNode, Place, Problem, Scalar
from harnessd.policy.values import Flag, ListOf, Template, Word, fill

# How large a session may grow: warned of and ended at, as Temporal bounds a history, so that it can be read and moved.
SESSION_NODES = (10_240, 51_200)
SESSION_BYTES = (10_000_000, 50_000_000)
SESSION_SIZE = "session_size"  # no budget of policy: no one task may raise it
TIMES = frozenset({"working_time", "wall_time", "age", "silence"})


class BudgetLimits(Shape):
    """The limits; each may be `none`."""

    tool_calls: Annotated[int | None, Count(high="1M", none=True)] = Field(description="Tool calls of the task.")
    turns: Annotated[int | None, Count(low="1", high="1M", none=True)] = Field(description="Model calls of the task.")
    tokens: Annotated[int | None, Count(low="1", high="10000M", none=True)] = Field(
        description="Input with cache + output, fallbacks and summaries too."
    )
    cost_usd: Annotated[float | None, Usd(high="100000", none=True)] = Field(
        description="Money: reserved before each call, settled after."
    )
    working_time: Annotated[float | None, Duration(low="1s", high="365d", none=True)] = Field(
        description="Model and tool time only."
    )
    wall_time: Annotated[float | None, Duration(low="1s", high="365d", none=True)] = Field(
        description="Since the first start, without parked time and waiting for a person."
    )
    age: Annotated[float | None, Duration(low="1m", high="365d", none=True)] = Field(
        description="Since submit, everything counted."
    )
    silence: Annotated[float | None, Duration(low="5s", high="7d", none=True)] = Field(
        description="No sign of life in a phase that has no clock of its own."
    )


class BudgetShape(Shape):
    """What one task may use."""

    limits: BudgetLimits = Field(description="The limits of one task.")
    warn_at: Annotated[tuple[float, ...], ListOf(each=Ratio(low="1%", high="99.9%"), most=5, rising=True)] = Field(
        description="One line in the newest tool result at each of these parts, once each."
    )
    warning: Annotated[str, Template(names=("used", "limit", "left", "budget"))] = Field(
        description="The words of a warning."
    )
    last_turn: Annotated[bool, Flag()] = Field(description="At 100 %: one more model call without tools, to sum up.")
    unknown_price: Annotated[str, Word(words=("dearest", "refuse"))] = Field(
        description="A model without price: charged as the dearest declared one, or not called."
    )


BudgetPolicy = Policy[BudgetShape]


@dataclass(frozen=True, slots=True)
class Warning:  # noqa: A001 - the field's term
    """One line for the agent. `marks` are all levels that count as said with it, as `tool_calls:70%`."""

    budget: str
    level: str
    sentence: str
    rule: RuleRef
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A limit that is used up. Times are seconds."""

    budget: str
    used: float
    limit: float
    sentence: str
    rule: RuleRef


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the budgets say now."""

    warnings: tuple[Warning, ...] = ()
    exhausted: Exhausted | None = None


def judge(policy: BudgetPolicy, used: Mapping[str, float], warned: Collection[str]) -> Verdict:
    """Warnings that are due and the first limit that is reached; `warned` holds the marks already given.

    `used` may hold `session_nodes` and `session_bytes` too: how large the session has grown, with bounds of its own.
    `silence` is the watchdog's: it has no warnings and is not judged here.
    """
    warnings: list[Warning] = []
    for budget in BUDGETS:
        limit = limit_of(policy, budget)
        if limit is None or budget == "silence" or budget not in used:
            continue
        if used[budget] >= limit:
            return Verdict((), _exhausted(policy, budget, used[budget], limit))
        warning = _warning(policy, budget, used[budget], limit, warned)
        if warning is not None:
            warnings.append(warning)
    grown = _session(policy, used)
    if isinstance(grown, Exhausted):
        return Verdict((), grown)
    if grown is not None and grown.marks[0] not in warned:
        warnings.append(grown)
    return Verdict(tuple(warnings))


def session_full(nodes: float, size: float) -> bool:
    """Whether a session of so many nodes and bytes is at its end."""
    return nodes >= SESSION_NODES[1] or size >= SESSION_BYTES[1]


def _session(policy: BudgetPolicy, used: Mapping[str, float]) -> Warning | Exhausted | None:
    nodes, size = used.get("session_nodes", 0), used.get("session_bytes", 0)
    rule = policy.ref("limits")
    if session_full(nodes, size):
        by_nodes = nodes >= SESSION_NODES[1]
        sentence = (
            f"the session holds {int(nodes)} of {SESSION_NODES[1]} nodes"
            if by_nodes
            else f"the session holds {size / 1e6:.1f} of {SESSION_BYTES[1] / 1e6:.0f} MB"
        )
        many, most = (nodes, SESSION_NODES[1]) if by_nodes else (size, SESSION_BYTES[1])
        return Exhausted(SESSION_SIZE, many, most, sentence, rule)
    if nodes < SESSION_NODES[0] and size < SESSION_BYTES[0]:
        return None
    words = (
        f"This session holds {int(nodes)} nodes and {size / 1e6:.1f} MB; it ends at {SESSION_NODES[1]} nodes or"
        f" {SESSION_BYTES[1] / 1e6:.0f} MB. Finish within it, or leave what a new task needs in a file."
    )
    return Warning(SESSION_SIZE, "warn", words, rule, (f"{SESSION_SIZE}:warn",))


def limit_of(policy: BudgetPolicy, budget: str) -> float | None:
    """The limit of a budget in its base unit (a count, USD or seconds), or None for `none`."""
    value: float | None = getattr(policy.shape.limits, budget)
    return value


def _warning(policy: BudgetPolicy, budget: str, used: float, limit: float, warned: Collection[str]) -> Warning | None:
    passed = [level for level in policy.shape.warn_at if used >= level * limit - 1e-9]
    if not passed:
        return None
    marks = tuple(mark_of(budget, level) for level in passed)
    if marks[-1] in warned:
        return None
    words = {
        "used": shown(budget, used),
        "limit": shown(budget, limit),
        "left": shown(budget, max(0.0, limit - used)),
        "budget": budget,
    }
    sentence = fill(policy.shape.warning, words)
    fresh = tuple(mark for mark in marks if mark not in warned)
    return Warning(budget, marks[-1].split(":")[1], sentence, policy.ref("limits", budget), fresh)


def _exhausted(policy: BudgetPolicy, budget: str, used: float, limit: float) -> Exhausted:
    # The last turn, which sums up, has a reserve of its own: it is not one of those that the limit counts.
    told = min(used, limit) if budget == "turns" else used
    sentence = f"{shown(budget, told)} of {shown(budget, limit)} {budget} used"
    return Exhausted(budget, used, limit, sentence, policy.ref("limits", budget))


def mark_of(budget: str, level: float) -> str:
    """The key under which a warning is remembered."""
    return f"{budget}:{level * 100:g}%"


def shown(budget: str, amount: float) -> str:
    """An amount as people read it: `63`, `3.50`, `1h24m`."""
    if budget == "cost_usd":
        return f"{amount:.2f}"
    if budget not in TIMES:
        return f"{amount:g}" if amount < 1_000_000 else str(int(amount))
    return shown_duration(amount)


def shown_duration(seconds: float) -> str:
    """A duration as policies write it, at most two units: `1h24m`, `7d`, `12s`."""
    whole = int(seconds)
    if whole == 0:
        return f"{int(seconds * 1000)}ms" if seconds > 0 else "0s"
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        amount, whole = divmod(whole, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts[:2])


def with_limits(policy: BudgetPolicy, budget: Mapping[str, float]) -> BudgetPolicy:
    """The policy with limits of one task on top, as `submit --budget` and `set --budget` give them."""
    known = {name: amount for name, amount in budget.items() if name in BUDGETS}
    if not known:
        return policy
    limits = policy.shape.limits.model_copy(
        update={name: amount if name in TIMES or name == "cost_usd" else int(amount) for name, amount in known.items()}
    )
    tree = policy.tree.copy()
    written: MapNode = tree["limits"].copy()
    for name, amount in known.items():
        place = Place(f"--budget {name}")
        written.put(name, Scalar(shown(name, amount), plain=True, place=place), place)
    tree["limits"] = written
    return replace(policy, shape=policy.shape.model_copy(update={"limits": limits}), tree=tree)


def relations(policy: BudgetPolicy) -> Iterator[Problem]:
    """Nothing here is impossible by itself: a level twice or out of order is refused when it is read."""
    del policy
    yield from ()
