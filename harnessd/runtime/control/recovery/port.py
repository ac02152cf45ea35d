"""What the control API needs of the daemon's rollbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from harnessd.domain.ports import Refused
from harnessd.domain.task import Task
from harnessd.runtime.rollbacks.targets import Wish


class Recovery(Protocol):
    """Rollbacks as a person may ask for them."""

    async def wanted(
        self, task: Task, wish: Wish, by: str, *, dry: bool
    ) -> tuple[Mapping[str, Any], Refused | None] | Refused:
        """The story of a rollback, and what became of it; with the reason where it was, or would be, refused."""

    async def differ(self, task: Task, old: str, new: str) -> Mapping[str, Any] | Refused:
        """What differs in the workspace between two nodes; an empty `new` is the workspace now."""

    async def checkpoints(self, task: Task) -> list[dict[str, Any]]:
        """A task's checkpoints, in order, with the node each is tied to."""
