"""Warnings: what is allowed but is hardly meant: entries never reached, policies nobody uses, limits cut short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harnessd.policy.assembly.references import Known
from harnessd.policy.budget import shown_duration
from harnessd.policy.language.facts import MODEL_CLASSES, TOOL_CLASSES
from harnessd.policy.language.names import Name
from harnessd.policy.language.shape import UNSTATED, Entry, Policy, Shape, stated
from harnessd.policy.language.source import Place, Problem

Policies = Mapping[tuple[str, str], Policy[Any]]

_DECISIONS = (("retry", "rules"), ("tools", "permissions"), ("escalation", "rules"))
_SETTINGS = (("breaker", "rules"), ("limits", "rules"), ("tools", "rules"), ("tools", "shims"), ("notify", "rules"))
_HEAD = frozenset({"name", "for_", "when", "unless", "note", "enabled"})


def warnings(policies: Policies, known: Known) -> Iterator[Problem]:
    """Everything of the set that deserves a word; nothing of it stops the set."""
    for policy in policies.values():
        for kind, key in _DECISIONS:
            if policy.kind == kind:
                yield from _undecided(policy, key)
        for kind, key in _SETTINGS:
            if policy.kind == kind:
                yield from _unsaid(policy, key)
        if policy.kind == "assign":
            yield from _unassigned(policy)
    yield from _unused(policies, known)
    yield from _cut_short(policies, known)


# --- entries that are never reached -----------------------------------------------------------------------------------


def covers(first: Sequence[Name], second: Sequence[Name]) -> bool:
    """Whether whatever `second` means is meant by `first` too. A star in `second` can only fit a star of `first`."""
    return all(any(name.text == "*" or name.fits(other.text) for name in first) for other in second)


def _before(first: Entry, second: Entry) -> bool:
    """Whether the first entry fits whenever the second does."""
    return (
        first.enabled
        and second.enabled
        and not first.unless.clauses
        and (first.when.always or first.when == second.when)
        and covers(first.for_, second.for_)
    )


def _undecided(policy: Policy[Any], key: str) -> Iterator[Problem]:
    """Entries of a list of decisions behind one that always decides."""
    entries: tuple[Any, ...] = getattr(policy.shape, key)
    for place, entry in enumerate(entries):
        if getattr(entry, "do", None) == "deny":
            continue  # a deny wins wherever it stands
        earlier = next((i for i in range(place) if _before(entries[i], entry) and _same_group(entries[i], entry)), None)
        if earlier is not None:
            yield from _never(policy, key, place, earlier)


def _same_group(first: Any, second: Any) -> bool:
    """Rules of retry decide only for the sources that know their class."""
    one, two = getattr(first, "class_", "ok"), getattr(second, "class_", "ok")
    for group, sorts in ((MODEL_CLASSES, ("model/",)), (TOOL_CLASSES, ("tool/", "mcp/"))):
        concerned = any("*" in name.text.split("/")[0] or name.text.startswith(sorts) for name in second.for_)
        if concerned and one != "ok" and one not in group and two in (*group, "ok"):
            return False
    return True


def _unassigned(policy: Policy[Any]) -> Iterator[Problem]:
    """Rules of assign whose every kind is decided before."""
    rules = policy.shape.rules
    for place, rule in enumerate(rules):
        decided: dict[str, int] = {}
        for earlier in range(place):
            if _before(rules[earlier], rule):
                for kind in rules[earlier].use.model_fields_set:
                    decided.setdefault(kind, earlier)
        if rule.use.model_fields_set and rule.use.model_fields_set <= set(decided):
            yield from _never(policy, "rules", place, min(decided.values()))


def _unsaid(policy: Policy[Any], key: str) -> Iterator[Problem]:
    """Entries of a list of settings whose every leaf is given by others before."""
    entries: tuple[Any, ...] = getattr(policy.shape, key)
    for place, entry in enumerate(entries):
        said = list(_stated_leaves(entry))
        givers = [
            next(
                (i for i in range(place) if _before(entries[i], entry) and stated(entries[i], *leaf) is not UNSTATED),
                None,
            )
            for leaf in said
        ]
        found = [giver for giver in givers if giver is not None]
        if said and len(found) == len(said):
            yield from _never(policy, key, place, found[0])


def _stated_leaves(shape: Shape, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in shape.model_fields_set - (_HEAD if not path else frozenset()):
        value = getattr(shape, name)
        if isinstance(value, Shape):
            yield from _stated_leaves(value, (*path, name))
        else:
            yield (*path, name)


def _never(policy: Policy[Any], key: str, place: int, earlier: int) -> Iterator[Problem]:
    """Said without the policy's name, so that heirs of the entry do not repeat it."""
    at = policy.place(key, place)
    if at.builtin:
        return
    name, other = policy.ref(key, place).rule, policy.ref(key, earlier).rule
    message = f"{name} is never reached: {other} ({policy.place(key, earlier)}) fits before it"
    yield Problem.at(at, message, "put it above, or remove it")


