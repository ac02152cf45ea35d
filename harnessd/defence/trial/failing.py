"""Failing: an attempt of a model or a tool failed: its class, then escalation, then the class's own ladder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from harnessd.defence import line1_self_heal
from harnessd.defence import steps as ladder_steps
from harnessd.defence.endings import stop_reason, stop_sentence
from harnessd.defence.incident import (
    BREAKER_OPEN,
    DAY_LIMIT_REACHED,
    DOWN,
    Episode,
    Incident,
    Links,
    Standby,
    Tallies,
    Whose,
    incident_of,
)
from harnessd.defence.trial.calling import ask_person, call_facts, looped, settings_of
from harnessd.defence.trial.climb import climb
from harnessd.defence.trial.state import CallEpisode, State
from harnessd.defence.trial.step import Answer, Step
from harnessd.domain.decision import Fallback, Park, Retry, RuleRef
from harnessd.domain.effect import EffectClass, canonical_json
from harnessd.domain.failure import ErrorClass, Failure, Source
from harnessd.domain.wait_hints import retry_after_s
from harnessd.policy import breaker as breaker_policy
from harnessd.policy import fallback as fallback_policy
from harnessd.policy import limits as limits_policy
from harnessd.policy import loop as loop_policy
from harnessd.policy import retry as retry_policy
from harnessd.policy import tools as tools_policy
from harnessd.policy.values import fill

# A tool that ran out of time, or of whose outcome nobody knows, has begun; one that could not be reached has not.
_BEGUN = (ErrorClass.TIMEOUT, ErrorClass.OUTCOME_UNKNOWN)


@dataclass(slots=True)
class Trouble:
    """One failed attempt in its call."""

    state: State
    step: Step
    incident: Incident
    call: CallEpisode

    @property
    def made(self) -> Answer:
        """An answer with everything but what is done."""
        escalated = self.incident.escalated
        ladder = self.incident.settings.rule if escalated is None else escalated.rule
        return Answer("stop", (ladder, self.incident.classified_by), self.incident.error_class.value)


def failed(s: State, step: Step) -> Answer:
    """Classify the failure and take the next step against it."""
    failure = failure_of(step, s.at)
    dependency = failure.dependency
    classified = _classified(s, step, failure)
    if classified.error_class is None:
        return answered(s, dependency, classified.rule)
    if failure.source == "tool" and classified.error_class in _BEGUN:
        failure = replace(failure, effect_begun=True)
    call = s.call_about(failure.source, dependency, _key(s, step))
    call.tries += 1
    call.links[dependency] += 1
    incident = incident_of(failure, _episode(s, step, call), s.rules, classified)
    if failure.source == "model":
        s.count_failure(incident.error_class.value)
    limits = breaker_policy.settings(s.policies.breaker, dependency)
    opened = s.attempt(dependency, breaker_policy.outcome_of(limits, incident.error_class, 0.0))
    answer = _against(Trouble(s, step, incident, call))
    return replace(answer, says=f"{answer.says} {opened}".strip()) if opened else answer


def breaker_open(s: State, step: Step, wait_s: float) -> Answer:
    """A call that an open breaker lets not through: the class's ladder without `retry`."""
    tool = "tool" in step.facts
    name = step.facts["tool" if tool else "model"]
    refs = tuple(dict.fromkeys(breaker_policy.settings(s.policies.breaker, name).refs.values()))
    failure = Failure(
        "tool" if tool else "model",
        name,
        f"the breaker of {name} is open for {wait_s:g}s",
        code=BREAKER_OPEN,
        retry_after_s=wait_s,
        hint=ErrorClass.UNAVAILABLE if tool else None,
        advice="Go on without it, or try something else." if tool else "",
    )
    answer = _not_made(s, step, failure)
    return replace(answer, rules=(*answer.rules, *refs))


def day_used_up(s: State, step: Step, held: limits_policy.Held, left_s: float) -> Answer:
    """A call for which no money of this UTC day is left: the limit's own ladder."""
    rule = {name: getattr(held.rule, name) for name in ("kind", "name", "rule", "file", "line")}
    failure = Failure(
        "model",
        step.facts.get("model", ""),
        held.sentence,
        code=DAY_LIMIT_REACHED,
        retry_after_s=left_s,
        body={"do": list(held.do), "rule": rule},
        hint=ErrorClass.QUOTA_EXHAUSTED,
    )
    return _not_made(s, step, failure)


def _not_made(s: State, step: Step, failure: Failure) -> Answer:
    """No try is spent; people are told why."""
    dependency = failure.dependency
    call = s.call_about(failure.source, dependency, _key(s, step))
    call.links[dependency] += 0
    answer = _against(Trouble(s, step, incident_of(failure, _episode(s, step, call), s.rules), call))
    return replace(answer, says=failure.message) if answer.do in ("park", "fallback") else answer


