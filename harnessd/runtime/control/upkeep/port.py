"""What the control API needs of the daemon's upkeep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from harnessd.domain.ports import Refused


class Upkeep(Protocol):
    """Backups, collecting, and what the daemon finds when it looks at itself."""

    async def back_up(self, path: str, by: str) -> Mapping[str, Any] | Refused:
        """A whole copy at `path`: `{file, bytes, at, took_s}`."""

    async def collect(self, *, only_plan: bool) -> Mapping[str, Any]:
        """What goes, or would go: `tasks`, `checkpoints`, `artefacts`, `revisions`, `events`, `alerts`, ..."""

    async def examine(self) -> Sequence[Mapping[str, Any]]:
        """What only the daemon can see of itself: `{area, name, state, says, remedy}`."""
