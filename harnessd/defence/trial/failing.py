"""Failing: an attempt of a model or a tool failed: its class, then escalation, then the class's own ladder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from harnessd.defence import line1_self_heal, line2_contain
from harnessd.defence.endings import stop_reason, stop_sentence
from harnessd.defence.incident import Episode, Incident, incident_of
from harnessd.defence.trial.calling import ask_person, call_facts, escalation_facts, looped, settings_of
from harnessd.defence.trial.climb import climb
from harnessd.defence.trial.state import CallEpisode, State
from harnessd.defence.trial.step import Answer, Step
from harnessd.domain.decision import Decision, Park, Pass, Retry, RuleRef
from harnessd.domain.effect import EffectClass, canonical_json
from harnessd.domain.failure import ErrorClass, Failure, Source
from harnessd.domain.wait_hints import retry_after_s
from harnessd.policy import breaker as breaker_policy
from harnessd.policy import escalation as escalation_policy
from harnessd.policy import fallback as fallback_policy
from harnessd.policy import loop as loop_policy
from harnessd.policy import retry as retry_policy
from harnessd.policy import tools as tools_policy
from harnessd.policy.values import fill

# A tool that ran out of time, or of whose outcome nobody knows, has begun; one that could not be reached has not.
_BEGUN = (ErrorClass.TIMEOUT, ErrorClass.OUTCOME_UNKNOWN)


@dataclass(slots=True)
class Trouble:
    """One failed attempt in its call. `escalated`: the rule that goes before the class's own ladder, if one holds."""

    state: State
    step: Step
    incident: Incident
    call: CallEpisode
    escalated: escalation_policy.Escalated | None

    @property
    def made(self) -> Answer:
        """An answer with everything but what is done."""
        ladder = self.incident.settings.rule if self.escalated is None else self.escalated.rule
        return Answer("stop", (ladder, self.incident.classified_by), self.incident.error_class.value)

    def contained(self, word: str, *, tries: int | None = None) -> Decision | str:
        """What line 2 says of one step: its decision, or why the step cannot act."""
        only = replace(self.incident.settings, do=(word,))
        said = line2_contain.answer(replace(self.incident, settings=only, tries=tries or self.incident.tries))
        return said.why.removeprefix(f"{word}: ") if isinstance(said, Pass) else said

    def next_link(self) -> fallback_policy.Link | fallback_policy.UsedUp:
        """Who would take over."""
        rules, error_class = self.state.rules.fallback, self.incident.error_class.value
        links, _ = fallback_policy.chain(rules, self.call.home, error_class)
        closed = {link: self.state.closed_for(link) for link in links}
        unable = {link: f"its breaker is open for {wait:g}s" for link, wait in closed.items() if wait}
        return fallback_policy.next_link(rules, self.call.home, error_class, self.call.links, unable)


def failed(s: State, step: Step) -> Answer:
    """Classify the failure and take the next step against it."""
    failure = failure_of(step, s.at)
    dependency = failure.dependency
    classified = retry_policy.classify(s.rules.retry, failure)
    if classified.error_class is None:
        return answered(s, dependency, classified.rule)
    if failure.source == "tool" and classified.error_class in _BEGUN:
        failure = replace(failure, effect_begun=True)
    call = s.call_about(failure.source, dependency, _key(s, step))
    call.tries += 1
    call.links[dependency] += 1
    incident = incident_of(failure, _episode(s, step, call), s.rules)
    limits = breaker_policy.settings(s.policies.breaker, dependency)
    opened = s.attempt(dependency, breaker_policy.outcome_of(limits, incident.error_class, 0.0))
    consecutive = s.streak(failure.source, incident.error_class.value)
    facts = escalation_facts(s, step, incident.error_class.value, consecutive)
    trouble = Trouble(s, step, incident, call, escalation_policy.escalate(s.rules.escalation, facts))
    answer = _against(trouble)
    return replace(answer, says=f"{answer.says} {opened}".strip()) if opened else answer


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
    effect: EffectClass | None = settings_of(s, step).effect if "tool" in step.facts else None
    elapsed = max(0.0, s.at - call.began_at - call.parked_s)
    return Episode("trial", tries=call.tries, elapsed_s=elapsed, parked_s=call.parked_s, effect_class=effect)


def _against(it: Trouble) -> Answer:
    s, settings = it.state, it.incident.settings
    if it.escalated is None:
        do, taken = settings.do, it.call.taken.setdefault(it.incident.error_class.value, Counter())
    else:
        do, rule = it.escalated.do, it.escalated.rule
        taken = s.taken.setdefault(f"{rule.file}:{rule.line}:{rule.rule}", Counter())
        s.streaks.pop(it.incident.failure.source, None)  # tallies start again after each step taken
    answer = climb(do, _steps(it), taken)
    if not isinstance(answer, Answer):
        answer = replace(_stop(it), passed=answer)
    if answer.do == "stop":
        s.call = None
    if answer.do == "observe" and it.escalated is None:
        return _looped(it) or answer
    return answer


