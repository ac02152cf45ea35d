"""Background acts: what went on after its call had its result; the end of its job tells whether it was done (R3.13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harnessd.domain.effect import Effect, EffectClass, EffectState, canonical_json
from harnessd.domain.messages import ToolUseBlock
from harnessd.domain.ports import ToolOutcome
from harnessd.engine.situation import PendingCall, Situation
from harnessd.engine.tool_calls import outcomes
from harnessd.engine.tool_calls.callfacts import settings_of

_ENDED = "It went on in the background as job {job} and ended with exit code {code}: job_output tells what it wrote."


def settle(s: Situation) -> None:
    """Settle the acts whose jobs ended by themselves, by their exit code, as a result that had come at once would be.

    One that was ended (by its life limit, by a crash, by a signal) tells nothing: it stays unknown, and its twin held.
    """
    if not s.ended_jobs:
        return
    for effect in [effect for effect in s.effects.values() if effect.state is EffectState.UNKNOWN]:
        job = (effect.result or {}).get("job")
        code = s.ended_jobs.get(job) if isinstance(job, str) else None
        if code is None or effect.kind != "tool" or effect.effect_class is not EffectClass.IRREVERSIBLE:
            continue
        use = ToolUseBlock(effect.call_id, effect.name.removeprefix("tool/"), effect.arguments)
        call = PendingCall(use, 0)
        outcome = ToolOutcome(_ENDED.format(job=job, code=code), is_error=code != 0, exit_code=code)
        if outcomes.untold(s, call, outcome):
            continue
        state = EffectState.FAILED if outcome.is_error else EffectState.DONE
        known = {"exit_code": code, "is_error": outcome.is_error, "text": outcome.text}
        s.settle(effect.id, state, **_kept(effect), **known, **_undo(s, call, outcome))


def told(s: Situation) -> dict[str, list[list[str]]]:
    """The acts that are done since their jobs ended, for the facts of the notice that tells the model of it.

    From then on they are done in its sight: asked for again, the same is a second one that is wanted.
    """
    found = [list(call) for call in _unseen(s)]
    return {"done": found} if found else {}


def _unseen(s: Situation) -> Iterator[tuple[str, str]]:
    left = s.done.follow(s.path, s.acts_asked).left
    for effect in s.effects.values():
        call = (effect.node, effect.call_id)
        if effect.state is EffectState.DONE and call in left and "job" in (effect.result or {}):
            yield call


def _kept(effect: Effect) -> Mapping[str, object]:
    """What was known when it was left to go on."""
    return {name: value for name, value in (effect.result or {}).items() if name in ("job", "artefact")}


def _undo(s: Situation, call: PendingCall, outcome: ToolOutcome) -> Mapping[str, object]:
    """Its undo, unless that needs the result: what a job said is not kept as one."""
    declared = settings_of(s, call).undo
    if declared is None or "{result." in canonical_json(dict(declared.arguments)):
        return {}
    return outcomes.undo_of(s, call, outcome)
