"""Outcomes: an act that began and whose outcome nobody knows: the world is asked by a probe, or a person is (R3.13)."""

from __future__ import annotations

from typing import Any

from harnessd.defence import face
from harnessd.domain.decision import Decision, Probe
from harnessd.domain.effect import Effect, EffectClass, EffectState, canonical_json
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ToolUseBlock
from harnessd.domain.ports import ToolOutcome
from harnessd.domain.record import AskPerson, Question
from harnessd.domain.task import StopReason
from harnessd.engine import ending
from harnessd.engine.protocol import CallTool, RunState, ToolFailed, ToolReturned
from harnessd.engine.situation import Ending, PendingCall, Situation
from harnessd.engine.tool_calls import results
from harnessd.engine.tool_calls.callfacts import limits_of, settings_of
from harnessd.policy.calls.filling import fill, known_of

SIGNALLED = 128  # exit codes above it are a signal's number and this (POSIX shells)
SIGPIPE = 13  # whoever read the output had enough of it: how `curl ... | head` ends
PROBES_MAX = 2  # of one act; one that was cut off by a cancel or a restart told nothing and does not count
GIVEN_AGAIN = "[It was done before and not again: this is what it said then. Ask once more if a second one is wanted.]"
_CUT_OFF = "cut off before it could tell"


def begun_before(s: Situation, call: PendingCall, begun: Effect) -> bool:
    """Whether a call may run although its act was begun; else it has its result, or waits for a probe or a person."""
    if begun.state is EffectState.DONE:
        stored = dict(begun.result or {})
        text = str(stored.get("text") or f"{call.use.name} was done before; its outcome is not kept.")
        text += f"\n{GIVEN_AGAIN}"
        note = {"note": stored["note"]} if "note" in stored else {}
        if begun.effect_class is EffectClass.IRREVERSIBLE:
            note["met"] = begun.key
        results.give(s, call, text, is_error=False, state="done", **note)
        return False
    if begun.effect_class is not EffectClass.IRREVERSIBLE and honoured(s, call, begun):
        return True  # the same key again: its receiver knows it
    question = s.questions.get(_question_id(s, call, begun))
    if question is not None:
        return _heard(s, call, begun, question)
    words = "it was cut off, and whether it was done is not known"
    lost = Failure("tool", call.name, words, hint=ErrorClass.OUTCOME_UNKNOWN, effect_begun=True)
    unknown(s, call, begun, face(results.incident(s, call, lost, begun.effect_class, probe=probe_of(s, call))))
    return False


def honoured(s: Situation, call: PendingCall, begun: Effect) -> bool:
    """Whether the receiver still knows the key of an act; one that forgot it would do the act once more."""
    return begun.effect_class is EffectClass.READ_ONLY or s.at - begun.at <= settings_of(s, call).key_life_s


def untold(s: Situation, call: PendingCall, outcome: ToolOutcome) -> bool:
    """Whether an act that ended with an error may have been done all the same, and somebody is there to tell.

    A receiver's refusal (`refused`) is its last word. A program that was ended by a signal said nothing at all; what
    one says by its exit code is taken for its word, unless a probe can look.
    """
    if not outcome.is_error or outcome.facts.get("refused"):
        return False
    code = outcome.exit_code or 0
    return (code > SIGNALLED and code != SIGNALLED + SIGPIPE) or bool(probe_of(s, call))


def unknown(s: Situation, call: PendingCall, effect: Effect, decision: Decision) -> None:
    """Act on an irreversible call whose outcome is unknown: it is never repeated, whatever the ladder would like."""
    s.decide(decision, call.use.id)
    results.took(s, decision)
    call.effect = effect
    if isinstance(decision.remedy, Probe):
        probe(s, call, effect)
    else:
        ask_person(s, call, effect)


# --- the world is asked -----------------------------------------------------------------------------------------------


def probe_of(s: Situation, call: PendingCall) -> str:
    """The tool that could tell whether this call's act was done; empty where none is declared, or none is left."""
    declared = settings_of(s, call).probe
    if declared is None or not declared.tool.text.startswith("tool/"):
        return ""
    made = [
        effect
        for effect in s.effects.values()
        if effect.kind == "probe"
        and (effect.node, effect.call_id) == (s.asked_node, call.use.id)
        and (effect.result or {}).get("message") != _CUT_OFF
    ]
    return declared.tool.text if len(made) < PROBES_MAX else ""


def probe(s: Situation, call: PendingCall, about: Effect) -> None:
    """Ask the world. The probe is an effect of its own, a read; its answer settles the act it is about."""
    declared = settings_of(s, call).probe
    if declared is None:
        return
    known = known_of(key=about.key, arguments=about.arguments)
    arguments = fill(dict(declared.arguments), known)
    name = declared.tool.text.removeprefix("tool/")
    asked = s.plan(
        Effect(
            id="",
            kind="probe",
            node=s.asked_node,
            call_id=call.use.id,
            name=declared.tool.text,
            effect_class=EffectClass.READ_ONLY,
            state=EffectState.INTENT,
            arguments=arguments,
            at=s.at,
        )
    )
    call.effect = about
    s.in_flight[asked.id] = call
    limits = limits_of(settings_of(s, PendingCall(ToolUseBlock(call.use.id, name, arguments), call.place)))
    s.acts.append(CallTool(asked.id, call.use.id, name, arguments, limits))
    s.doing = f"asking {name} whether {call.tool} was done"
    s.count(wait_until=None)
    s.state = RunState.TOOLS


