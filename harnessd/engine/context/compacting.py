"""Compacting: the tiers before every model call, the steps in their order, and how each is judged (R4.2 to R4.6).

Cheap steps first, then a summary, then a trim without any model. What was started is durable before it is done: a
compaction that a crash cut off is begun again, and the path shows the old view or the new one, never half of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harnessd.defence.incident import CONTEXT_FULL
from harnessd.defence.line3_repair.compaction import emergency, summary
from harnessd.defence.line3_repair.compaction.notes import carried
from harnessd.defence.line3_repair.compaction.plan import HARD, LAST, ORDINARY, TIGHT, Plan, Scene, plan, squeeze, words
from harnessd.defence.line3_repair.compaction.standing import Replaced
from harnessd.domain.decision import Compact, Decision, NeedsHuman, Stop
from harnessd.domain.effect import EffectState
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import Usage
from harnessd.domain.session import NodeKind
from harnessd.domain.task import StopReason
from harnessd.engine import ending
from harnessd.engine.context import diagnosing, measuring, summarising
from harnessd.engine.context.measuring import note
from harnessd.engine.protocol import ModelFacts, ModelFailed, ModelReplied, RunState, Wait
from harnessd.engine.situation import Ending, Situation
from harnessd.policy import compaction as compaction_policy

_OVERFLOW = ErrorClass.CONTEXT_OVERFLOW.value
_BY = {"squeeze": "keeping long results as files", "summary": "a summary", "trim": "cutting without a summary"}
_KEPT = re.compile(r"\bkept-(n\d+)\b")


def before_call(s: Situation, model: ModelFacts) -> Failure | bool:
    """Whether the next model call can be made now (R4.2).

    False: something else is under way, a person is to be asked, or the run has ended. A Failure: by our count no
    request fits any more, and the ladder of an overflow decides.
    """
    known = s.counters.context
    if "making" in known:
        making = known["making"]
        return _begin(s, model, making["first"], making["last"], making["tries"])
    if "overflow" in known:
        return _begin(s, model, known["overflow"], LAST)
    where = measuring.where(s, model)
    note(s, now=[round(where.used * where.window), where.window])
    if where.tier == "none":
        if "told" in known:
            note(s, told=None)
        return True
    if known.get("open"):
        return _opened(s, model)
    waits = known.get("judge")
    if waits is not None and where.tier != "block":
        return diagnosing.told(s, model, where)  # the next count of the service says whether the last one helped
    first = ORDINARY if waits is None else waits["level"] + 1
    if first > LAST:
        return diagnosing.full(s, model, where)
    if where.tier != "block" and diagnosing.mostly_fixed(s, model, where):
        return diagnosing.told(s, model, where)
    return _begin(s, model, first, LAST if where.tier == "block" else HARD)


def _begin(s: Situation, model: ModelFacts, first: int, last: int, tries: int = 0) -> Failure | bool:
    """One compaction: the cheapest step that brings enough."""
    scene = measuring.scene(s, model)
    cheap = squeeze(scene) if first == ORDINARY and tries == 0 else None
    if cheap is not None:
        _squeezed(s, model, scene, cheap)
        return before_call(s, model)
    found = plan(scene, first, last)
    if found is None:
        # After an overflow the same bytes are not sent again.
        forced = "overflow" in s.counters.context
        return _nothing_to_take_out(s, model, forced=forced)
    why = ""
    answers = sum(node.kind is NodeKind.ASSISTANT for node in found.dropped)
    if answers and (why := summarising.not_worth_it(scene, found, answers)):
        pass
    elif answers:
        if tries == 0:
            note(s, making={"first": first, "last": last, "tries": 0})
        why = summarising.ask(s, model, scene, found, tries)
        if not why:
            return False
    _compacted(s, model, scene, found, how="trim" if why else "squeeze", why=why)
    return before_call(s, model)


# --- the summary's call -----------------------------------------------------------------------------------------------


def summarised(s: Situation, model: ModelFacts, event: ModelReplied) -> None:
    """A summariser answered: a summary, or words that are none."""
    reply, writer = event.reply, s.effects[event.call].name.removeprefix("model/")
    s.settle(
        event.call,
        EffectState.DONE,
        tokens=reply.usage.total,
        cost_usd=reply.cost_usd,
        request_id=reply.request_id,
        cache_read=reply.usage.cache_read_tokens,
    )
    summarising.charge(s, reply.usage, reply.cost_usd)
    if writer not in s.counters.context.get("ratio", {}):  # prose measures otherwise than a history with tools
        measuring.learn(s, writer, event.call, reply.usage)
    sections = s.rules.compaction.shape.summary.sections
    text = summary.usable(reply, sections)
    making = s.counters.context.get("making")
    if making is None:
        return
    scene = measuring.scene(s, model)
    found = plan(scene, making["first"], making["last"])
    if text is not None and found is not None:
        _compacted(s, model, scene, found, how="summary", text=text, by=writer)
        return
    why = f"the summary of model/{writer} could not be used: {summary.complaint(reply, sections)}"
    note(s, making={**making, "tries": making["tries"] + 1, "why": why})


def summary_failed(s: Situation, event: ModelFailed, cost_usd: float) -> bool:
    """A summary's attempt failed. True: go on at once, with the next attempt or without a summary."""
    failure = event.failure
    s.settle(event.call, EffectState.FAILED, message=failure.message[:500], status=failure.status)
    summarising.charge(s, failure.usage, cost_usd)
    making = s.counters.context.get("making")
    if making is None:
        return True
    tries, wait_s = summarising.next_try(s, failure, making["tries"], event.luck)
    why = f"no summary could be had: {failure.dependency}: {' '.join(failure.message.split())[:200]}"
    note(s, making={**making, "tries": tries, "why": why})
    if not wait_s:
        return True
    until = s.at + wait_s
    s.count(wait_until=until)
    s.doing = f"waiting {wait_s:.1f}s before the next try at a summary"
    s.acts.append(Wait(until))
    s.state = RunState.BACKOFF
    return False


