"""Way: what a tree tells beside its nodes: checkpoints, branches left and why, the last good node, outward acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.domain.effect import Effect, EffectClass
from harnessd.domain.ports import Refused, Store
from harnessd.domain.session import Checkpoint
from harnessd.domain.task import Task, TaskState
from harnessd.domain.workspace import KeptRestore
from harnessd.runtime.control import show
from harnessd.runtime.rollbacks.carrying import known_of
from harnessd.runtime.rollbacks.targets import LAST_GOOD, Known, Wish, find

_BACK = ("done", "disturbed")
_OUTWARD = (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE)
_OWN = ("tool/task_list", "tool/job_stop")  # the agent's own state, that goes back with it
_STANDS = (TaskState.PAUSED, TaskState.STOPPED, TaskState.COMPLETED)


async def tree(store: Store, task: Task) -> dict[str, Any]:
    """Pointer and nodes with what belongs to each; which branches were left, when, by whom and why."""
    known = await known_of(store, task)
    refs = _refs(known.checkpoints)
    acts: dict[str, list[dict[str, Any]]] = {}
    for effect in known.effects:
        if _stays(effect):
            acts.setdefault(effect.node, []).append(_act(effect))
    nodes = [
        show.show_node(node)
        | {"checkpoint": " ".join(refs.get(node.id, ())) or None}
        | ({"outward": acts[node.id]} if node.id in acts else {})
        for node in known.nodes.values()
    ]
    return {
        **show.show_task(task),
        "pointer": task.pointer,
        "last_good": _last_good(known),
        "left": [_left(one) for one in known.restores if one.state in _BACK],
        "nodes": nodes,
    }


async def node_facts(store: Store, task: Task, node: str) -> dict[str, Any]:
    """What belongs to one node: its checkpoints, and the acts that files do not undo."""
    kept = _refs(await store.checkpoints(task.id)).get(node, [])
    acts = [_act(effect) for effect in await store.effects(task.id) if effect.node == node and _stays(effect)]
    return {"checkpoint": " ".join(kept) or None, **({"outward": acts} if acts else {})}


async def standing(store: Store, task: Task) -> dict[str, Any]:
    """Where a task stands on its way, in a few words; and the rollback that is under way."""
    kept = await store.checkpoints(task.id)
    own = [one for one in kept if one.why != "safety"]
    rollbacks = [one for one in await store.restores(task.id) if one.state in _BACK and not one.about.get("undoes")]
    here = next((one for one in reversed(own) if one.manifest == task.counters.checkpoint), own[-1] if own else None)
    found: dict[str, Any] = {
        "nodes": task.counters.nodes,
        "checkpoints": len(kept),
        "checkpoint": {"ref": here.ref, "node": here.node, "at": here.at} if here else None,
        "rollbacks": len(rollbacks),
        "last_good": None,
    }
    if own and task.state in _STANDS:
        found["last_good"] = _last_good(await known_of(store, task))
    rolling = task.counters.rollback if task.state is TaskState.ROLLING_BACK else {}
    shown = {name: rolling.get(name) for name in ("to", "checkpoint", "by", "why")} if rolling else None
    return {"way": found, "rolling_back": shown}


def steps(task: Task, way: Mapping[str, Any]) -> list[list[str]]:
    """What a person can do about the way of a task that stands still."""
    back = [["harnessctl", "rollback", task.id, "--to", LAST_GOOD]] if way["last_good"] else []
    return [*back, *([["harnessctl", "rollback", task.id, "--undo"]] if way["rollbacks"] and not back else [])]


def _last_good(known: Known) -> str | None:
    if not known.path:
        return None
    found = find(known, Wish(to=LAST_GOOD))
    return None if isinstance(found, Refused) else found.node.id


def _refs(checkpoints: Sequence[Checkpoint]) -> dict[str, list[str]]:
    """The checkpoints of each node; what was kept before a rollback is no state of the node's own."""
    refs: dict[str, list[str]] = {}
    for one in checkpoints:
        if one.why != "safety":
            refs.setdefault(one.node, []).append(one.ref)
    return refs


def _left(one: KeptRestore) -> dict[str, Any]:
    about = one.about
    return {
        "node": about.get("since"),
        "to": about.get("to"),
        "at": one.ended_at or one.at,
        "by": about.get("by"),
        "why": about.get("why"),
        "undo": bool(about.get("undoes")),
    }


def _stays(effect: Effect) -> bool:
    return (
        effect.kind == "tool"
        and effect.effect_class in _OUTWARD
        and effect.name not in _OWN
        and effect.state.value in ("done", "unknown", "started")
    )


def _act(effect: Effect) -> dict[str, Any]:
    result = effect.result or {}
    return {
        "effect": effect.id,
        "name": effect.name,
        "at": effect.at,
        "state": effect.state.value,
        "status": result.get("status"),
        "undo": (result.get("undo") or {}).get("tool"),
    }
