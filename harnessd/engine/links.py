"""Links: which model answers, who could take over and why not, when the first comes back; what people are told."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from harnessd.defence.incident import Incident, Links
from harnessd.engine import reserving
from harnessd.engine.protocol import ModelFacts
from harnessd.engine.situation import PendingCall, Situation
from harnessd.policy import budget as budget_policy
from harnessd.policy import fallback as fallback_policy
from harnessd.policy.fallback import UsedUp
from harnessd.policy.values import fill

_A_DAY_S = 86_400.0


def models(s: Situation) -> Mapping[str, ModelFacts]:
    """All models that a chain may name, the task's own included, by alias."""
    return {**s.brief.models, s.brief.model.alias: s.brief.model}


def choose(s: Situation) -> ModelFacts:
    """The model of the next attempt. At a turn's border a first link that had its time is tried again (R3.4)."""
    counters, home = s.counters, s.brief.model.alias
    if counters.link and (counters.link == home or counters.link not in models(s)):
        s.count(link="", probing="")
    elif counters.link and counters.episode_at is None and _had_its_time(s):
        s.count(link="", probing=counters.link)
    return models(s)[s.counters.link or home]


def _had_its_time(s: Situation) -> bool:
    return fallback_policy.may_return(s.rules.fallback, s.at - s.counters.link_since)


def of_model(s: Situation, alias: str) -> Links:
    """The chain's state when an attempt on `alias` failed."""
    home, tries = s.brief.model.alias, s.counters.tries_of
    shape = s.rules.fallback.shape
    tried = tuple(f"model/{link}" for link in tries)
    links = Links(f"model/{home}", tried, here=tries.get(alias, 0), probing=bool(s.counters.probing))
    if not shape.by_class and f"model/{home}" not in shape.chains:
        return links
    size = reserving.input_tokens(s)
    window = models(s)[alias].window if alias in models(s) else 0
    unable, too_small = {}, {}
    for name, facts in _declared(s).items():
        why = "harness.yaml has no such model" if facts is None else _unable(s, facts, size)
        if why:
            unable[name] = why
        if facts is not None and facts.window <= window:
            too_small[name] = f"its window of {facts.window} is not larger"
    return Links(links.home, tried, unable, too_small, links.here, links.probing)


def _declared(s: Situation) -> dict[str, ModelFacts | None]:
    shape, known = s.rules.fallback.shape, models(s)
    chains = (shape.chains.get(f"model/{s.brief.model.alias}", ()), *shape.by_class.values())
    names = {link.text for chain in chains for link in chain}
    return {name: known.get(name.removeprefix("model/")) for name in names}


def _unable(s: Situation, model: ModelFacts, size: int) -> str:
    if size >= model.window:
        return f"its window of {model.window} is smaller than the request of about {size}"
    if s.brief.tools and not model.tools:
        return "it cannot call tools"
    budget = s.rules.budget
    limited = budget_policy.limit_of(budget, "cost_usd") is not None
    if limited and not model.priced and budget.shape.unknown_price == "refuse":
        return "its price is not known, and the task has a cost limit"
    return ""


def of_tool(s: Situation, call: PendingCall) -> Links:
    """The chain's state when a tool's call failed."""
    home = f"tool/{call.use.name}"
    mine = {f"tool/{tool.spec.name}" for tool in s.brief.tools}
    chain, _ = fallback_policy.chain(s.rules.fallback, home)
    unable = {link: "the agent does not have it" for link in chain if link not in mine}
    # A chain is walked once: what stands before the tool in use has had its turn.
    before = chain[: chain.index(call.name)] if call.name in chain else ()
    return Links(home, (home, *before, call.name), unable)


def take_over(s: Situation, name: str) -> None:
    """The next attempt goes to this link; its own tries and its time begin now."""
    alias = name.removeprefix("model/")
    s.count(link="" if alias == s.brief.model.alias else alias, link_since=s.at, probing="")


def answered(s: Situation, alias: str) -> None:
    """A model answered: a degradation begins or ends, an outage is over."""
    home = s.brief.model.alias
    stands_in(s, f"model/{home}", f"model/{alias}")
    s.count(probing="", tries_of={}, streak={})
    end_outage(s, answered=True)


def stands_in(s: Situation, home: str, link: str) -> None:
    """Who answered for whom: the first answer of a stand-in and the way back are events (R3.4)."""
    before = s.counters.degraded.get(home)
    others = {name: stand_in for name, stand_in in s.counters.degraded.items() if name != home}
    if link == home:
        if before is not None:
            s.count(degraded=others)
            s.say("recovered", dependency=home, link=before, sentence=f"{home} answers again.")
    elif before != link:
        s.count(degraded={**others, home: link})
        s.say("degraded", dependency=home, link=link, sentence=f"{link} answers for {home} until it is healthy again.")


def end_round(s: Situation) -> None:
    """Parking ends the round through the chain: the next one begins at the first link."""
    s.count(tries_of={}, link="", probing="")


def begin_outage(s: Situation, it: Incident, until: float) -> None:
    """The task is parked for a dependency: one alert for all its parks until something answers (R3.2a)."""
    dependency, error_class = it.failure.dependency, it.error_class.value
    if not s.counters.outage:
        s.count(outage=dependency)
        s.say("outage_started", dependency=dependency, until=until, **{"class": error_class})


def end_outage(s: Situation, *, answered: bool) -> None:
    """It is over, or the task no longer waits for its end."""
    if s.counters.outage:
        s.say("outage_ended", dependency=s.counters.outage, answered=answered)
        s.count(outage="")


def parked_words(s: Situation, it: Incident, until: float) -> str:
    """Why the task is parked. Where a chain was used up, a person reads the policy's own words first."""
    failure = it.failure
    said = " ".join(failure.message.split())[:200]
    why = f"{failure.dependency}: {it.error_class.value}: {said}"
    if not isinstance(it.following, UsedUp) or not it.following.passed:
        return why
    moment = datetime.fromtimestamp(until, UTC)
    shown = moment.strftime("%H:%M UTC" if until - s.at < _A_DAY_S else "%Y-%m-%d %H:%M UTC")
    words = {"model": s.brief.model.alias, "until": shown, "task": s.brief.task}
    return f"{fill(s.rules.fallback.shape.say, words)} ({why})"