# --- the node ---------------------------------------------------------------------------------------------------------


def _compacted(  # noqa: PLR0913 - which step of which plan it was
    s: Situation, model: ModelFacts, scene: Scene, found: Plan, *, how: str, text: str = "", why: str = "", by: str = ""
) -> None:
    replaced, texts, files = carried(scene, found, s.effect_of, how=how, summary=text, why=why)
    _record(s, model, scene, replaced, texts, files, level=found.level, why=why, by=by)


def _squeezed(s: Situation, model: ModelFacts, scene: Scene, found: Plan) -> None:
    """Only results were squeezed: what was said of earlier turns stands as it was."""
    before = scene.before
    kept = {node.id for node in found.kept}
    still = {node: text for node, text in before.squeezed.items() if node in kept}
    replaced = Replaced(
        kept_from=found.kept_from,
        summary=before.summary,
        how="squeeze",
        turns=before.turns,
        requests=before.requests,
        receipts=before.receipts,
        notes=before.notes,
        squeezed={**still, **found.squeezed},
    )
    texts = [block["text"] for block in scene.nodes[0].payload["blocks"]] if scene.compacted else []
    _record(s, model, scene, replaced, texts, found.files, level=ORDINARY, why="", by="")


def _record(  # noqa: PLR0913 - what a compaction is, in one unit of work
    s: Situation,
    model: ModelFacts,
    scene: Scene,
    replaced: Replaced,
    texts: Sequence[str],
    files: Sequence[tuple[str, str]],
    *,
    level: int,
    why: str,
    by: str,
) -> None:
    where, alias = measuring.where(s, model), model.alias
    sizes = {"before": scene.size, "window": where.window, "model": alias, "level": level}
    node = s.append(NodeKind.COMPACTION, replaced.payload(texts, **sizes, why=why, by=by))
    s.keep.update(files)
    after = measuring.size(s, alias)
    last = {"node": node.id, "at": s.at, "how": replaced.how, "before": scene.size, "after": after, "measured": False}
    judge = {**sizes, "after": after, "node": node.id}
    made = s.counters.context.get("made", 0) + 1
    note(s, making=None, overflow=None, judge=judge, last=last, made=made)
    tries = s.counters.context.get("tries", 0)
    remedy = Compact(max(1, tries), s.rules.compaction.shape.emergency_tries if tries else 1)
    evidence = {
        "dependency": f"model/{alias}",
        "message": f"made smaller by {_BY[replaced.how]}, to about {after:,} tokens",
        "how": replaced.how,
        "window": where.window,
        "tokens": scene.size,
        "used": round(where.used, 3),
        **({"why": why} if why else {}),
    }
    s.decide(Decision(remedy, _OVERFLOW, where.rule, evidence))


