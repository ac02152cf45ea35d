"""The tool side of a turn: what runs side by side, answers, failed calls, calls cut off by a crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harnessd.defence import face
from harnessd.domain.decision import NeedsHuman, Probe
from harnessd.domain.effect import Effect, EffectClass, EffectState, canonical_json
from harnessd.domain.failure import ErrorClass, Failure, IllegalEvent
from harnessd.domain.ports import ToolOutcome
from harnessd.engine import links
from harnessd.engine.protocol import CallTool, RunState, ToolFailed, ToolReturned, Wait
from harnessd.engine.situation import PendingCall, Situation, repeatable
from harnessd.engine.tool_calls import checkpointing, keys, outcomes, permitting, results
from harnessd.engine.tool_calls.callfacts import limits_of, settings_of
from harnessd.engine.tool_calls.weighing import weigh
from harnessd.policy.tools import ToolSettings


def advance(s: Situation) -> bool:
    """Start what may start now. False when nothing is under way: the turn is complete, or a person is to be asked.

    Neighbouring `read_only` calls of one reply run side by side; any other runs alone, in order, so that a checkpoint
    means something.
    """
    for call in list(s.pending):
        settings = settings_of(s, call)
        if s.in_flight and settings.effect is not EffectClass.READ_ONLY:
            return True
        if call.not_before > s.at:
            if not s.in_flight:
                s.count(wait_until=call.not_before)
                s.acts.append(Wait(call.not_before))
                s.state = RunState.BACKOFF
            return True
        if permitting.may_run(s, call, settings):
            if checkpointing.before(s, call, settings):
                return True
            _start(s, call, settings)
            if settings.effect is not EffectClass.READ_ONLY:
                return True
        elif call in s.pending or s.state in (RunState.OVER, RunState.CANCELLING):
            return True
        if s.asking is not None:
            break
    return bool(s.in_flight)


def came_back(s: Situation, event: ToolReturned | ToolFailed) -> None:
    """A call is over, well or not."""
    call = _take(s, event.call)
    checkpointing.ran(s, call)
    if isinstance(event, ToolReturned):
        _returned(s, call, event)
    else:
        _failed(s, call, event)


def _returned(s: Situation, call: PendingCall, event: ToolReturned) -> None:
    """A tool's own answer becomes the result; outcome and result node are one unit of work."""
    outcome = event.outcome
    if s.effects[event.call].kind == "probe":
        outcomes.probe_returned(s, call, event)
        return
    effect = s.effects[event.call]
    if effect.effect_class is EffectClass.IRREVERSIBLE:
        if outcomes.untold(s, call, outcome):
            words = f"it ended with an error that does not tell whether it was done: {outcome.text[:300]}"
            lost = Failure("tool", call.name, words, hint=ErrorClass.OUTCOME_UNKNOWN, effect_begun=True)
            _failed(s, call, ToolFailed(event.at, event.call, lost))
            return
        if outcome.job is not None and outcome.exit_code is None:
            # It goes on in the background. Until it has ended nobody can say that it was done, and a twin is held.
            s.settle(event.call, EffectState.UNKNOWN, message="goes on in the background", **_outcome_json(outcome))
            results.give(s, call, outcome.text, is_error=False, state="unknown")
            return
    note: dict[str, Any] = {} if outcome.note is None else {"note": outcome.note}
    # The outcome of an act with a key is given again to whoever asks for the same act.
    again = {"text": outcome.text, **note} if effect.key is not None else {}
    if outcome.is_error and effect.key is not None and not outcome.facts.get("refused"):
        # It failed by its own word, and may have acted all the same: asked for again, it is sent under this key.
        note["keeps_key"] = True
    state = EffectState.FAILED if outcome.is_error else EffectState.DONE
    s.settle(event.call, state, **_outcome_json(outcome), **again, **outcomes.undo_of(s, call, outcome))
    links.stands_in(s, f"tool/{call.use.name}", call.name)
    text = outcome.text
    if call.stand_in:
        note |= {"served_by": call.stand_in}
        text = f"{call.use.name} could not be used, and {call.stand_in} answered instead.\n{text}"
    results.give(s, call, text, is_error=outcome.is_error, state="done", **note)
    if outcome.is_error:
        weigh(s, call, outcome, effect.effect_class)


