"""Document: what a rollback would do or did, as JSON for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.effect import Effect
from harnessd.domain.session import notes_of, path_to
from harnessd.domain.task import Task
from harnessd.domain.workspace import Restored, Uncovered, WorkspaceChange
from harnessd.runtime.rollbacks.targets import Known, Target

# What a difference between now and the target means for a file, in words.
_WORDS = {
    "added": "brought_back",
    "deleted": "removed",
    "changed": "restored",
    "type": "restored",
    "mode": "mode",
}
_SHOWN_MAX = 2_000  # paths of each sort


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found out about the workspace: differences from now to the target, what stands in the way."""

    changes: Sequence[WorkspaceChange] = ()
    conflicts: Sequence[str] = ()
    planned: Restored = field(default_factory=lambda: Restored("planned"))
    uncovered: Sequence[Uncovered] = ()
    ended_first: Sequence[str] = ()
    own: Sequence[str] = ()  # changed since the last checkpoint by what the task itself had running
    nowhere: Sequence[str] = ()  # named by a person, and there is nothing of that name


def preview(task: Task, known: Known, target: Target, effects: Sequence[Effect], seen: Seen) -> dict[str, Any]:
    """The whole story of a rollback before it is made."""
    here, there = known.path, path_to(known.nodes, target.node.id)
    staying = {node.id for node in there}
    files: dict[str, list[str]] = {word: [] for word in ("restored", "removed", "brought_back", "mode")}
    for change in seen.changes:
        if change.what in _WORDS and change.path not in seen.planned.left:
            files[_WORDS[change.what]].append(change.path)
    plans = [len(notes_of(path).get("task_list") or ()) for path in (here, there)]
    return {
        "task": task.id,
        "from": {"node": known.pointer, "at": here[-1].at if here else None},
        "to": {"node": target.node.id, "at": target.node.at},
        "checkpoint": target.checkpoint.ref if target.checkpoint is not None else None,
        "undoes": target.undoes or None,
        "leaves": sum(node.id not in staying for node in here),
        "task_list": {"from": plans[0], "to": plans[1]},
        "files": {word: paths[:_SHOWN_MAX] for word, paths in files.items()},
        "files_counts": {word: len(paths) for word, paths in files.items()},
        "files_total": sum(map(len, files.values())),
        "not_covered": [{"path": one.path, "why": one.why} for one in seen.uncovered[:_SHOWN_MAX]],
        "conflicts": list(seen.conflicts),
        "blocked": dict(seen.planned.blocked),
        "ended_first": list(seen.ended_first),
        "written_beside": list(seen.own),
        "stays_done": [stays(effect) for effect in effects],
        "not_given_back": {"tool_calls": task.counters.tool_calls, "cost_usd": task.counters.cost_usd},
        "refused": bool(seen.conflicts or seen.planned.blocked),
    }


def stays(effect: Effect) -> dict[str, Any]:
    """An effect that files going back do not take back."""
    result = effect.result or {}
    return {
        "effect": effect.id,
        "at": effect.at,
        "node": effect.node,
        "name": effect.name,
        "arguments": effect.arguments,
        "state": effect.state.value,
        "status": result.get("status"),
        "undo": result.get("undo"),
    }


def report(restored: Restored, undone: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What was done to the files, and what became of undone effects."""
    return {
        "result": restored.state,
        "written": len(restored.written),
        "removed": len(restored.removed),
        "modes": len(restored.modes),
        "left": dict(restored.left),
        "failed": dict(restored.failed),
        "rescued": dict(restored.rescued),
        "others": list(restored.others),
        "stripped": list(restored.stripped),
        "undone": list(undone),
    }