# --- judging ----------------------------------------------------------------------------------------------------------


def judge(s: Situation, alias: str, usage: Usage) -> None:
    """The next real count of the service says whether a compaction helped; the same metric before and after (R4.2)."""
    known = s.counters.context
    note(s, tries=None, most=None, said=None)
    waits = known.get("judge")
    if waits is None:
        return
    counted = measuring.sent(usage) if alias == waits["model"] else 0
    after = counted or waits["after"]
    policy, level = s.rules.compaction, s.rules.compaction.shape.tiers.compact * waits["window"]
    # No relief is a failure too: what stays above the tier is made smaller again at every turn.
    good = compaction_policy.gained_enough(policy, waits["before"], after) and after < level
    failures = 0 if good else known.get("failures", 0) + 1
    gain = 1 - after / waits["before"] if waits["before"] else 0.0
    last = {**known.get("last", {}), "after": after, "gain": round(gain, 4), "measured": bool(counted)}
    note(s, judge=None, failures=failures or None, last=last)
    if failures < policy.shape.failures or known.get("open"):
        return
    sentence = (
        f"{failures} compactions in a row brought no relief: less than {policy.shape.gain_at_least:.0%} freed, or "
        f"still above {policy.shape.tiers.compact:.0%} of the window. Largest: {diagnosing.diagnosis(s, alias)}."
    )
    note(s, open=sentence)
    look = [["harnessctl", "context", s.brief.task]]
    about = {"sentence": sentence, "why": sentence, "next_steps": look, "window_used": _used(s)}
    s.say("breaker_opened", dependency=f"compaction/{s.brief.task}", **about)


def _opened(s: Situation, model: ModelFacts) -> Failure | bool:
    """Too many compactions failed: one trim without a model, then the policy's ladder; no more summaries (R4.6)."""
    policy, sentence = s.rules.compaction, str(s.counters.context["open"])
    if not s.counters.context.get("trimmed"):
        note(s, trimmed=True)
        scene = measuring.scene(s, model)
        found = plan(scene, TIGHT, LAST)
        if found is not None:
            _compacted(s, model, scene, found, how="trim", why="Too many summaries did not help.")
            note(s, judge=None)
    rule = policy.ref("do")
    for place, word in enumerate(policy.shape.do):
        mark = f"compaction/do:{word}"
        if s.counters.taken.get(mark, 0) > policy.shape.do[:place].count(word):
            continue
        s.count(taken={**s.counters.taken, mark: s.counters.taken.get(mark, 0) + 1})
        if word == "needs_human":
            s.decide(Decision(NeedsHuman(sentence), _OVERFLOW, rule, {"message": sentence}))
            s.count(asking=sentence)
            return False
        break
    s.decide(Decision(Stop(StopReason.CONTEXT_EXHAUSTED), _OVERFLOW, rule, {"message": sentence}))
    ending.end(s, Ending(StopReason.CONTEXT_EXHAUSTED, sentence, error_class=_OVERFLOW))
    return False


