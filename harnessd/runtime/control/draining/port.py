"""What the control API needs of whoever lets the daemon become empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from harnessd.domain.ports import Refused


class Draining(Protocol):
    """A drain: begun, looked at, taken back. `node` is a daemon's name; empty: this one."""

    def state(self) -> Mapping[str, Any]:
        """`node`, `draining`, `empty`, `over`, `running`, `jobs`; `since`, `until`, `cut`, `cut_jobs` of a drain."""

    async def begin(self, node: str, timeout_s: float | None, by: str) -> Mapping[str, Any] | Refused:
        """Take no new work; after `timeout_s` (None: as harness.yaml says) cut what still runs."""

    async def cancel(self, node: str, by: str) -> Mapping[str, Any] | Refused:
        """Take work again."""
