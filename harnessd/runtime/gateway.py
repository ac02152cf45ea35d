"""Gateway: all model traffic goes through here; one call in, one reply or Failure out, its cost known."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ModelReply, ModelRequest, TextBlock, ToolUseBlock, Usage
from harnessd.domain.ports import CallClocks, ModelProvider, Progress
from harnessd.runtime.crashpoints import Crashpoint, nowhere


@dataclass(frozen=True, slots=True)
class Prices:
    """USD per million tokens; None where nobody declared it."""

    input: float | None = 0.0
    output: float | None = 0.0
    cache_read: float | None = None
    cache_write: float | None = None

    def cost_usd(self, usage: Usage) -> float:
        """What a call cost. Cached tokens without a price of their own count as plain input, never as free."""
        plain = self.input or 0.0
        read = self.cache_read if self.cache_read is not None else plain
        write = self.cache_write if self.cache_write is not None else plain
        total = (
            usage.input_tokens * plain
            + usage.output_tokens * (self.output or 0.0)
            + usage.cache_read_tokens * read
            + usage.cache_write_tokens * write
        )
        return round(total / 1_000_000, 6)


@dataclass(frozen=True, slots=True)
class Service:
    """A model alias with everything that is needed to call it."""

    provider: ModelProvider
    prices: Prices
    clocks: CallClocks = field(default_factory=CallClocks)
    concurrency: int = 8


class Gateway:
    """The one way to a model. Attempts only: whether another one follows is decided in the engine."""

    def __init__(self, services: Mapping[str, Service], crashpoint: Crashpoint = nowhere) -> None:
        """Keep the services by alias; concurrency is per alias (R3.15)."""
        self._services = dict(services)
        self._places = {alias: asyncio.Semaphore(service.concurrency) for alias, service in services.items()}
        self._crashpoint = crashpoint

    async def call(self, request: ModelRequest, progress: Progress) -> ModelReply | Failure:
        """Perform one attempt."""
        service = self._services[request.model]
        async with self._places[request.model]:
            self._crashpoint("J4")
            answer = await service.provider.call(request, service.clocks, self._watched(progress))
        if isinstance(answer, Failure):
            return answer
        self._crashpoint("J7")
        return _usable(replace(answer, cost_usd=service.prices.cost_usd(answer.usage)), request.model)

    async def aclose(self) -> None:
        """Give back all connections."""
        for service in self._services.values():
            await service.provider.aclose()

    def _watched(self, progress: Progress) -> Progress:
        def seen(word: str) -> None:
            self._crashpoint("J6")
            progress(word)

        return seen


def _usable(reply: ModelReply, alias: str) -> ModelReply | Failure:
    """A reply without words and without calls is no answer, and stored it would poison every later request."""
    for block in reply.message.blocks:
        if isinstance(block, ToolUseBlock) or (isinstance(block, TextBlock) and block.text.strip()):
            return reply
    return Failure(
        source="model",
        dependency=f"model/{alias}",
        message="the answer holds neither words nor a tool call",
        ended="complete",
        finish=reply.finish.value,
        request_id=reply.request_id,
        hint=ErrorClass.MALFORMED_OUTPUT,
    )