def _steps(it: Trouble) -> dict[str, Callable[[], Answer | str]]:
    return {
        "retry": lambda: _retry(it),
        "fallback": lambda: _fallback(it),
        "park": lambda: _park(it),
        "compact": lambda: _compact(it),
        "repair": lambda: replace(it.made, do="repair"),
        "observe": lambda: _observe(it),
        "probe": lambda: _probe(it),
        "rollback": lambda: replace(it.made, do="rollback", to=it.escalated.to if it.escalated else "last_good"),
        "needs_human": lambda: ask_person(it.state, replace(it.made, do="needs_human", says=_question(it))),
        "stop": lambda: _stop(it),
    }


def _retry(it: Trouble) -> Answer | str:
    settings, dependency = it.incident.settings, it.incident.failure.dependency
    said = it.contained("retry")
    if isinstance(said, str):
        return said
    here = it.call.links[dependency]
    if it.incident.failure.source == "model" and "fallback" in settings.do and here >= settings.switch_after:
        following = it.next_link()
        if isinstance(following, fallback_policy.Link):
            return f"{here} tries on {dependency}, and {following.name} is left (switch_after {settings.switch_after})"
    # A link that takes over is asked anew: its own waits begin at base, while the call's tries go on being counted.
    again = it.contained("retry", tries=here)
    if isinstance(again, str) or not isinstance(again.remedy, Retry) or not isinstance(said.remedy, Retry):
        return "it cannot be tried again"
    it.state.wait(again.remedy.after_s)
    says = f"try {said.remedy.attempt} of {said.remedy.of} after {again.remedy.after_s:g}s"
    return replace(it.made, do="retry", waited_s=again.remedy.after_s, says=says)


def _fallback(it: Trouble) -> Answer | str:
    following = it.next_link()
    if isinstance(following, fallback_policy.UsedUp):
        why = "; ".join(f"{link}: {reason}" for link, reason in following.passed)
        return why or f"{it.call.home} has no chain"
    it.call.links[following.name] += 0
    if it.incident.failure.source == "model":
        it.state.away[following.name] = it.call.home
    says = f"{following.name} takes over from {it.incident.failure.dependency}"
    return replace(it.made, do="fallback", to=following.name, says=says, rules=(*it.made.rules, following.rule))


def _park(it: Trouble) -> Answer | str:
    said = it.contained("park")
    if isinstance(said, str):
        return said
    if not isinstance(said.remedy, Park):
        return "it cannot be parked"
    s, for_s = it.state, said.remedy.for_s
    it.call.parked_s += for_s
    s.wait(for_s)
    minutes = int((s.at + for_s) % 86_400) // 60
    until = f"{minutes // 60:02d}:{minutes % 60:02d}"
    words = {"model": it.call.home.removeprefix("model/"), "until": until, "task": "trial"}
    return replace(it.made, do="park", waited_s=for_s, says=fill(s.rules.fallback.shape.say, words))


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
    said = it.contained("observe")
    if isinstance(said, str):
        return said
    failure, error_class = it.incident.failure, it.incident.error_class
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
    """A model answered, or is about to be asked: an open breaker lets nothing through."""
    waits = s.closed_for(dependency) if rule is None else 0.0
    if waits:
        return _breaker_open(s, dependency, waits)
    s.call = None
    s.streaks.pop("model", None)
    s.compactions = 0
    if dependency in s.away.values():
        s.away = {link: home for link, home in s.away.items() if home != dependency}
    return Answer("none", () if rule is None else (rule,), "ok", says=s.attempt(dependency, "ok"))


def _breaker_open(s: State, model: str, wait_s: float) -> Answer:
    refs = tuple(dict.fromkeys(breaker_policy.settings(s.policies.breaker, model).refs.values()))
    says = f"The breaker of {model} is open for {wait_s:g}s."
    home = s.away.get(model, model)
    links, _ = fallback_policy.chain(s.rules.fallback, home)
    unable = {link: "its breaker is open" for link in links if s.closed_for(link)}
    following = fallback_policy.next_link(s.rules.fallback, home, None, {model}, unable)
    if isinstance(following, fallback_policy.Link):
        s.away[following.name] = home
        return Answer("fallback", (*refs, following.rule), to=following.name, says=says)
    s.wait(wait_s)
    return Answer("park", refs, waited_s=wait_s, says=says)
