"""Fallback: chains of models, tools, features and agents; who takes over, and when the first comes back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.policy.language.facts import MODEL_CLASSES
from harnessd.policy.language.figures import Duration
from harnessd.policy.language.names import Name, Names
from harnessd.policy.language.shape import Policy, Shape
from harnessd.policy.language.source import Problem, did_you_mean
from harnessd.policy.values import Template

_Links = Annotated[
    tuple[Name, ...], Names(sorts=("model", "tool", "mcp", "feature", "agent"), star=False, patterns=False, most=5)
]
_Models = Annotated[tuple[Name, ...], Names(sorts=("model",), star=False, patterns=False, most=5)]


class FallbackShape(Shape):
    """Chains: who takes over."""

    chains: dict[str, _Links] = Field(
        description="Ordinary chain of a model, tool, feature or agent: walked from the top, not followed further."
    )
    by_class: dict[str, _Models] = Field(description="A chain of its own for one class of a model's failures.")
    return_after: Annotated[float | None, Duration(high="7d", none=True)] = Field(
        description="Back to the first link at a turn's border, after one good probe."
    )
    say: Annotated[str, Template(names=("model", "until", "task"))] = Field(
        description="Words for the person when the chain is used up; then parked, never `completed`."
    )


FallbackPolicy = Policy[FallbackShape]


@dataclass(frozen=True, slots=True)
class Link:
    """Who takes over. `passed` are the links that could not, each with the reason."""

    name: str
    rule: RuleRef
    passed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UsedUp:
    """Nobody can. `passed` as in Link; no chain at all has none."""

    rule: RuleRef
    passed: tuple[tuple[str, str], ...] = ()


def chain(policy: FallbackPolicy, home: str, error_class: str | None = None) -> tuple[tuple[str, ...], RuleRef]:
    """The links behind `home` (`model/primary`): those of the class where it has a chain of its own."""
    if error_class is not None and home.startswith("model/") and error_class in policy.shape.by_class:
        links = policy.shape.by_class[error_class]
        ref = policy.ref("by_class", error_class)
    else:
        links = policy.shape.chains.get(home, ())
        ref = policy.ref("chains", home)
    return tuple(link.text for link in links if link.text != home), ref


def next_link(
    policy: FallbackPolicy,
    home: str,
    error_class: str | None,
    tried: Collection[str],
    unable: Mapping[str, str],
) -> Link | UsedUp:
    """The first link that is left and can take the request.

    `tried` are links that failed in this episode; `unable` says why others cannot (window, tools, breaker, price).
    Where a stand-in answered until now, `home` itself was not asked in this episode: it is the last one left. A request
    too large for the stand-in is not brought back to it, since nobody compared their windows.
    """
    links, ref = chain(policy, home, error_class)
    passed: list[tuple[str, str]] = []
    for link in links:
        if link in tried:
            passed.append((link, "it failed in this episode"))
        elif link in unable:
            passed.append((link, unable[link]))
        else:
            return Link(link, ref, tuple(passed))
    if links and tried and home not in tried and home not in unable and error_class != "context_overflow":
        return Link(home, ref, tuple(passed))
    return UsedUp(ref, tuple(passed))


def may_return(policy: FallbackPolicy, away_s: float) -> bool:
    """Whether the first link may be probed after `away_s` seconds on another."""
    after = policy.shape.return_after
    return after is not None and away_s >= after


def relations(policy: FallbackPolicy) -> Iterator[Problem]:
    """Chains without themselves, of one sort; classes that a model's failure can have."""
    for home, links in policy.shape.chains.items():
        at = policy.tree["chains"].keys_at[home]
        sort, slash, rest = home.partition("/")
        if not slash or not rest or sort not in ("model", "tool", "mcp", "feature", "agent"):
            yield Problem.at(
                at, f'"{home}" is not a full name', "write model/ALIAS, tool/NAME, feature/NAME, agent/NAME"
            )
            continue
        for link in links:
            if link.text == home:
                yield Problem.at(link.place, f"{home} stands in its own chain", "remove it")
            elif _group(link.text) != _group(home):
                yield Problem.at(link.place, f"{link.text} is not of the same sort as {home}", f"write {sort}/NAME")
    for name in policy.shape.by_class:
        if name not in MODEL_CLASSES:
            at = policy.tree["by_class"].keys_at[name]
            yield Problem.at(at, f'no class "{name}" of a model', did_you_mean(name, MODEL_CLASSES))


def _group(name: str) -> str:
    sort = name.partition("/")[0]
    return "tool" if sort == "mcp" else sort
