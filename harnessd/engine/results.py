"""Results: each tool call gets exactly one, whatever happened; budget warnings ride on the newest."""

from __future__ import annotations

from typing import assert_never

from harnessd.defence import face
from harnessd.defence.endings import next_steps, stop_sentence
from harnessd.defence.incident import Episode, Incident, incident_of
from harnessd.defence.line1_self_heal import observation
from harnessd.domain.decision import NeedsHuman, Observe, Park, Retry, Stop
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.session import NodeKind, result_payload
from harnessd.domain.task import StopReason
from harnessd.engine import ending
from harnessd.engine.situation import Ending, PendingCall, Situation
from harnessd.policy import budget as budget_policy


def give(s: Situation, call: PendingCall, text: str, *, is_error: bool, state: str, **facts: object) -> None:
    """The one result of a call. A budget warning that falls due is one line in the newest result (R3.9).

    `state` says what is known of the act: done, failed, cancelled, unknown, not_started.
    """
    verdict = budget_policy.judge(s.rules.budget, s.used(), s.counters.warned)
    for warning in verdict.warnings:
        text = f"{text}\n{warning.sentence}"
        s.count(warned=(*s.counters.warned, *warning.marks))
        s.say("budget_warning", budget=warning.budget, level=warning.level, sentence=warning.sentence)
    payload = result_payload(call.use.id, text, is_error=is_error, tool=call.use.name, state=state, **facts)
    s.append(NodeKind.TOOL_RESULT, payload)
    s.pending = [other for other in s.pending if other is not call]


def incident(
    s: Situation, call: PendingCall, failure: Failure, effect_class: EffectClass, luck: float = 0.0
) -> Incident:
    """A failed call with the facts of its episode."""
    episode = Episode(
        task=s.brief.task,
        tries=call.tries + 1,
        elapsed_s=s.at - (call.first_at if call.first_at is not None else s.at),
        luck=luck,
        effect_class=effect_class,
    )
    return incident_of(failure, episode, s.rules)


def decide(s: Situation, call: PendingCall, it: Incident) -> None:
    """Ask the lines, keep the decision, do what it says."""
    decision = face(it)
    s.decide(decision, call.use.id)
    match decision.remedy:
        case Observe():
            _observe(s, call, it)
        case Retry(after_s, _, _):
            call.tries += 1
            call.not_before = s.at + after_s
            call.effect = None
        case NeedsHuman(question):
            _observe(s, call, it)
            s.asking = question
        case Stop(reason):
            _observe(s, call, it)
            ending.end(s, stopped(s, reason, it.failure, it.error_class))
        case Park():
            # line 2 parks model calls only: this would be our bug.
            _observe(s, call, it)
            ending.end(s, stopped(s, StopReason.INTERNAL_ERROR, it.failure, it.error_class))
        case _ as never:
            assert_never(never)


def stopped(s: Situation, reason: StopReason, failure: Failure, error_class: ErrorClass) -> Ending:
    """The ending of a failure that nothing helped against."""
    return Ending(
        reason,
        stop_sentence(reason, failure, error_class),
        error_class=error_class.value,
        next_steps=next_steps(s.brief.task, reason),
    )


def _observe(s: Situation, call: PendingCall, it: Incident) -> None:
    unknown = it.effect_class is not None and may_have_acted(it.effect_class, it.failure, it.error_class)
    text = observation(call.use.name, it.failure, it.error_class, begun=unknown)
    state = "unknown" if unknown else "failed"
    give(s, call, text, is_error=True, state=state, error_class=it.error_class.value)


def may_have_acted(effect_class: EffectClass, failure: Failure, error_class: ErrorClass | None) -> bool:
    """Nobody can say what a failed call did to the world."""
    if effect_class is EffectClass.READ_ONLY:
        return False
    return failure.effect_begun or error_class is ErrorClass.OUTCOME_UNKNOWN
