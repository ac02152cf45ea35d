"""Keys: one act recognised again, under whatever call id the model asks for it (the occurrence rule)."""

from __future__ import annotations

from harnessd.domain.effect import Effect, EffectClass, EffectState, effect_key
from harnessd.domain.session import NodeKind
from harnessd.engine.acts import Done, act
from harnessd.engine.situation import PendingCall, Situation, asked_calls
from harnessd.engine.tool_calls.callfacts import tool_of

KEYED = (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE)


def key_of(s: Situation, call: PendingCall) -> str:
    """The idempotency key of a call. A second try keeps the first one's."""
    asked = s.asked_node
    for row in s.journal.of_call.get((asked, call.use.id), ()):
        effect = s.effects[row]
        if effect.name == call.name and effect.key is not None:
            return effect.key
    done = s.done.follow(s.path, asked_calls)
    occurrence = _occurrence(s, call, done)
    # An earlier twin that failed leaves its number to the next one; what the model has seen done keeps its own.
    while _taken(s, key := _key(s, call, occurrence), done):
        occurrence += 1
    return key


def twin_of(s: Situation, call: PendingCall) -> Effect | None:
    """The newest act with this key that another call began: the model plans it again after a crash or a cancel."""
    mine = (s.asked_node, call.use.id)
    for row in reversed(s.journal.of_key.get(key_of(s, call), ())):
        effect = s.effects[row]
        if (effect.node, effect.call_id) != mine and effect.state is not EffectState.FAILED:
            return effect
    return None


def _key(s: Situation, call: PendingCall, occurrence: int) -> str:
    arguments, tool = call.use.arguments or {}, tool_of(s, call)
    whose = s.brief.keys_of or s.brief.task
    return effect_key(whose, call.name, arguments if tool is None else tool.act(arguments), occurrence)


def _taken(s: Situation, key: str, done: Done) -> bool:
    rows = (s.effects[row] for row in s.journal.of_key.get(key, ()))
    return any((effect.node, effect.call_id) in done.calls for effect in rows)


def _occurrence(s: Situation, call: PendingCall, done: Done) -> int:
    """1 + the equal calls done on this path + equal calls earlier in the same reply."""
    wanted, asked = act(call.use), next(node for node in reversed(s.path) if node.kind is NodeKind.ASSISTANT)
    equal = 1 + done.equal[wanted]
    for place, use in enumerate(asked_calls(asked)):
        if use.arguments is not None and act(use) == wanted:
            # In one reply it is the place that counts, whether done already or not.
            equal += (place < call.place) - ((asked.id, use.id) in done.calls)
    return equal
