"""Results: each tool call gets exactly one, whatever happened; budget warnings ride on the newest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from harnessd.defence import face, ladder
from harnessd.defence.endings import next_steps, stop_sentence
from harnessd.defence.incident import Episode, Incident, Whose, incident_of
from harnessd.defence.line1_self_heal import observation
from harnessd.domain.decision import (
    Compact,
    Decision,
    Fallback,
    NeedsHuman,
    Nudge,
    Observe,
    Park,
    Probe,
    Repair,
    Retry,
    Rollback,
    Stop,
)
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure, IllegalEvent, Owner
from harnessd.domain.messages import FinishReason
from harnessd.domain.session import Node, NodeKind, result_payload
from harnessd.domain.task import StopReason
from harnessd.engine import ending, links, recovering, roles, streaks
from harnessd.engine.protocol import RunState
from harnessd.engine.situation import Ending, PendingCall, Situation
from harnessd.engine.tool_calls.callfacts import settings_of, tool_of
from harnessd.policy import budget as budget_policy
from harnessd.policy import loop as loop_policy

CUT_CALL = (
    "Your answer was cut off at its token limit in the middle of this call, and nothing of it was run. "
    "Write less at once: split what is large into several calls."
)


def give(s: Situation, call: PendingCall, text: str, *, is_error: bool, state: str, **facts: Any) -> None:
    """The one result of a call. A budget warning that falls due is one line in the newest result (R3.9).

    `state` says what is known of the act: done, failed, cancelled, unknown, not_started. `reason` is what an error
    says of itself. With a turn's last result the loop detectors look at the turn (R3.10).
    """
    polling = tool_of(s, call) is not None and settings_of(s, call).polling
    facts |= streaks.marks(call, text, polling=polling, reason=facts.pop("reason", None))
    if "note" in facts and s.notes.get(call.use.name) != facts["note"]:
        facts["changed"] = True
    facts |= {"tool": call.use.name, "state": state}
    if is_error and state == "done":  # it ran, and says itself that it came to nothing
        facts["failed"] = True
    rest = [other for other in s.pending if other is not call]
    decision = None if rest else _look_for_loop(s, facts)
    verdict = budget_policy.judge(s.rules.budget, s.used(), s.counters.warned)
    for warning in verdict.warnings:
        text = f"{text}\n{warning.sentence}"
        s.count(warned=(*s.counters.warned, *warning.marks))
        s.say("budget_warning", budget=warning.budget, level=warning.level, sentence=warning.sentence)
    if decision is not None and isinstance(decision.remedy, Nudge):
        text = f"{text}\n{decision.remedy.text}"
    s.append(NodeKind.TOOL_RESULT, result_payload(call.use.id, text, is_error=is_error, **facts))
    s.pending = rest
    if not rest:
        s.count(stand_ins={})
    if decision is not None:
        _break_loop(s, decision)


def _look_for_loop(s: Situation, facts: Mapping[str, Any]) -> Decision | None:
    """What is done about a turn that repeats what was there. Progress ends the episode of every ladder."""
    if s.ending is not None or s.asking is not None or s.counters.last_turn:
        return None
    head = Node(f"n{s.counters.nodes + 1}", s.head, NodeKind.TOOL_RESULT, {"facts": facts}, s.at)
    turns = streaks.turns_of([*s.path, head], s.rules.loop)
    looping = loop_policy.detect(s.rules.loop, [turn for place, turn in turns if place > s.counters.loop_from])
    if looping is None:
        if streaks.progressed([turn for _, turn in turns]):
            kept = {mark: times for mark, times in s.counters.taken.items() if mark.startswith("retry/")}
            # Every way back begins with progress: rollbacks are counted until a person acts.
            kept |= {mark: times for mark, times in s.counters.taken.items() if mark.endswith(":rollback")}
            s.count(taken=kept)
        return None
    no_progress = looping.detector == "no_progress"
    failure = Failure(
        source="agent",
        dependency=looping.tool,
        message=f"{looping.times} turns brought nothing new"
        if no_progress
        else f"{looping.tool} was called {looping.times} times with the same result ({looping.detector})",
        hint=ErrorClass.NO_PROGRESS if no_progress else ErrorClass.LOOP_DETECTED,
        advice=looping.nudge,
    )
    times = looping.times
    episode = Episode(
        s.brief.task,
        tries=times,
        whose=whose(s),
        taken=s.counters.taken,
        way_back=lambda to: recovering.way_back(s, to, times),
    )
    it = incident_of(failure, episode, s.rules)
    settings = replace(it.settings, do=looping.do, rule=looping.rule, owner=Owner.SESSION)
    return face(replace(it, settings=settings, owner=Owner.SESSION))


def _break_loop(s: Situation, decision: Decision) -> None:
    """Take the step against a loop; tallies start again at 0 after it."""
    s.decide(decision)
    took(s, decision)
    s.count(loop_from=s.counters.nodes)
    evidence = decision.evidence
    match decision.remedy:
        case Nudge(text):
            s.say("nudge", tool=evidence["dependency"], times=evidence["tries"], sentence=text)
        case NeedsHuman(question):
            s.count(asking=question)
        case Stop(reason):
            words = Failure("agent", str(evidence["dependency"]), str(evidence["message"]))
            s.ending = stopped(s, reason, words, ErrorClass(decision.error_class))
        case Rollback():
            recovering.decided(s, decision)
        case Observe() | Retry() | Fallback() | Compact() | Repair() | Park() | Probe():
            raise IllegalEvent(f"{decision.remedy} is no step against a loop")
        case _ as never:
            assert_never(never)


def took(s: Situation, decision: Decision) -> None:
    """Remember a step that acts once an episode; after a step of escalation its tallies start again at 0."""
    mark = ladder.taken(decision)
    if mark is not None:
        s.count(taken={**s.counters.taken, mark: s.counters.taken.get(mark, 0) + 1})
    if decision.rule.kind == "escalation":
        s.count(tallies_from=s.counters.nodes, streak={})


def whose(s: Situation) -> Whose:
    """The task as escalation rules may ask for it."""
    brief = s.brief
    model = f"model/{s.counters.link or brief.model.alias}"
    return Whose(brief.acting or brief.agent, brief.workspace, brief.labels, brief.priority, model)


def incident(
    s: Situation, call: PendingCall, failure: Failure, effect_class: EffectClass, luck: float = 0.0, probe: str = ""
) -> Incident:
    """A failed call with the facts of its episode."""
    episode = Episode(
        task=s.brief.task,
        tries=call.tries + 1,
        elapsed_s=s.at - (call.first_at if call.first_at is not None else s.at),
        luck=luck,
        effect_class=effect_class,
        whose=whose(s),
        tallies=lambda error_class: streaks.tool_tallies(s, call, error_class),
        links=links.of_tool(s, call),
        taken=s.counters.taken,
        probe=probe,
        way_back=lambda to: recovering.way_back(s, to),
    )
    return incident_of(failure, episode, s.rules)


def decide(s: Situation, call: PendingCall, it: Incident) -> None:
    """Ask the lines and do what they say."""
    carry_out(s, call, it, face(it))


def carry_out(s: Situation, call: PendingCall, it: Incident, decision: Decision) -> None:
    """Keep the decision about a failed call, and do what it says."""
    s.decide(decision, call.use.id)
    match decision.remedy:
        case Observe():
            _observe(s, call, it)
        case Retry(after_s, _, _):
            call.tries += 1
            call.not_before = s.at + after_s
            call.effect = None
        case Fallback(to, _):
            _hand_over(s, call, it, to)
        case NeedsHuman(question):
            s.count(asking=question)
            _observe(s, call, it)
        case Rollback():
            recovering.decided(s, decision)
            _observe(s, call, it)
        case Stop(reason):
            _observe(s, call, it)
            ending.end(s, stopped(s, reason, it.failure, it.error_class))
        case Park() | Nudge() | Compact() | Repair() | Probe():
            # Parked and made smaller are model calls, nudges are for loops, and a probe was begun before: our bug.
            _observe(s, call, it)
            ending.end(s, stopped(s, StopReason.INTERNAL_ERROR, it.failure, it.error_class))
        case _ as never:
            assert_never(never)
    if s.state is not RunState.OVER:
        took(s, decision)


def _hand_over(s: Situation, call: PendingCall, it: Incident, to: str) -> None:
    """Another tool does the call; or another feature or agent goes on without it, from the next turn."""
    if to.startswith(("feature/", "agent/")):
        roles.take_over(s, to, f"{call.name}: {it.error_class.value}: {it.failure.message}")
        _observe(s, call, it)
        return
    call.tries += 1
    call.effect, call.allowed = None, False
    call.stand_in = to.removeprefix("tool/")
    s.count(stand_ins={**s.counters.stand_ins, call.use.id: call.stand_in})


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
    failure = it.failure
    if it.error_class is ErrorClass.INVALID_ARGUMENTS and _cut_off(s):
        failure = replace(failure, advice=CUT_CALL)
    text = observation(call.use.name, failure, it.error_class, begun=unknown)
    state = "unknown" if unknown else "failed"
    reason = it.failure.message
    give(s, call, text, is_error=True, state=state, error_class=it.error_class.value, reason=reason)


def _cut_off(s: Situation) -> bool:
    """The answer that asked for the calls was cut off at its token limit: some services close the JSON themselves."""
    asked = next((node for node in reversed(s.path) if node.id == s.asked_node), None)
    return asked is not None and asked.payload.get("facts", {}).get("finish") == FinishReason.LENGTH.value


def may_have_acted(effect_class: EffectClass, failure: Failure, error_class: ErrorClass | None) -> bool:
    """Nobody can say what a failed call did to the world."""
    if effect_class is EffectClass.READ_ONLY:
        return False
    return failure.effect_begun or error_class is ErrorClass.OUTCOME_UNKNOWN
