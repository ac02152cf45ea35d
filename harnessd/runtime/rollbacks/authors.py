"""Authors: whose a change of the workspace since the last checkpoint is: the task's own processes', or somebody else's.

A background job, or a call that a crash cut off, goes on writing after the last look. That is the task's work, and goes
back with it; what changed after they had ended is somebody else's, and a person's choice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from harnessd.domain.effect import EffectClass, EffectState
from harnessd.domain.events import EventType
from harnessd.domain.ports import Store
from harnessd.domain.task import Task
from harnessd.runtime.rollbacks.targets import Known

_PAGE = 1000
_CLOCKS_S = 1.0  # the kernel stamps files by a clock that ticks; a job's end is noted a moment after it


class Running(Protocol):
    """What runs beside a task."""

    def running(self, task: str) -> Sequence[str]:
        """Ids of a task's jobs that still run."""


async def own_until(store: Store, jobs: Running, task: Task, known: Known) -> float:
    """Until when something of the task itself may have written since its last checkpoint; 0 where nothing did."""
    if jobs.running(task.id):
        return float("inf")
    if not known.checkpoints:
        return 0.0
    looked_at = known.checkpoints[-1].at
    until = max((node.at for node in known.nodes.values()), default=0.0) if _cut_off(known, looked_at) else 0.0
    after = 0
    while page := await store.events(after, task.id, _PAGE):
        after = page[-1].seq
        until = max([until, *(one.at for one in page if one.type == EventType.JOB_ENDED and one.at >= looked_at)])
    return until


def others(root: str, paths: Sequence[str], until: float) -> tuple[list[str], list[str]]:
    """The changed paths, parted: whose change is somebody else's, and whose is the task's own."""
    theirs: list[str] = []
    own: list[str] = []
    for path in paths:
        (theirs if _changed_at(Path(root), path) > until + _CLOCKS_S else own).append(path)
    return theirs, own


def _cut_off(known: Known, looked_at: float) -> bool:
    """Whether a call that may have written was cut off after the last look."""
    return any(
        effect.kind == "tool"
        and effect.effect_class is not EffectClass.READ_ONLY
        and (effect.state is EffectState.UNKNOWN or effect.state.open)
        and effect.at >= looked_at
        for effect in known.effects
    )


def _changed_at(root: Path, path: str) -> float:
    """When a path was last changed; of one that is gone, when its folder was."""
    place = root / path
    while place != root:
        try:
            found = os.lstat(place)
        except OSError:
            place = place.parent
            continue
        return found.st_ctime
    try:
        return os.lstat(root).st_ctime
    except OSError:
        return float("inf")
