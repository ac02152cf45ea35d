"""Plan: what policy keeps no longer, worked out from rows and folders; a dry run prints what the real one does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harnessd.domain.durable.retention import Aged, EndedTask
from harnessd.policy.retention import RetentionPolicy, keep_s


@dataclass(frozen=True, slots=True)
class Folder:
    """A task's artefacts: bytes, when the newest of them was written, and when the task ended (epoch seconds)."""

    task: str
    size: int
    written_at: float
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes. `tasks` go whole; of `checkpoints` and `artefacts` only those.

    `orphans` are tasks whose row went before a crash. Before `aged_before` go alerts and the daemon's own events.
    """

    tasks: tuple[EndedTask, ...] = ()
    checkpoints: tuple[EndedTask, ...] = ()
    artefacts: tuple[Folder, ...] = ()
    revisions: tuple[int, ...] = ()
    orphans: tuple[str, ...] = ()
    aged: Aged = field(default_factory=Aged)
    aged_before: float = float("-inf")

    @property
    def empty(self) -> bool:
        """Nothing goes."""
        return not (self.tasks or self.checkpoints or self.artefacts or self.revisions or self.orphans) and (
            self.aged == Aged()
        )

    def json(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "tasks": [{"task": task.id, "ended_at": task.ended_at} for task in self.tasks],
            "checkpoints": [
                {"task": task.id, "ended_at": task.ended_at, "count": task.checkpoints} for task in self.checkpoints
            ],
            "artefacts": [{"task": one.task, "bytes": one.size} for one in self.artefacts],
            "revisions": list(self.revisions),
            "leftovers": list(self.orphans),
            "events": self.aged.events,
            "alerts": self.aged.alerts,
        }


def over(policy: RetentionPolicy, what: str, task: EndedTask, now: float) -> bool:
    """Whether this of an ended task is kept no longer. What a person wants kept is kept at least so long."""
    kept_s = keep_s(policy, what)
    if kept_s is None or task.needed:
        return False
    return task.ended_at + max(kept_s, task.keep_s or 0.0) < now


def wanted(task: EndedTask, now: float) -> bool:
    """Whether a person wants this task kept beyond this moment."""
    return task.keep_s is not None and task.ended_at + task.keep_s >= now


def gone(policy: RetentionPolicy, ended: Sequence[EndedTask], now: float) -> tuple[EndedTask, ...]:
    """Tasks that go whole. Outcomes of effects stay as long as a retry may ask for them, whatever the rest says."""
    floor_s = keep_s(policy, "idempotency") or 0.0
    return tuple(task for task in ended if over(policy, "sessions", task, now) and task.touched_at + floor_s < now)


def checkpoints(
    policy: RetentionPolicy, ended: Sequence[EndedTask], whole: Collection[str], now: float
) -> tuple[EndedTask, ...]:
    """Tasks that stay and lose their checkpoints."""
    return tuple(
        task for task in ended if task.checkpoints and task.id not in whole and over(policy, "checkpoints", task, now)
    )


def artefacts(
    policy: RetentionPolicy,
    folders: Sequence[Folder],
    ended: Mapping[str, EndedTask],
    live: Collection[str],
    now: float,
    whole: Collection[str] = (),
) -> tuple[Folder, ...]:
    """Folders that go: of tasks that go, of none that is known, too old; then the oldest, until the rest fits.

    `live` are tasks that have not ended: theirs stay, however large they are.
    """
    day_s = 86400.0
    out: list[Folder] = []
    rest: list[Folder] = []
    for found in folders:
        task = ended.get(found.task)
        folder = replace(found, ended_at=task.ended_at if task is not None else None)
        if folder.task in whole or (task is not None and over(policy, "artifacts", task, now)):
            out.append(folder)
        elif task is None and folder.task not in live and folder.written_at + day_s < now:
            out.append(folder)  # of a task that is gone
        else:
            rest.append(folder)
    most, size = policy.shape.max_size.artifacts, sum(folder.size for folder in rest)
    old = sorted((folder for folder in rest if folder.task in ended), key=lambda one: ended[one.task].ended_at)
    for folder in old:
        if most is None or size <= most:
            break
        if ended[folder.task].needed or wanted(ended[folder.task], now):
            continue
        out.append(folder)
        size -= folder.size
    return tuple(out)
