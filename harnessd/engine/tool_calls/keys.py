"""Keys: one act recognised again, under whatever call id the model asks for it (the occurrence rule)."""

from __future__ import annotations

from harnessd.domain.effect import Effect, EffectClass, EffectState, canonical_json, effect_key
from harnessd.domain.session import NodeKind
from harnessd.engine.situation import PendingCall, Situation, asked_calls

KEYED = (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE)


def key_of(s: Situation, call: PendingCall) -> str:
    """The idempotency key of a call. A second try keeps the first one's."""
    asked = s.asked_node
    for effect in s.effects.values():
        mine = effect.node == asked and effect.call_id == call.use.id and effect.name == call.name
        if mine and effect.key is not None:
            return effect.key
    done = _done(s)
    # An earlier twin that failed leaves its number to the next one; what the model has seen done keeps its own.
    taken = {effect.key for effect in s.effects.values() if (effect.node, effect.call_id) in done}
    occurrence = _occurrence(s, call, asked, done)
    while (key := _key(s, call, occurrence)) in taken:
        occurrence += 1
    return key


def twin_of(s: Situation, call: PendingCall) -> Effect | None:
    """The newest act with this key that another call began: the model plans it again after a crash or a cancel."""
    key, asked = key_of(s, call), s.asked_node
    return next(
        (
            effect
            for effect in reversed(s.effects.values())
            if effect.key == key
            and (effect.node, effect.call_id) != (asked, call.use.id)
            and effect.state is not EffectState.FAILED
        ),
        None,
    )


def _key(s: Situation, call: PendingCall, occurrence: int) -> str:
    return effect_key(s.brief.task, call.name, call.use.arguments or {}, occurrence)


def _done(s: Situation) -> set[tuple[str, str]]:
    """The calls (assistant node, call id) whose outcome stands in the view; a model may use an id in many turns."""
    done: set[tuple[str, str]] = set()
    asked = ""
    for node in s.path:
        if node.kind is NodeKind.ASSISTANT:
            asked = node.id
        elif node.kind is NodeKind.TOOL_RESULT and node.payload.get("facts", {}).get("state") == "done":
            done |= {(asked, block["tool_use_id"]) for block in node.payload["blocks"]}
    return done


def _occurrence(s: Situation, call: PendingCall, asked: str, done: set[tuple[str, str]]) -> int:
    """1 + the equal calls done on this path + equal calls earlier in the same reply."""
    wanted = (call.use.name, canonical_json(dict(call.use.arguments or {})))
    equal = 1
    for node in s.path:
        if node.kind is not NodeKind.ASSISTANT:
            continue
        for place, use in enumerate(asked_calls(node)):
            if use.arguments is None or (use.name, canonical_json(dict(use.arguments))) != wanted:
                continue
            equal += (place < call.place) if node.id == asked else ((node.id, use.id) in done)
    return equal
