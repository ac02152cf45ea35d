"""Undoing: the declared undo of an effect is called: an act of its own, recorded as every act is, never made twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from harnessd.domain.effect import Effect, EffectClass, EffectState, effect_key
from harnessd.domain.failure import Failure
from harnessd.domain.ports import Store, ToolLimits, ToolOutcome
from harnessd.domain.task import Task
from harnessd.engine.protocol import CallTool

Perform = Callable[[Task, CallTool], Awaitable[ToolOutcome | Failure]]


def undos_of(effects: Sequence[Effect], name: str) -> list[Effect]:
    """The calls of an effect's undo so far: one that may have been made is never made again."""
    return [effect for effect in effects if effect.kind == "undo" and effect.id.partition("-")[0] == name]


async def undo(store: Store, perform: Perform, task: Task, name: str, now: float) -> dict[str, Any]:
    """Call the declared undo of one effect: what it was and what became of it."""
    effects = await store.effects(task.id)
    about = next(effect for effect in effects if effect.id == name)
    undo = dict((about.result or {}).get("undo") or {})
    told = {"effect": about.id, "tool": undo.get("tool", "")}
    tries = undos_of(effects, about.id)
    last = tries[-1] if tries else None
    if last is not None and last.state.open:
        # Its call was cut off by a crash: it may have been made, and is not made again.
        await store.settle_undo(task.id, last.id, EffectState.UNKNOWN, {"message": "interrupted by a restart"})
        return told | {"state": "unknown", "said": "interrupted by a restart; its outcome is unknown"}
    if last is not None and last.state is not EffectState.FAILED:
        return told | {"state": last.state.value, "said": str((last.result or {}).get("text", ""))[:300]}
    mine = f"{about.id}-undo{len(tries) + 1 if tries else ''}"
    arguments = dict(undo.get("arguments", {}))
    key = effect_key(task.draft.keys_of or task.id, f"undo/{about.id}", arguments, 1)
    intent = Effect(
        id=mine,
        kind="undo",
        node=about.node,
        call_id=about.call_id,
        name=str(undo["tool"]),
        effect_class=EffectClass.IRREVERSIBLE,
        state=EffectState.INTENT,
        key=key,
        arguments=arguments,
        at=now,
    )
    await store.plan_undo(task.id, intent)
    tool = intent.name.removeprefix("tool/")
    outcome = await perform(task, CallTool(mine, about.call_id, tool, arguments, ToolLimits(), key=key))
    if isinstance(outcome, ToolOutcome):
        state = EffectState.FAILED if outcome.is_error else EffectState.DONE
        said, facts = outcome.text, dict(outcome.facts)
    else:
        state = EffectState.UNKNOWN if outcome.effect_begun else EffectState.FAILED
        said, facts = outcome.message, {}
    await store.settle_undo(task.id, mine, state, {"text": said[:2000], **facts})
    return told | {"state": state.value, "said": said[:300]}
