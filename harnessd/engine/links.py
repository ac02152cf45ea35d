"""Links: which model answers, who could take over and why not, when the first comes back; what people are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from harnessd.defence.incident import DOWN, Incident, Links, Standby
from harnessd.domain.failure import Failure
from harnessd.domain.messages import OpaqueBlock, Usage
from harnessd.domain.session import blocks_of
from harnessd.engine import reserving, roles
from harnessd.engine.protocol import ModelFacts
from harnessd.engine.situation import PendingCall, Situation
from harnessd.policy import fallback as fallback_policy
from harnessd.policy.fallback import UsedUp
from harnessd.policy.values import fill

_A_DAY_S = 86_400.0
_ROLES = ("feature/", "agent/")


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
    model = models(s)[s.counters.link or home]
    if not reserving.may_call(s, model) and (name := _first_that_may_be_called(s)):
        take_over(s, name)
    return models(s)[s.counters.link or home]


def _first_that_may_be_called(s: Situation) -> str:
    """Of the ordinary chain, the first link that can take the request; empty where none can."""
    size = reserving.input_tokens(s)
    chain, _ = fallback_policy.chain(s.rules.fallback, f"model/{s.brief.model.alias}")
    known = ((name, models(s).get(name.removeprefix("model/"))) for name in chain)
    able = (name for name, facts in known if facts and not _unable(s, facts, size, tools=bool(s.brief.tools)))
    return next(able, "")


def _had_its_time(s: Situation) -> bool:
    return fallback_policy.may_return(s.rules.fallback, s.at - s.counters.link_since)


def of_model(s: Situation, alias: str) -> Links:
    """The chain's state when an attempt on `alias` failed."""
    home, tries = s.brief.model.alias, s.counters.tries_of
    shape = s.rules.fallback.shape
    tried = tuple(f"model/{link}" for link in tries)
    links = Links(f"model/{home}", tried, here=tries.get(alias, 0), probing=bool(s.counters.probing))
    agents = roles.chain(s, "agent")
    if not shape.by_class and f"model/{home}" not in shape.chains and not agents:
        return links
    size = reserving.input_tokens(s)
    window = models(s)[alias].window if alias in models(s) else 0
    unable, too_small = {}, {}
    for name, facts in _declared(s).items():
        why = "harness.yaml has no such model" if facts is None else _unable(s, facts, size, tools=bool(s.brief.tools))
        if why:
            unable[name] = why
        if facts is not None and facts.window <= window:
            too_small[name] = f"its window of {facts.window} is not larger"
    then = (_other_agents(s, agents, size),) if agents else ()
    waits = [at for link, at in s.counters.reachable.items() if link != alias]
    reachable_in_s = max(0.0, min(waits) - s.at) if waits else None
    return replace(links, unable=unable, too_small=too_small, then=then, reachable_in_s=reachable_in_s)


def _other_agents(s: Situation, agents: tuple[str, ...], size: int) -> Standby:
    """Who may take the task where all models of its agent are down."""
    unable = {}
    for name in agents:
        role = s.own.roles.get(name)
        if role is None or role.model is None:
            unable[name] = "harness.yaml does not have it"
        elif role.model.alias == s.brief.model.alias:
            unable[name] = f"it works with model/{role.model.alias} too"
        elif role.model.alias in s.counters.tries_of:
            unable[name] = f"its model/{role.model.alias} failed in this episode"
        elif why := _unable(s, role.model, size, tools=bool(role.tools)):
            unable[name] = f"its model/{role.model.alias}: {why}"
    return Standby(roles.home(s, "agent"), roles.tried(s, "agent"), unable, DOWN)


def _declared(s: Situation) -> dict[str, ModelFacts | None]:
    shape, known = s.rules.fallback.shape, models(s)
    chains = (shape.chains.get(f"model/{s.brief.model.alias}", ()), *shape.by_class.values())
    names = {link.text for chain in chains for link in chain}
    return {name: known.get(name.removeprefix("model/")) for name in names}


