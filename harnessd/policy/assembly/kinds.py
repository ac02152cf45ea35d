"""Kinds: the register of policy kinds: the shape of each, who it is for, what must hold inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harnessd.policy import (
    assign,
    breaker,
    budget,
    chaos,
    compaction,
    escalation,
    fallback,
    limits,
    loop,
    notify,
    retention,
    retry,
    tools,
)
from harnessd.policy.language.shape import Shape
from harnessd.policy.language.source import Problem


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. A daemon kind has one document for all; a task kind may have several, chosen for each task."""

    name: str
    shape: type[Shape]
    relations: Callable[[Any], Iterator[Problem]]
    daemon: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        Kind("assign", assign.AssignShape, assign.relations, daemon=True),
        Kind("retry", retry.RetryShape, retry.relations),
        Kind("fallback", fallback.FallbackShape, fallback.relations),
        Kind("breaker", breaker.BreakerShape, breaker.relations, daemon=True),
        Kind("limits", limits.LimitsShape, limits.relations, daemon=True),
        Kind("budget", budget.BudgetShape, budget.relations),
        Kind("loop", loop.LoopShape, loop.relations),
        Kind("tools", tools.ToolsShape, tools.relations),
        Kind("compaction", compaction.CompactionShape, compaction.relations),
        Kind("escalation", escalation.EscalationShape, escalation.relations),
        Kind("notify", notify.NotifyShape, notify.relations, daemon=True),
        Kind("retention", retention.RetentionShape, retention.relations, daemon=True),
        Kind("chaos", chaos.ChaosShape, chaos.relations, daemon=True),
    )
}
ALL_KINDS = tuple(KINDS)
DAEMON_KINDS = tuple(kind.name for kind in KINDS.values() if kind.daemon)
TASK_KINDS = tuple(kind.name for kind in KINDS.values() if not kind.daemon)