# --- nothing more to take out -----------------------------------------------------------------------------------------


def _nothing_to_take_out(s: Situation, model: ModelFacts, *, forced: bool) -> Failure | bool:
    """What stands is what must stand."""
    note(s, making=None, overflow=None)
    where = measuring.where(s, model)
    diagnosing.mostly_fixed(s, model, where)
    return diagnosing.full(s, model, where) if forced or where.tier == "block" else diagnosing.told(s, model, where)


# --- emergency --------------------------------------------------------------------------------------------------------


def no_compaction(s: Situation, model: ModelFacts, failure: Failure, call: str) -> str:
    """Why an overflow cannot be met with a smaller request; empty where it can."""
    most, allowed = _asked_for(s, call), s.rules.compaction.shape.emergency_tries
    tries, whole = s.counters.context.get("tries", 0), measuring.window(s, model)
    if tries >= allowed:
        return f"all {allowed} emergency tries are used"
    if _shorter(s, model, failure, most) is not None:
        return ""
    stated = emergency.stated_window(failure.message, whole, most)
    scene = measuring.scene(s, model, measuring.less(s, model) if stated is None else stated)
    if plan(scene, min(tries, HARD), LAST) is None:
        return f"nothing more can be taken out. Largest: {diagnosing.diagnosis(s, model.alias)}"
    return ""


def _shorter(s: Situation, model: ModelFacts, failure: Failure, most: int) -> int | None:
    """How long the answer may be, where a shorter one is all that is wanted; once for each call."""
    if "most" in s.counters.context:
        return None
    size, whole = measuring.size(s, model.alias), measuring.window(s, model)
    return emergency.shorter_answer(failure.message, size, whole, most)


def _asked_for(s: Situation, call: str) -> int:
    """How long an answer a call asked for, in tokens; 0 where no call was made."""
    effect = s.effects.get(call)
    return int((effect.arguments or {}).get("max_tokens", 0)) if effect is not None else 0


def overflowed(s: Situation, model: ModelFacts, failure: Failure, call: str = "") -> None:
    """The service says the window overflowed: the next attempt is a smaller one, whatever we had estimated (R4.3)."""
    most = _asked_for(s, call)
    tries = s.counters.context.get("tries", 0) + 1
    shorter = _shorter(s, model, failure, most)
    stated = emergency.stated_window(failure.message, measuring.window(s, model), most)
    if stated is not None:
        measuring.found(s, model.alias, stated)
    if shorter is not None:
        note(s, tries=tries, most=shorter)
        return
    if failure.code != CONTEXT_FULL:
        note(s, said=" ".join(failure.message.split()).rstrip(".")[:140])
    if failure.code != CONTEXT_FULL and stated is None:
        measuring.overflowed(s, model, emergency.stated_size(failure.message, measuring.window(s, model), most))
    note(s, tries=tries, overflow=min(tries - 1, LAST), making=None, judge=None)


def _used(s: Situation) -> float | None:
    tokens, window = s.counters.context.get("now", (0, 0))
    return round(tokens / window, 3) if window else None


# --- the next call ----------------------------------------------------------------------------------------------------


def longest_answer(s: Situation, model: ModelFacts) -> int:
    """How long an answer may be: what the window still holds, and no more than an overflow left (OV08)."""
    room = measuring.room_for_answer(s, model)
    return min(room, int(s.counters.context.get("most", room)))


def to_keep(s: Situation) -> tuple[tuple[str, str], ...]:
    """Whole texts that the view shows cut, to lie as files before the call is made; those of an earlier run again."""
    if not s.laid_out:
        s.laid_out = True
        named = set(_KEPT.findall("\n".join(words(node) for node in measuring.shown(s))))
        found = {node.id: words(node) for node in s.path if node.id in named} if named else {}
        s.keep = {f"kept-{node}": text for node, text in found.items()} | s.keep
    files, s.keep = tuple(s.keep.items()), {}
    return files
