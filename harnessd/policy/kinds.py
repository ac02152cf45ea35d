"""Kinds: the register of policy kinds: the shape of each, who it is for, what must hold inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harnessd.policy import budget, retry, tools
from harnessd.policy.shape import Shape
from harnessd.policy.source import Problem


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. A daemon kind has one document for all; a task kind may have several, chosen for each task."""

    name: str
    shape: type[Shape]
    relations: Callable[[Any], Iterator[Problem]]
    daemon: bool = False


ALL_KINDS = (
    "assign",
    "retry",
    "fallback",
    "breaker",
    "limits",
    "budget",
    "loop",
    "tools",
    "compaction",
    "escalation",
    "notify",
    "retention",
    "chaos",
)
DAEMON_KINDS = ("assign", "limits", "breaker", "notify", "retention", "chaos")

KINDS = {
    kind.name: kind
    for kind in (
        Kind("retry", retry.RetryShape, retry.relations),
        Kind("budget", budget.BudgetShape, budget.relations),
        Kind("tools", tools.ToolsShape, tools.relations),
    )
}
TASK_KINDS = tuple(name for name in ALL_KINDS if name not in DAEMON_KINDS)