def _classified(s: State, step: Step, failure: Failure) -> retry_policy.Classified:
    """The class of a failure. A repeated step has the class it had: time is no fact of classification."""
    rules = s.rules.retry
    if s.classified is None or s.classified[0] is not step or s.classified[1] is not rules:
        s.classified = (step, rules, retry_policy.classify(rules, failure))
    return s.classified[2]


def failure_of(step: Step, at: float) -> Failure:
    """The step's facts as a normalised failure; a wait hint is read from headers, body and words."""
    facts = step.facts
    source: Source = "model" if "tool" not in facts else "tool"
    headers = {name[len("header.") :].lower(): text for name, text in facts.items() if name.startswith("header.")}
    body = step.below("body.")
    if "rpc_code" in facts:
        body = {**body, "error": {**_map(body.get("error")), "code": facts["rpc_code"]}}
    message = facts.get("message", "")
    return Failure(
        source=source,
        dependency=facts[source],
        message=message,
        status=None if "status" not in facts else int(facts["status"]),
        code=facts.get("code"),
        type=facts.get("type"),
        transport=facts.get("transport"),
        body=body or None,
        headers=headers,
        protocol=facts.get("protocol"),
        ended=facts.get("ended"),
        finish=facts.get("finish"),
        call_cut=facts.get("call_cut", False),
        window_used=facts.get("window_used"),
        retry_after_s=retry_after_s(headers, body, message, at),
        exit_code=None if "exit_code" not in facts else int(facts["exit_code"]),
        hint=ErrorClass(facts["class"]) if "class" in facts else None,
    )


