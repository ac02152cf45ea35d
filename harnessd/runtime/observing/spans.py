"""Spans: what a trace is made of, as a port; without an exporter nothing is made at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Value = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Value]


class Span(Protocol):
    """A piece of work that has a beginning and an end. No method waits or raises."""

    def set(self, attributes: Attributes) -> None:
        """More facts."""

    def happened(self, name: str, attributes: Attributes) -> None:
        """Something happened inside."""

    def end(self, error: str = "", words: str = "") -> None:
        """It is over; `error` is its class, where it failed."""


class Tracer(Protocol):
    """Makes spans and gives them to whoever exports them."""

    content: bool  # whether prompts, answers, arguments and results may be exported

    def attempt(self, name: str, trace: str, attributes: Attributes) -> Span:
        """The root of a trace; `trace` is its id, 32 hexadecimal digits."""

    def call(self, parent: Span, name: str, attributes: Attributes, *, outwards: bool) -> Span:
        """A piece of a larger one; `outwards`: somebody else does it."""

    def counts(self) -> Mapping[str, int]:
        """Spans `exported`, `dropped` (the queue was full), `failed` (nobody took them), `waiting`."""

    def close(self, timeout_s: float) -> None:
        """Export what waits, but no longer than this."""


class NoSpan(Span):
    """A span that nobody sees."""

    def set(self, attributes: Attributes) -> None:
        """See `Span`."""

    def happened(self, name: str, attributes: Attributes) -> None:
        """See `Span`."""

    def end(self, error: str = "", words: str = "") -> None:
        """See `Span`."""


NO_SPAN = NoSpan()


class NoTracer(Tracer):
    """Where no traces are wanted."""

    content = False

    def attempt(self, name: str, trace: str, attributes: Attributes) -> Span:
        """See `Tracer`."""
        del name, trace, attributes
        return NO_SPAN

    def call(self, parent: Span, name: str, attributes: Attributes, *, outwards: bool) -> Span:
        """See `Tracer`."""
        del parent, name, attributes, outwards
        return NO_SPAN

    def counts(self) -> Mapping[str, int]:
        """See `Tracer`."""
        return {}

    def close(self, timeout_s: float) -> None:
        """See `Tracer`."""
