"""Retention: how long what is left of ended tasks is kept, and what happens when the disk fills up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.policy.language.figures import Duration, Ratio, Size
from harnessd.policy.language.shape import Policy, Shape
from harnessd.policy.language.source import Problem

_Kept = Annotated[float | None, Duration(low="1h", high="3650d", none=True)]
_Largest = Annotated[int | None, Size(low="100MiB", high="100TiB", none=True)]


class MaxSize(Shape):
    """Upper bounds; oldest of ended tasks first."""

    artifacts: _Largest = Field(description="Whole outputs and job files.")
    checkpoints: _Largest = Field(description="Contents of workspaces.")


class DiskFree(Shape):
    """Free part of the store's file system."""

    warn: Annotated[float, Ratio(low="1%", high="50%")] = Field(description="Below: collect now, event disk_low.")
    stop: Annotated[float, Ratio(low="0.5%", high="50%")] = Field(
        description="Below: no new step; tasks wait with storage_full and go on by themselves."
    )


class RetentionShape(Shape):
    """How long things are kept."""

    sessions: _Kept = Field(description="After the task ended.")
    artifacts: _Kept = Field(description="After the task ended.")
    checkpoints: _Kept = Field(description="After the task ended; a task that can still go on keeps its own.")
    revisions: Annotated[float | None, Duration(low="30d", high="3650d", none=True)] = Field(
        description="Policy revisions; those that a kept decision names stay."
    )
    idempotency: Annotated[float, Duration(low="24h", high="365d")] = Field(
        description="Outcomes under their keys; a floor."
    )
    max_size: MaxSize = Field(description="Upper bounds of what is kept.")
    disk_free: DiskFree = Field(description="What happens when the disk fills up.")


RetentionPolicy = Policy[RetentionShape]

Disk = Literal["ok", "warn", "stop"]


def keep_s(policy: RetentionPolicy, what: str) -> float | None:
    """Seconds that `sessions`, `artifacts`, `checkpoints`, `revisions` or `idempotency` are kept; None = for ever."""
    value: float | None = getattr(policy.shape, what)
    return value


def disk(policy: RetentionPolicy, free: float) -> tuple[Disk, RuleRef]:
    """What a free part of the disk (0..1) means."""
    bounds = policy.shape.disk_free
    if free < bounds.stop:
        return "stop", policy.ref("disk_free", "stop")
    return ("warn" if free < bounds.warn else "ok"), policy.ref("disk_free", "warn")


def relations(policy: RetentionPolicy) -> Iterator[Problem]:
    """Stop < warn."""
    bounds = policy.shape.disk_free
    if bounds.stop >= bounds.warn:
        stop, warn = policy.written("disk_free", "stop"), policy.written("disk_free", "warn")
        place = policy.blame(("disk_free", "stop"), ("disk_free", "warn"))
        yield Problem.at(place, f"disk_free.stop {stop} is not below warn {warn}", "write stop < warn")
