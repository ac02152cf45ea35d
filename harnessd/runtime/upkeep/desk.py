"""Desk: upkeep as people ask for it over the control API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harnessd.domain.ports import Refused
from harnessd.runtime.upkeep.backups import Backups
from harnessd.runtime.upkeep.examining import Examining
from harnessd.runtime.upkeep.keeping import Keeping, dry


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What the routes under /v1/upkeep call."""

    backups: Backups
    keeping: Keeping
    examining: Examining

    async def back_up(self, path: str, by: str) -> Mapping[str, Any] | Refused:
        """A whole copy at `path`."""
        return await self.backups.make(path, by)

    async def examine(self) -> Sequence[Mapping[str, Any]]:
        """What only the daemon can see of itself."""
        return await self.examining.look()

    async def collect(self, *, only_plan: bool) -> Mapping[str, Any]:
        """Let go what policy keeps no longer, or say what that would be."""
        if only_plan:
            return dry(await self.keeping.plan())
        return {**await self.keeping.collect(), "dry_run": False}