def _failed(s: Situation, call: PendingCall, event: ToolFailed) -> None:
    """Decide about a call that could not be done."""
    failure = event.failure
    effect = s.effects[event.call]
    if effect.kind == "probe":
        outcomes.probe_failed(s, call, event)
        return
    if failure.cancelled or s.ending is not None:
        _ended_early(s, call, effect, failure)
        return
    if failure.effect_begun and effect.effect_class is EffectClass.IRREVERSIBLE:
        # It began and gave no answer: whatever broke it, nobody knows whether it was done.
        failure = replace(failure, hint=ErrorClass.OUTCOME_UNKNOWN)
    probe = outcomes.probe_of(s, call)
    it = results.incident(s, call, failure, effect.effect_class, event.luck, probe)
    _settle_failed(s, effect, failure, it.error_class)
    decision = face(it)
    unknown = it.error_class is ErrorClass.OUTCOME_UNKNOWN and effect.effect_class is EffectClass.IRREVERSIBLE
    if isinstance(decision.remedy, Probe) or (unknown and isinstance(decision.remedy, NeedsHuman)):
        call.tries += 1
        outcomes.unknown(s, call, s.effects[effect.id], decision)
        return
    results.carry_out(s, call, it, decision)


def take_up(s: Situation) -> None:
    """After a restore: calls whose intent has no outcome are the only unknown (the law of the shell)."""
    outcomes.cut_off(s)
    for call in list(s.pending):
        effect = call.effect
        if effect is None or not effect.state.open:
            continue
        if repeatable(effect) and outcomes.honoured(s, call, effect):
            # The same key again: the receiver of an idempotent call knows it, a reader does no harm.
            s.settle(effect.id, EffectState.FAILED, message="interrupted by a restart; performed again")
            call.effect, call.tries = None, call.tries + 1
            continue
        s.settle(effect.id, EffectState.UNKNOWN, message="interrupted by a restart")
        call.effect, call.tries = s.effects[effect.id], call.tries + 1
        if effect.effect_class is EffectClass.REVERSIBLE:
            results.give(s, call, _interrupted(s, call, effect), is_error=True, state="unknown")


def _take(s: Situation, effect: str) -> PendingCall:
    call = s.in_flight.pop(effect)
    if call is None:
        raise IllegalEvent(f"{effect} is a model call, and a tool's event came for it")
    return call


def _ended_early(s: Situation, call: PendingCall, effect: Effect, failure: Failure) -> None:
    known = _settle_failed(s, effect, failure, failure.hint)
    text = f"{call.use.name} was ended before it finished: {failure.message}"
    text += "" if known else "\nIt had begun, and its outcome is unknown."
    text += f"\nOutput until then:\n{failure.output}" if failure.output else ""
    results.give(s, call, text, is_error=True, state="cancelled" if known else "unknown")


def _settle_failed(s: Situation, effect: Effect, failure: Failure, error_class: ErrorClass | None) -> bool:
    """Settle a call that gave no answer. False where nobody can say what it did."""
    unknown = results.may_have_acted(effect.effect_class, failure, error_class)
    s.settle(effect.id, EffectState.UNKNOWN if unknown else EffectState.FAILED, message=failure.message[:500])
    return not unknown


def _interrupted(s: Situation, call: PendingCall, effect: Effect) -> str:
    output = s.partial.get(effect.id, "")
    lines = [
        f"{call.use.name} started, outcome unknown: harnessd was restarted while it ran, and it was ended.",
        "It was not repeated. Look at what it did before you go on.",
    ]
    return "\n".join(lines + (["Output until then:", output] if output else []))


def _start(s: Situation, call: PendingCall, settings: ToolSettings) -> None:
    arguments = call.use.arguments or {}
    key = keys.key_of(s, call) if settings.effect in keys.KEYED else None
    if call.tries == 0:
        calls_of = {**s.counters.calls_of, call.use.name: s.counters.calls_of.get(call.use.name, 0) + 1}
        s.count(tool_calls=s.counters.tool_calls + 1, calls_of=calls_of)
    effect = s.plan(
        Effect(
            id="",
            kind="tool",
            node=s.asked_node,
            call_id=call.use.id,
            name=call.name,
            effect_class=settings.effect,
            state=EffectState.INTENT,
            key=key,
            arguments=arguments,
            attempt=call.tries + 1,
            at=s.at,
        )
    )
    call.effect = effect
    call.first_at = call.first_at if call.first_at is not None else s.at
    s.in_flight[effect.id] = call
    s.doing = f"{call.tool}: {canonical_json(dict(arguments))[:120]}"
    act = CallTool(effect.id, call.use.id, call.tool, arguments, limits_of(settings), key=key, notes=s.notes)
    s.acts.append(replace(act, agent=s.brief.acting))
    s.count(wait_until=None)
    s.state = RunState.TOOLS


def _outcome_json(outcome: ToolOutcome) -> dict[str, object]:
    stored = {
        "exit_code": outcome.exit_code,
        "artefact": outcome.artefact,
        "job": outcome.job,
        "is_error": outcome.is_error,
        **outcome.facts,
    }
    return {name: value for name, value in stored.items() if value is not None}
