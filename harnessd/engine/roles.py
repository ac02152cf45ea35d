"""Roles: with which tools and model a task works; a feature or an agent of a chain takes over, and gives back (R3.4).

A feature swaps the tools, an agent also the model with its chain and the policies. The system prompt stays as it was
frozen: what changed is told to the model by a notice, before the first answer that it concerns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from harnessd.domain.session import Node, NodeKind, user_payload
from harnessd.engine.protocol import RoleFacts, RunBrief
from harnessd.engine.situation import PendingCall, Situation
from harnessd.policy import fallback as fallback_policy

SORTS = ("feature", "agent")
_WHY_MAX = 200


def worn(brief: RunBrief, roles: Mapping[str, str]) -> RunBrief:
    """The brief with the tools and the model of the roles that stand in; a role that is gone stands in no longer."""
    agent, feature = brief.roles.get(roles.get("agent", "")), brief.roles.get(roles.get("feature", ""))
    if agent is not None and agent.model is not None:
        # Another agent has tools of its own: the feature of the first one is not its.
        return replace(brief, model=agent.model, tools=agent.tools, acting=agent.name.removeprefix("agent/"))
    return brief if feature is None else replace(brief, tools=feature.tools)


def home(s: Situation, sort: str) -> str:
    """The task's own feature or agent, by full name; empty where it has no feature."""
    name = s.own.feature if sort == "feature" else s.own.agent
    return f"{sort}/{name}" if name else ""


def chain(s: Situation, sort: str) -> tuple[str, ...]:
    """Who may stand in for it, in order."""
    return fallback_policy.chain(s.rules.fallback, home(s, sort))[0] if home(s, sort) else ()


def tried(s: Situation, sort: str) -> tuple[str, ...]:
    """The chain is walked once, from the top: the one in use and those before it have had their turn."""
    links, now = chain(s, sort), s.counters.roles.get(sort, "")
    before = links[: links.index(now) + 1] if now in links else ()
    return (home(s, sort), *before)


def without(s: Situation, call: PendingCall, sort: str) -> dict[str, str]:
    """Why links cannot take over from a role whose tool is down."""
    if sort == "feature" and s.brief.acting:
        return dict.fromkeys(chain(s, sort), f"agent/{s.brief.acting} works now")
    return {name: why for name in chain(s, sort) if (why := _lacks(s, name, call.tool))}


def _lacks(s: Situation, name: str, tool: str) -> str:
    role = s.own.roles.get(name)
    if role is None:
        return "harness.yaml does not have it"
    if role.belongs_to and role.belongs_to != s.own.agent:
        return f"it belongs to agent/{role.belongs_to}"
    return f"it works with tool/{tool} too" if any(each.spec.name == tool for each in role.tools) else ""


def take_over(s: Situation, name: str, why: str) -> None:
    """A role of the chain stands in from the next turn on."""
    sort = name.partition("/")[0]
    counters = s.counters
    s.count(
        roles={**counters.roles, sort: name},
        roles_since={**counters.roles_since, sort: s.at},
        roles_why={**counters.roles_why, sort: " ".join(why.split())[:_WHY_MAX]},
    )
    if sort == "agent":
        s.count(link="", probing="")


def at_border(s: Situation) -> None:
    """Before a model call: a first role that had its time away comes back, and what is worn counts from here."""
    clean = s.counters.episode_at is None or not s.counters.tries_of
    for sort, name in s.counters.roles.items():
        gone = name not in s.own.roles or name not in chain(s, sort)
        away_s = s.at - s.counters.roles_since.get(sort, s.at)
        if gone or (clean and fallback_policy.may_return(s.rules.fallback, away_s)):
            _come_back(s, sort)
    s.brief = worn(s.own, s.counters.roles)


def _come_back(s: Situation, sort: str) -> None:
    left = {each: name for each, name in s.counters.roles.items() if each != sort}
    s.count(roles=left)
    if sort == "agent":
        # Its model is asked once; where it still fails, the other takes over again without more tries.
        s.count(link="", probing=s.brief.model.alias)


def told(s: Situation) -> Mapping[str, str]:
    """The roles that the model knows of: those of the newest notice on the path, wherever a branch begins."""
    if not s.counters.roles_since:
        return {}
    for node in reversed(s.path):
        if node.kind is NodeKind.COMPACTION:
            return {}  # what a summary says of them is not relied on
        if node.kind is NodeKind.NOTICE and "roles" in (facts := node.payload.get("facts", {})):
            return cast("Mapping[str, str]", facts["roles"])
    return {}


def shown(s: Situation) -> tuple[Node, ...]:
    """The path as the next request shows it: where the model does not know of the roles yet, with the words on them."""
    path = tuple(s.path)
    if s.counters.roles == told(s):
        return path
    return (*path, Node("", s.head, NodeKind.NOTICE, user_payload(_words(s)), s.at))


def answered(s: Situation) -> None:
    """The model answered under the roles: from now on it knows of them, and the words on them are history."""
    if s.counters.roles != told(s):
        s.append(NodeKind.NOTICE, user_payload(_words(s)) | {"facts": {"roles": dict(s.counters.roles)}})


def _words(s: Situation) -> str:
    lines, known = list[str](), told(s)
    for sort in SORTS:
        now, before = s.counters.roles.get(sort, ""), known.get(sort, "")
        if now == before:
            continue
        if now:
            lines.append(
                f"{home(s, sort)} cannot be used now ({s.counters.roles_why.get(sort, 'it is down').rstrip('.')})."
            )
            lines += [f"Go on as {now}.", _instructions(s, now)]
        else:
            lines.append(f"{home(s, sort)} can be used again: go on as before.")
    tools = ", ".join(tool.spec.name for tool in s.brief.tools) or "none"
    return " ".join(line for line in (*lines, f"Your tools are now: {tools}.") if line)


def _instructions(s: Situation, name: str) -> str:
    role: RoleFacts | None = s.own.roles.get(name)
    return role.add.strip() if role is not None else ""
