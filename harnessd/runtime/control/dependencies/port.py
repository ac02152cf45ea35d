"""What the control API needs of the daemon's models, tools and breakers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from harnessd.domain.ports import Refused


class Dependencies(Protocol):
    """What the daemon knows of the world that it depends on."""

    def breakers(self) -> Sequence[Mapping[str, Any]]:
        """All breakers: `{name, state, since, why, next, ...}`."""

    async def trip(self, name: str, for_s: float, by: str, note: str) -> Mapping[str, Any] | Refused:
        """Open a breaker by hand."""

    async def reset(self, name: str, by: str, note: str) -> Mapping[str, Any] | Refused:
        """Close a breaker by hand."""

    def models(self) -> Sequence[Mapping[str, Any]]:
        """All models with what is measured of them."""

    async def check_model(self, alias: str) -> Mapping[str, Any] | Refused:
        """One cheap real call; what is parked on the model is woken where it answers."""

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """All tools."""

    async def check_tool(self, name: str) -> Mapping[str, Any] | Refused:
        """Whether a tool can be called now."""
