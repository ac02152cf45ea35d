"""Judging: budgets, limits, the window, what is kept, the disk, events, silence, and time in which nobody answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal

from harnessd.defence.endings import stop_reason
from harnessd.defence.trial.calling import ask_person, escalation_facts, looping_answer
from harnessd.defence.trial.climb import climb
from harnessd.defence.trial.failing import day_used_up
from harnessd.defence.trial.state import State
from harnessd.defence.trial.step import Answer, Step
from harnessd.domain.decision import RuleRef
from harnessd.domain.failure import ErrorClass
from harnessd.domain.task import StopReason
from harnessd.policy import budget as budget_policy
from harnessd.policy import compaction as compaction_policy
from harnessd.policy import escalation as escalation_policy
from harnessd.policy import limits as limits_policy
from harnessd.policy import notify as notify_policy
from harnessd.policy import retention as retention_policy
from harnessd.policy import retry as retry_policy
from harnessd.policy.values import fill

_WINDOW = 1_000_000  # tokens: fine enough for any ratio
_DAY_S = 86_400.0
# The least that a call costs: the call that follows a day's money that is used up to the cent does not pass.
_A_CALL_USD = 1e-6
# `used` of a step -> the counter of limits.
LOADS = {
    "concurrency": "running",
    "requests_per_minute": "requests_in_minute",
    "tokens_per_minute": "tokens_in_minute",
    "retries_per_minute": "retries_in_minute",
    "cost_usd_per_day": "cost_usd_today",
}


# --- budgets and limits -----------------------------------------------------------------------------------------------


def used(s: State, step: Step) -> Answer:
    """What budgets, or the limits of a name, say of what is used."""
    if any(name in LOADS for name in step.used):
        return _limited(s, step)
    silence = budget_policy.limit_of(s.rules.budget, "silence")
    if silence is not None and step.used.get("silence", 0.0) >= silence:
        hung = agent_failed(s, replace(step, facts={**step.facts, "class": ErrorClass.HANG.value}))
        return replace(hung, rules=(*hung.rules, s.rules.budget.ref("limits", "silence")))
    verdict = budget_policy.judge(s.rules.budget, step.used, s.warned)
    if verdict.exhausted is not None:
        gone = verdict.exhausted
        last = ": one more model call without tools, to sum up" if s.rules.budget.shape.last_turn else ""
        words = StopReason.BUDGET_EXHAUSTED.value
        return Answer("stop", (gone.rule,), words, says=f"{gone.sentence}{last}", reason=words)
    if not verdict.warnings:
        return Answer("none", (s.rules.budget.ref("limits"),))
    s.warned.update(mark for warning in verdict.warnings for mark in warning.marks)
    said = " ".join(warning.sentence for warning in verdict.warnings)
    return Answer("warn", (*(w.rule for w in verdict.warnings), s.rules.budget.ref("warn_at")), says=said)


def _limited(s: State, step: Step) -> Answer:
    load = limits_policy.Load(**{LOADS[name]: amount for name, amount in step.used.items()})  # type: ignore[arg-type]
    retry = "retries_per_minute" in step.used
    for name in _touched(s, step):
        limits = limits_policy.settings(s.policies.limits, name)
        held = limits_policy.admit(limits, load, tokens=1, cost_usd=_A_CALL_USD, retry=retry)
        if held is not None:
            return _held(s, step, held)
    return Answer("none", says="one more passes")


def _touched(s: State, step: Step) -> list[str]:
    """The names that the step speaks of; where it names none, the task's agent, else the daemon."""
    facts = step.facts
    names = [facts[key] for key in ("model", "tool") if key in facts]
    names += [f"agent/{facts['agent']}"] if "agent" in facts else []
    names += [f"label/{key}={value}" for key, value in step.labels.items()]
    return names or [f"agent/{s.agent}" if s.agent else "daemon"]


def _held(s: State, step: Step, held: limits_policy.Held) -> Answer:
    if held.do:
        return day_used_up(s, step, held, _DAY_S - s.at % _DAY_S)
    return Answer("wait", (held.rule,), says=held.sentence)


# --- the window -------------------------------------------------------------------------------------------------------


def in_window(s: State, part: float) -> Answer:
    """What a history of this part of the effective window means."""
    compaction = s.rules.compaction
    window = _WINDOW + compaction.shape.reserve
    standing = compaction_policy.standing(compaction, round(part * _WINDOW), window, compaction.shape.reserve)
    words = {
        "none": "",
        "compact": "the history is compacted",
        "warn": "still above after a compaction: person and model are told",
        "block": "no new request until handled",
    }
    return Answer(standing.tier, (standing.rule,), says=words[standing.tier])


def compacted(s: State, gained: float) -> Answer:
    """A compaction took off this part: enough, or one more that failed."""
    compaction = s.rules.compaction
    rule = compaction.ref("gain_at_least")
    if compaction_policy.gained_enough(compaction, _WINDOW, round(_WINDOW * (1 - gained))):
        s.failed_compactions = 0
        return Answer("none", (rule,))
    s.failed_compactions += 1
    most = compaction.shape.failures
    said = f"{s.failed_compactions} of {most} failed compactions in a row"
    if s.failed_compactions < most:
        return Answer("none", (rule,), says=said)
    s.failed_compactions = 0
    made = Answer("stop", (compaction.ref("do"), compaction.ref("failures")), says=said)
    reason = StopReason.CONTEXT_EXHAUSTED.value
    steps = {
        "needs_human": lambda: ask_person(s, replace(made, do="needs_human")),
        "stop": lambda: replace(made, reason=reason),
    }
    answer = climb(compaction.shape.do, steps, s.taken.setdefault("compaction", Counter()))
    return answer if isinstance(answer, Answer) else replace(made, reason=reason, passed=answer)


