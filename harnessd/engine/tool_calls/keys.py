"""Keys: one act recognised again, under whatever call id the model asks for it (the occurrence rule)."""

from __future__ import annotations

from harnessd.domain.effect import Effect, EffectClass, EffectState, effect_key
from harnessd.domain.session import NodeKind
from harnessd.engine.acts import Done, act
from harnessd.engine.situation import PendingCall, Situation

KEYED = (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE)


def key_of(s: Situation, call: PendingCall) -> str:
    """The idempotency key of a call. A second try keeps the first one's."""
    asked = s.asked_node
    for row in s.journal.of_call.get((asked, call.use.id), ()):
        effect = s.effects[row]
        if effect.name == call.name and effect.key is not None:
            return effect.key
    done = s.done.follow(s.path, s.acts_asked)
    forgotten = _out_of_sight(s, call, done)
    if forgotten is not None:
        return forgotten
    occurrence = _occurrence(s, call, done)
    # An earlier twin that failed leaves its number to the next one; what the model has seen done keeps its own.
    while _taken(s, key := _key(s, call, occurrence), done):
        occurrence += 1
    return key


def _out_of_sight(s: Situation, call: PendingCall, done: Done) -> str | None:
    """The key of the same act whose result a compaction took out of the model's sight: it may plan it once more.

    The outcome is then given again; whoever wants a second one asks after that. What may be repeated is not held back.
    """
    wanted = act(s.act_of(call.use))
    earlier = done.shown[wanted] + _equal_beside(s, call, done)
    lost = done.lost.get(wanted, ())
    if earlier >= len(lost):
        return None
    if lost[earlier] in done.met:
        return done.met[lost[earlier]]
    rows = s.journal.of_call.get(lost[earlier], ())
    known = [s.effects[row] for row in rows]
    keys = [one.key for one in known if one.effect_class is EffectClass.IRREVERSIBLE and one.name == call.name]
    return keys[-1] if keys else None


def twin_of(s: Situation, call: PendingCall) -> Effect | None:
    """The newest act with this key that another call began: the model plans it again after a crash or a cancel."""
    mine = (s.asked_node, call.use.id)
    for row in reversed(s.journal.of_key.get(key_of(s, call), ())):
        effect = s.effects[row]
        if (effect.node, effect.call_id) != mine and effect.state is not EffectState.FAILED:
            return effect
    return None


def _key(s: Situation, call: PendingCall, occurrence: int) -> str:
    whose = s.brief.keys_of or s.brief.task  # an imported session goes on with the keys it had
    return effect_key(whose, call.name, s.act_of(call.use).arguments or {}, occurrence)


def _taken(s: Situation, key: str, done: Done) -> bool:
    rows = (s.effects[row] for row in s.journal.of_key.get(key, ()))
    return any((effect.node, effect.call_id) in done.calls for effect in rows)


def _occurrence(s: Situation, call: PendingCall, done: Done) -> int:
    """1 + the equal calls done on this path + equal calls earlier in the same reply."""
    return 1 + done.equal[act(s.act_of(call.use))] + _equal_beside(s, call, done)


def _equal_beside(s: Situation, call: PendingCall, done: Done) -> int:
    """The equal calls earlier in the same reply, less those of it that are counted as done."""
    wanted, asked = act(s.act_of(call.use)), next(node for node in reversed(s.path) if node.kind is NodeKind.ASSISTANT)
    equal = 0
    for place, use in enumerate(s.acts_asked(asked)):
        if use.arguments is not None and act(use) == wanted:
            # In one reply it is the place that counts, whether done already or not.
            equal += (place < call.place) - ((asked.id, use.id) in done.calls)
    return equal