def probe_returned(s: Situation, call: PendingCall, event: ToolReturned) -> None:
    """What the world says: done, not done, or nothing that settles it."""
    about, declared = _about(call), settings_of(s, call).probe
    s.settle(event.call, EffectState.DONE, text=event.outcome.text)
    look = known_of(key=about.key, arguments=about.arguments, result=event.outcome.facts.get("result"))
    if declared is not None and not event.outcome.is_error:
        done, not_done = declared.done.holds(look), declared.not_done.holds(look)
        if done != not_done:
            _told(s, call, about, event.outcome, done=done)
            return
    said = event.outcome.text.strip()[:300] or "nothing"
    _still_unknown(s, call, about, f"{s.effects[event.call].name} was asked, and its answer settles nothing: {said}")


def probe_failed(s: Situation, call: PendingCall, event: ToolFailed) -> None:
    """The world did not answer."""
    about, failure = _about(call), event.failure
    if failure.cancelled or s.ending is not None:
        # The act stays as unknown as it was; whoever takes the task up asks again.
        s.settle(event.call, EffectState.FAILED, message=_CUT_OFF)
        return
    s.settle(event.call, EffectState.FAILED, message=failure.message[:500])
    _still_unknown(s, call, about, f"{s.effects[event.call].name} was asked, and failed: {failure.message[:300]}")


def cut_off(s: Situation) -> None:
    """After a restart: a probe under way told nothing."""
    for effect in list(s.effects.values()):
        if effect.kind == "probe" and effect.state.open:
            s.settle(effect.id, EffectState.FAILED, message=_CUT_OFF)


def _about(call: PendingCall) -> Effect:
    assert call.effect is not None  # noqa: S101 - a probe is only ever made about an act
    return call.effect


def _told(s: Situation, call: PendingCall, about: Effect, outcome: ToolOutcome, *, done: bool) -> None:
    said = outcome.text.strip()[:2000]
    if done:
        text = f"{call.use.name} was done: its outcome was lost, and the probe found it.\n{said}"
        s.settle(about.id, EffectState.DONE, text=text)
        call.effect = None
        results.give(s, call, text, is_error=False, state="done")
        return
    s.settle(about.id, EffectState.FAILED, message="not done, as the probe found")
    call.effect = None
    text = f"{call.use.name} was not done: its outcome was lost, and the probe says so. Ask for it again if needed."
    results.give(s, call, text, is_error=True, state="failed", error_class=ErrorClass.OUTCOME_UNKNOWN.value)


def _still_unknown(s: Situation, call: PendingCall, about: Effect, words: str) -> None:
    lost = Failure("tool", call.name, words, hint=ErrorClass.OUTCOME_UNKNOWN, effect_begun=True)
    it = results.incident(s, call, lost, about.effect_class, probe=probe_of(s, call))
    decision = face(it)
    if about.effect_class is EffectClass.IRREVERSIBLE or isinstance(decision.remedy, Probe):
        unknown(s, call, about, decision)
    else:
        results.carry_out(s, call, it, decision)


def undo_of(s: Situation, call: PendingCall, outcome: ToolOutcome) -> dict[str, Any]:
    """The call that would undo this act, filled with its result now: rules may change, and the result is not kept."""
    declared = settings_of(s, call).undo
    if declared is None or outcome.is_error:
        return {}
    known = known_of(key=None, arguments=call.use.arguments, result=outcome.facts.get("result"))
    return {"undo": {"tool": declared.tool.text, "arguments": fill(dict(declared.arguments), known)}}


# --- a person is asked ------------------------------------------------------------------------------------------------


def ask_person(s: Situation, call: PendingCall, effect: Effect) -> None:
    """The question to a person, with the key, the time, the arguments and what each answer does."""
    arguments = canonical_json(dict(call.use.arguments or {}))
    sentence = (
        f"{call.use.name} {arguments[:400]} was started, and its outcome is unknown (key {effect.key}). "
        "It will not be repeated by itself: was it done?"
    )
    question = AskPerson(
        id=_question_id(s, call, effect),
        kind="outcome",
        node=s.asked_node,
        call_id=call.use.id,
        sentence=sentence,
        choices=("done", "not-done", "stop"),
        until=ending.wait_for_person_until(s),
        data={
            "tool": call.name,
            "arguments": arguments,
            "key": effect.key,
            "effect": effect.id,
            "started_at": effect.at,
        },
    )
    ending.ask(s, question)


def _question_id(s: Situation, call: PendingCall, effect: Effect) -> str:
    return f"{s.brief.task}-{s.asked_node}.{call.place + 1}-{effect.id}"


def _heard(s: Situation, call: PendingCall, effect: Effect, question: Question) -> bool:
    """Whether a person's word lets the call run again; else it has its result, or still waits for that word."""
    if question.choice is None:
        if question.until is not None and question.until <= s.at:
            ending.end(s, ending.unanswered(question.sentence))
        else:
            ask_person(s, call, effect)
        return False
    s.person_acts()
    if question.choice == "not-done":
        # Sent again with the same key: whoever received it after all can tell.
        call.allowed = True
        return True
    if question.choice == "stop":
        ending.end(s, Ending(StopReason.ABORTED, f"A person stopped it: {call.use.name} has an unknown outcome."))
        return False
    said = f" They say: {question.say}" if question.say else ""
    text = f"{call.use.name} was done: a person confirmed it after its outcome was lost.{said}"
    s.settle(effect.id, EffectState.DONE, text=text)
    results.give(s, call, text, is_error=False, state="done")
    return False