# --- the task itself --------------------------------------------------------------------------------------------------


def agent_failed(s: State, step: Step) -> Answer:
    """A failure of the task itself: a loop, a hang, a crash, a broken invariant."""
    error_class = ErrorClass(step.facts.get("class", ErrorClass.HANG.value))
    if error_class in (ErrorClass.LOOP_DETECTED, ErrorClass.NO_PROGRESS):
        tool = step.facts.get("tool", "")
        words = {"times": "several", "tool": tool, "detector": error_class.value}
        nudge = fill(s.rules.loop.shape.nudge, words)
        return looping_answer(s, step, error_class, s.rules.loop.ref("do"), nudge)
    if error_class is ErrorClass.HANG:
        return _started_again(s, step)
    settings = retry_policy.for_class(s.rules.retry, "agent", error_class)
    escalated = escalation_policy.escalate(s.rules.escalation, escalation_facts(s, step, error_class.value))
    # No file changes what always stops: a rule can only say so.
    said_so = (escalated.rule,) if escalated is not None and escalated.do == ("stop",) else ()
    reason = stop_reason("agent", error_class)
    return Answer("stop", (*said_so, settings.rule), error_class.value, reason=reason.value)


def _started_again(s: State, step: Step) -> Answer:
    """A crash or a hang of the worker: charged before it is started again."""
    starts = int(step.facts.get("recoveries", s.starts))
    facts = replace(escalation_facts(s, step, ErrorClass.HANG.value), recoveries=starts)
    escalation = s.rules.escalation
    most, rule = escalation.shape.recoveries, escalation.ref("recoveries")
    made = Answer("needs_human", (rule,), ErrorClass.HANG.value, says=f"started again {starts} times")
    escalated = escalation_policy.escalate(escalation, facts)
    if escalated is None:
        if starts >= most:
            return ask_person(s, made)
        s.starts = starts + 1
        return replace(made, do="retry", says=f"started again: {s.starts} of {most}")
    made = replace(made, rules=(escalated.rule, rule))
    reason = StopReason.INTERRUPTED.value
    steps = {
        "retry": lambda: replace(made, do="retry"),
        "rollback": lambda: replace(made, do="rollback", to=escalated.to),
        "needs_human": lambda: ask_person(s, made),
        "stop": lambda: replace(made, do="stop", reason=reason),
    }
    taken = s.taken.setdefault(f"{escalated.rule.file}:{escalated.rule.line}", Counter())
    answer = climb(escalated.do, steps, taken)
    return answer if isinstance(answer, Answer) else replace(made, do="stop", reason=reason, passed=answer)


def time_passed(s: State) -> Answer:
    """Nothing happens: what becomes of a question that nobody has answered."""
    asked = s.asked
    if asked is None:
        return Answer("none")
    approval = asked.kind == "approval"
    policy = s.rules.tools if approval else s.rules.escalation
    wait = policy.shape.ask
    waiting: Literal["ask", "needs_human"] = "ask" if approval else "needs_human"
    if wait.after is None or s.at - asked.at < wait.after:
        return Answer(waiting, (policy.ref("ask", "after"),), says="nobody has answered yet")
    s.asked = None
    rules: tuple[RuleRef, ...] = (policy.ref("ask", "do"), policy.ref("ask", "after"))
    reason = StopReason.UNANSWERED.value if wait.do == "stop" else None
    return Answer(wait.do, rules, says="nobody answered in time", reason=reason)


# --- events, disk, retention ------------------------------------------------------------------------------------------


def told(s: State, step: Step) -> Answer:
    """Who is told of an event."""
    facts = step.facts
    texts = ("workspace", "dependency", "model", "tool", "effect", "reason", "budget")
    event = notify_policy.EventFacts(
        event=facts["event"],
        agent=s.agent_of(step),
        labels=s.labels_of(step),
        priority=facts.get("priority"),
        error_class=facts.get("class", ""),
        window_used=facts.get("window_used"),
        lasting=facts.get("lasting"),
        **{name: facts[name] for name in texts if name in facts},
    )
    route = notify_policy.route(s.policies.notify, event)
    again = route.again_after_s
    says = "told once" if again is None else f"told again after {budget_policy.shown_duration(again)}"
    return Answer("notify" if route.to else "none", (route.rule,), to=", ".join(route.to), says=says)


def on_disk(s: State, free: float) -> Answer:
    """What the free part of the disk means."""
    state, rule = retention_policy.disk(s.policies.retention, free)
    if state == "stop":
        return Answer("wait", (rule,), says="storage_full: no new step; tasks go on by themselves")
    return Answer("collect", (rule,), says="disk_low") if state == "warn" else Answer("none", (rule,))


def kept(s: State, step: Step) -> Answer:
    """Whether something so old is still kept."""
    for what, age_s in step.kept.items():
        limit = retention_policy.keep_s(s.policies.retention, what)
        rule = s.policies.retention.ref(what)
        if limit is not None and age_s >= limit:
            return Answer("collect", (rule,), says=f"{what} are kept for {budget_policy.shown_duration(limit)}")
    return Answer("none", tuple(s.policies.retention.ref(what) for what in step.kept))