# --- policies that nobody uses ----------------------------------------------------------------------------------------


def _unused(policies: Policies, known: Known) -> Iterator[Problem]:
    used = {(kind, name) for wishes in known.agent_policies.values() for kind, name in wishes.items()}
    assign = policies.get(("assign", "default"))
    for rule in assign.shape.rules if assign else ():
        used |= {(kind, getattr(rule.use, kind)) for kind in rule.use.model_fields_set}
    for policy in policies.values():
        for title in policy.chain[1:]:
            kind, _, name = title.removeprefix("builtin ").partition("/")
            used.add((kind, name))
    for (kind, name), policy in policies.items():
        if not policy.shipped and (kind, name) not in used:
            message = f"{kind}/{name} is used by no agent and no rule of assign"
            yield Problem.at(policy.tree.place, message, "it can still be named: submit --policy")


# --- limits that cut one another short --------------------------------------------------------------------------------


def _cut_short(policies: Policies, known: Known) -> Iterator[Problem]:
    for tools, budget, retry in sorted(_combinations(policies, known)):
        limits = policies["budget", budget]
        wall = limits.shape.limits.wall_time
        if wall is None:
            continue
        wall_at = limits.place("limits", "wall_time")
        chosen = policies["tools", tools]
        for index, rule in enumerate(chosen.shape.rules):
            life = stated(rule.timeout, "life") if rule.timeout is not None else None
            if life and life > wall:
                yield from _shorter(
                    chosen.place("rules", index, "timeout", "life"), "timeout.life", life, wall_at, wall
                )
        calls = policies["retry", retry]
        deadline = calls.shape.model.deadline
        if deadline > wall:
            yield from _shorter(calls.place("model", "deadline"), "model.deadline", deadline, wall_at, wall)


def _shorter(place: Place, what: str, length: float, wall_at: Place, wall: float) -> Iterator[Problem]:
    if place.builtin and wall_at.builtin:
        return
    at, other = (place, wall_at) if not place.builtin else (wall_at, place)
    message = f"{what} {shown_duration(length)} is above wall_time {shown_duration(wall)} ({other}): the smaller wins"
    yield Problem.at(at, message, "raise wall_time, or leave it so")


def _combinations(policies: Policies, known: Known) -> set[tuple[str, str, str]]:
    """The tools, budget and retry policies that stand together for some task."""
    wishes: list[Mapping[str, str]] = [{}, *known.agent_policies.values()]
    assign = policies.get(("assign", "default"))
    rules = assign.shape.rules if assign else ()
    wishes.extend({kind: getattr(rule.use, kind) for kind in rule.use.model_fields_set} for rule in rules)
    found = set()
    for wish in wishes:
        names = tuple(wish.get(kind, "default") for kind in ("tools", "budget", "retry"))
        if all((kind, name) in policies for kind, name in zip(("tools", "budget", "retry"), names, strict=True)):
            found.add((names[0], names[1], names[2]))
    return found
