"""Standing: what the running tasks would feel of another policy set, with the counters they have now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harnessd.cli import render
from harnessd.cli.client import Client, Problem
from harnessd.cli.policy.sources import in_force, stored
from harnessd.policy import PolicySet, TaskFacts, TaskPolicies
from harnessd.policy import budget as budget_policy

GUARD_LEAST = 2  # two tasks may always be stopped by an edit (policies.md, "Guard")
_SHOWN = 3  # ids on a line; --json names all


@dataclass(frozen=True, slots=True)
class Stop:
    """A running task that would stop at its next check. `used` and `limit` in the budget's base unit."""

    task: str
    budget: str
    used: float
    limit: float
    place: str


@dataclass(slots=True)
class Felt:
    """What all running tasks would feel."""

    running: int
    guard: float
    stops: list[Stop] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    moved: dict[str, list[str]] = field(default_factory=dict)  # "retry/default -> retry/strict" -> tasks

    @property
    def held(self) -> bool:
        """Whether the guard would keep the set out until a person says yes."""
        return len(self.stops) > max(GUARD_LEAST, self.guard * self.running)

    def json(self) -> dict[str, Any]:
        """With stable keys."""
        stops = [
            {"task": one.task, "budget": one.budget, "used": one.used, "limit": one.limit, "place": one.place}
            for one in self.stops
        ]
        moved = [{"change": change, "tasks": tasks} for change, tasks in self.moved.items()]
        return {
            "running": self.running,
            "stops": stops,
            "warned": self.warned,
            "other_policy": moved,
            "guard": self.guard,
            "would_be_held": self.held,
        }


def felt(client: Client, old: PolicySet, new: PolicySet, agents: Mapping[str, Mapping[str, str]] | None = None) -> Felt:
    """What changes for the running tasks of a daemon. `agents`: what they ask for with the new set."""
    tasks = client.get("/v1/policies/standing")["tasks"]
    guard = client.get("/v1/policies").get("guard")
    found = Felt(len(tasks), guard if isinstance(guard, int | float) else 0.1)
    pinned: dict[int, PolicySet | None] = {}
    for row in tasks:
        now = agents.get(row["agent"], {}) if agents is not None else row.get("wishes", {})
        kept = _pinned(client, row.get("pinned_revision"), pinned)
        before = _of(row, kept or old, row.get("wishes", {}))
        after = _of(row, kept or new, row.get("wishes", {}) if kept else now)
        _judge(row, before, after, found)
    return found


def _pinned(client: Client, number: int | None, known: dict[int, PolicySet | None]) -> PolicySet | None:
    """The set that a pinned task stays at. One that is gone cannot hold it."""
    if number is None:
        return None
    if number not in known:
        try:
            known[number] = stored(client, number).policies
        except Problem as problem:
            if problem.exit_code == 3:
                raise
            known[number] = None
    return known[number]


def _of(row: Mapping[str, Any], policies: PolicySet, wishes: Mapping[str, str]) -> TaskPolicies:
    facts = TaskFacts(row["task"], row["agent"], row.get("workspace", ""), row.get("labels", {}), row["priority"])
    return policies.for_task(facts, wishes, row.get("policies", {}), row.get("budget", {}))


def _judge(row: Mapping[str, Any], before: TaskPolicies, after: TaskPolicies, found: Felt) -> None:
    task, used, given = row["task"], row["used"], row.get("warned", [])
    was, now = (budget_policy.judge(policies.budget, used, given) for policies in (before, after))
    if now.exhausted is not None and was.exhausted is None:
        end = now.exhausted
        found.stops.append(Stop(task, end.budget, end.used, end.limit, f"{end.rule.file}:{end.rule.line}"))
    elif {mark for one in now.warnings for mark in one.marks} - {mark for one in was.warnings for mark in one.marks}:
        found.warned.append(task)
    for kind, (name, _why) in after.chosen.items():
        old_name = before.chosen[kind][0]
        if old_name != name:
            found.moved.setdefault(f"{kind}/{old_name} -> {kind}/{name}", []).append(task)


def held_sentence(client: Client, number: int) -> str | None:
    """Why the guard holds a set, with the value that does it and its line."""
    try:
        found = felt(client, in_force(client).whole, stored(client, number).whole)
    except Problem:
        return None
    if not found.stops:
        return None
    stop = found.stops[0]
    change = f"{stop.budget} {render.amount(stop.budget, stop.limit)}, {stop.place}"
    return (
        f"r{number} is held: it would stop {len(found.stops)} of {found.running} running tasks at their next check "
        f"({change}).\nMend it, or apply it: harnessctl policy reload --yes"
    )


def felt_lines(found: Felt) -> Iterator[str]:
    """The same for people."""
    if not found.running:
        yield "running tasks: none"
        return
    yield f"running tasks, with the counters they have now: {found.running}"
    if not (found.stops or found.warned or found.moved):
        yield "  nothing changes for them"
        return
    rows: list[list[object]] = []
    by_limit: dict[tuple[str, float], list[Stop]] = {}
    for stop in found.stops:
        by_limit.setdefault((stop.budget, stop.limit), []).append(stop)
    for (budget, limit), stops in by_limit.items():
        amounts = sorted({stop.used for stop in stops})
        shown = [render.amount(budget, amount) for amount in (amounts[0], amounts[-1])]
        used = shown[0] if len(amounts) == 1 else f"{shown[0]} to {shown[1]}"
        words = f"{budget} {used} used, new limit {render.amount(budget, limit)}   {_ids([one.task for one in stops])}"
        rows.append(["  stop at the next check", len(stops), words])
    if found.warned:
        rows.append(["  warned", len(found.warned), _ids(found.warned)])
    for change, tasks in found.moved.items():
        rows.append(["  other policy", len(tasks), f"{change}   {_ids(tasks)}"])
    yield from render.table(rows, right=(1,))
    if found.held:
        yield f"! above the guard ({found.guard:.0%}): this will be held until `harnessctl policy reload --yes`"


def _ids(tasks: list[str]) -> str:
    return " ".join(tasks[:_SHOWN]) + (" ..." if len(tasks) > _SHOWN else "")