def _map(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _key(s: State, step: Step) -> str:
    return canonical_json(call_facts(s, step).arguments) if "tool" in step.facts else ""


def _episode(s: State, step: Step, call: CallEpisode) -> Episode:
    facts, tool = step.facts, "tool" in step.facts
    effect: EffectClass | None = settings_of(s, step).effect if tool else None
    if not tool and "effect" in facts:
        effect = EffectClass(facts["effect"])
    dependency = facts.get("tool") or facts.get("model", "")
    links, _ = fallback_policy.chain(s.rules.fallback, call.home)
    closed = {link: s.closed_for(link) for link in links}
    unable = {link: f"its breaker is open for {wait:g}s" for link, wait in closed.items() if wait}

    def tallies(error_class: ErrorClass) -> Tallies:
        counted = s.tool_tallies(dependency, error_class.value) if tool else (s.streak(error_class.value), 0)
        return Tallies(
            int(facts.get("consecutive", counted[0])),
            int(facts.get("failed_corrections", counted[1])),
            int(facts.get("recoveries", 0)),
        )

    return Episode(
        "trial",
        tries=call.tries,
        elapsed_s=max(0.0, s.at - call.began_at - call.parked_s),
        parked_s=call.parked_s,
        effect_class=effect,
        whose=Whose(
            s.agent_of(step),
            facts.get("workspace", ""),
            s.labels_of(step),
            facts.get("priority", 0),
            facts.get("model", ""),
        ),
        tallies=tallies,
        links=Links(
            call.home,
            tuple(call.links),
            unable,
            here=call.links[dependency],
            then=() if tool else _other_agents(s, step),
        ),
    )


def _other_agents(s: State, step: Step) -> tuple[Standby, ...]:
    """Who takes the task where all models of its agent are down. Which models agents have is not known here."""
    home = f"agent/{s.agent_of(step)}"
    return (Standby(home, (home, *s.away), classes=DOWN),) if home != "agent/" else ()


def _against(it: Trouble) -> Answer:
    s, incident = it.state, it.incident
    if incident.escalated is None:
        do, taken = incident.settings.do, it.call.taken.setdefault(incident.error_class.value, Counter())
    else:
        do, rule = incident.escalated.do, incident.escalated.rule
        taken = s.taken.setdefault(f"{rule.file}:{rule.line}:{rule.rule}", Counter())
    answer = climb(do, _steps(it), taken)
    if not isinstance(answer, Answer):
        answer = replace(_stop(it), passed=answer)
    if answer.do == "stop":
        s.call = None
    if answer.do == "observe":
        return _looped(it) or answer
    if incident.escalated is not None:
        s.step_taken()
    return answer


def _steps(it: Trouble) -> dict[str, Callable[[], Answer | str]]:
    to = it.incident.escalated.to if it.incident.escalated else "last_good"
    return {
        "retry": lambda: _retry(it),
        "fallback": lambda: _fallback(it),
        "park": lambda: _park(it),
        "compact": lambda: _compact(it),
        "repair": lambda: replace(it.made, do="repair"),
        "observe": lambda: _observe(it),
        "probe": lambda: _probe(it),
        "rollback": lambda: _rollback(it, to),
        "needs_human": lambda: ask_person(it.state, replace(it.made, do="needs_human", says=_question(it))),
        "stop": lambda: _stop(it),
    }


def _retry(it: Trouble) -> Answer | str:
    remedy = ladder_steps.retry(it.incident)
    if not isinstance(remedy, Retry):
        return str(remedy)
    it.state.wait(remedy.after_s)
    says = f"try {remedy.attempt} of {remedy.of} after {remedy.after_s:g}s"
    return replace(it.made, do="retry", waited_s=remedy.after_s, says=says)


def _fallback(it: Trouble) -> Answer | str:
    remedy, following = ladder_steps.fallback(it.incident), it.incident.following
    if not isinstance(remedy, Fallback) or not isinstance(following, fallback_policy.Link):
        return str(remedy)
    it.call.links[following.name] += 0
    if it.incident.failure.source == "model":
        it.state.away[following.name] = it.call.home
    says = f"{following.name} takes over from {it.incident.failure.dependency}"
    return replace(it.made, do="fallback", to=following.name, says=says, rules=(*it.made.rules, following.rule))


def _park(it: Trouble) -> Answer | str:
    remedy = ladder_steps.park(it.incident)
    if not isinstance(remedy, Park):
        return str(remedy)
    s, for_s = it.state, remedy.for_s
    it.call.parked_s += for_s
    it.call.links.clear()  # parking ends the round through the chain: the next one begins at the first link
    s.wait(for_s)
    minutes = int((s.at + for_s) % 86_400) // 60
    until = f"{minutes // 60:02d}:{minutes % 60:02d}"
    words = {"model": it.call.home.removeprefix("model/"), "until": until, "task": "trial"}
    return replace(it.made, do="park", waited_s=for_s, says=fill(s.rules.fallback.shape.say, words))


def _rollback(it: Trouble, to: str) -> Answer:
    it.state.call = None
    return replace(it.made, do="rollback", to=to)


def _compact(it: Trouble) -> Answer | str:
    compaction = it.state.rules.compaction
    tries = compaction.shape.emergency_tries
    if it.incident.failure.source != "model":
        return "only a model's request can be made smaller"
    if it.state.compactions >= tries:
        return f"all {tries} emergency tries are used"
    it.state.compactions += 1
    says = f"emergency try {it.state.compactions} of {tries}"
    return replace(it.made, do="compact", says=says, rules=(*it.made.rules, compaction.ref("emergency_tries")))


def _observe(it: Trouble) -> Answer | str:
    failure, error_class = it.incident.failure, it.incident.error_class
    if failure.source != "tool":
        return "a failed model call has no result to show"
    it.state.call = None
    words = line1_self_heal.observation(failure.dependency, failure, error_class, begun=failure.effect_begun)
    return replace(it.made, do="observe", says=words)


def _looped(it: Trouble) -> Answer | None:
    """The call has its result, an error: perhaps one too many."""
    failure = it.incident.failure
    facts = call_facts(it.state, it.step)
    polling = tools_policy.settings(it.state.rules.tools, facts).polling
    result, words = it.step.result or failure.message, it.incident.error_class.value
    call = loop_policy.Call(facts.tool, facts.arguments, result, words, failure.message, polling)
    return looped(it.state, it.step, call)


def _probe(it: Trouble) -> Answer | str:
    if it.incident.failure.source != "tool":
        return "only a tool's outcome can be asked for"
    settings = settings_of(it.state, it.step)
    if settings.probe is None:
        return f"no probe is declared for {it.incident.failure.dependency}"
    return replace(it.made, do="probe", to=settings.probe.tool.text)


def _question(it: Trouble) -> str:
    failure = it.incident.failure
    return f"{failure.dependency}: {failure.message or it.incident.error_class.value}"


def _stop(it: Trouble) -> Answer:
    failure, error_class = it.incident.failure, it.incident.error_class
    reason = stop_reason(failure.source, error_class)
    return replace(it.made, do="stop", reason=reason.value, says=stop_sentence(reason, failure, error_class))


def answered(s: State, dependency: str, rule: RuleRef | None = None) -> Answer:
    """A model answered."""
    s.call = None
    s.failing = ("", 0)
    s.compactions = 0
    if dependency in s.away.values():
        s.away = {link: home for link, home in s.away.items() if home != dependency}
    return Answer("none", () if rule is None else (rule,), "ok", says=s.attempt(dependency, "ok"))