def _unable(s: Situation, model: ModelFacts, size: int, *, tools: bool) -> str:
    if size >= model.window:
        return f"its window of {model.window} is smaller than the request of about {size}"
    if tools and not model.tools and not s.counters.last_turn:
        return "no tools"
    if not model.images and _has_images(s):
        return "no images"
    if not reserving.may_call(s, model):
        return "its price is not known, and the task has a cost limit"
    return ""


def _has_images(s: Situation) -> bool:
    blocks = (block for node in s.path for block in blocks_of(node))
    return any(isinstance(block, OpaqueBlock) and "image" in str(block.wire.get("type", "")) for block in blocks)


def of_tool(s: Situation, call: PendingCall) -> Links:
    """The chain's state when a tool's call failed."""
    home = f"tool/{call.use.name}"
    mine = {f"tool/{tool.spec.name}" for tool in s.brief.tools}
    chain, _ = fallback_policy.chain(s.rules.fallback, home)
    unable = {link: "the agent does not have it" for link in chain if link not in mine}
    # A chain is walked once: what stands before the tool in use has had its turn.
    before = chain[: chain.index(call.name)] if call.name in chain else ()
    then = tuple(
        Standby(roles.home(s, sort), roles.tried(s, sort), roles.without(s, call, sort))
        for sort in roles.SORTS
        if roles.chain(s, sort)
    )
    return Links(home, (home, *before, call.name), unable, then=then)


def take_over(s: Situation, name: str, why: str = "") -> None:
    """The next attempt goes to this link; its own tries and its time begin now. An agent brings its own model."""
    if name.startswith("agent/"):
        roles.take_over(s, name, why)
        return
    alias = name.removeprefix("model/")
    s.count(link="" if alias == s.brief.model.alias else alias, link_since=s.at, probing="")


def answered(s: Situation, alias: str) -> None:
    """A model answered: a degradation begins or ends, an outage is over."""
    home = s.brief.model.alias
    stands_in(s, f"model/{home}", f"model/{alias}")
    roles.answered(s)
    for sort in roles.SORTS:
        if first := roles.home(s, sort):
            stands_in(s, first, s.counters.roles.get(sort, first))
    s.count(probing="", tries_of={}, streak={}, reachable={})
    end_outage(s, answered=True)


def stands_in(s: Situation, home: str, link: str) -> None:
    """Who answered for whom: the first answer of a stand-in and the way back are events (R3.4)."""
    before = s.counters.degraded.get(home)
    others = {name: stand_in for name, stand_in in s.counters.degraded.items() if name != home}
    if link == home:
        if before is not None:
            s.count(degraded=others)
            again = "is in use again" if home.startswith(_ROLES) else "answers again"
            s.say("recovered", dependency=home, link=before, sentence=f"{home} {again}.")
    elif before != link:
        s.count(degraded={**others, home: link})
        sentence = f"{link} answers for {home} until it is healthy again."
        if why := s.counters.roles_why.get(home.partition("/")[0], "") if home.startswith(_ROLES) else "":
            sentence = f"{link} stands in for {home}: {why.rstrip('.')}."
        s.say("degraded", dependency=home, link=link, sentence=sentence)


def may_be_asked_again(s: Situation, alias: str, failure: Failure) -> None:
    """When a link may next be asked, where its breaker or its service said so."""
    known = {link: at for link, at in s.counters.reachable.items() if link != alias and at > s.at}
    if failure.retry_after_s is not None:
        known[alias] = s.at + failure.retry_after_s
    if known != s.counters.reachable:
        s.count(reachable=known)


def soonest(reachable: Mapping[str, float], it: Incident) -> str:
    """What a task that is parked waits for: the link that may be asked first."""
    mine = it.failure.dependency
    if not reachable or it.reachable_in_s is None:
        return mine
    return f"model/{min(reachable, key=lambda alias: reachable[alias])}"


def end_round(s: Situation) -> None:
    """Parking ends the round through the chain: the next one begins at the first link."""
    s.count(tries_of={}, link="", probing="", reachable={})


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


def cost_of(s: Situation, usage: Usage | None, alias: str) -> float:
    """What a call that gave no answer cost, by the tokens that were told."""
    if usage is None:
        return 0.0
    model = models(s).get(alias, s.brief.model)
    return reserving.cost_usd(model, usage.total - usage.output_tokens, usage.output_tokens)
