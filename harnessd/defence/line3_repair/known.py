"""Known: what the journal says of a call whose result is not in the history; never success by guess (R4.7)."""

from __future__ import annotations

from collections.abc import Callable

from harnessd.defence.line3_repair.transcript import Known
from harnessd.domain.effect import Effect, EffectClass, EffectState, canonical_json

# The newest row of the journal for a call: asked with the node and the call's id.
EffectOf = Callable[[str, str], Effect | None]


def no_journal(_node: str, _call: str) -> Effect | None:
    """Nothing was recorded."""
    return None


def known_of(effect: Effect | None, tool: str, *, unreadable: bool) -> Known:
    """The words of the result that stands in for the one that is missing."""
    if unreadable:
        return Known(
            f"Error: {tool} was not run: its arguments were cut off or are not a JSON object. "
            "Call it again with complete arguments."
        )
    if effect is None:
        return Known(f"Error: {tool} was not started. Call it again if it is still needed.")
    result = {name: value for name, value in (effect.result or {}).items() if value not in (None, "")}
    match effect.state:
        case EffectState.DONE:
            failed = bool(result.pop("is_error", False))
            facts = f" What is recorded of it: {canonical_json(result)}." if result else ""
            return Known(f"{tool} was done; its words are not in the history any more.{facts}", is_error=failed)
        case EffectState.FAILED:
            return Known(f"Error: {tool} failed: {result.get('message', 'no reason was recorded')}.")
        case _ if effect.effect_class is EffectClass.READ_ONLY:
            return Known(
                f"Error: {tool} was interrupted before it answered. It changes nothing and may be called again."
            )
        case _:
            return Known(
                f"Error: {tool} started, outcome unknown: it was interrupted, and was not repeated. "
                "Find out what it did before you go on."
            )
