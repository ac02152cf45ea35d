"""Gateway: all model traffic goes through here; one call in, one reply or Failure out, its cost known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import monotonic

from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ModelReply, ModelRequest, TextBlock, ToolUseBlock, Usage
from harnessd.domain.ports import CallClocks, ModelProvider, Progress
from harnessd.runtime.crashpoints import Crashpoint, nowhere
from harnessd.runtime.observing.calls import UNSEEN, Calls
from harnessd.runtime.traffic.caller import NOBODY, Caller
from harnessd.runtime.traffic.health import Health
from harnessd.runtime.traffic.hedge import IN_LINE, SENT, hedged
from harnessd.runtime.traffic.passage import Pass, Traffic
from harnessd.runtime.traffic.size import estimated_tokens


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
    clocks: CallClocks = field(default_factory=CallClocks)  # where no traffic control says otherwise


class Gateway:
    """The one way to a model. Attempts only: whether another one follows is decided in the engine."""

    def __init__(
        self,
        services: Mapping[str, Service],
        crashpoint: Crashpoint = nowhere,
        traffic: Traffic | None = None,
        calls: Calls = UNSEEN,
    ) -> None:
        """Keep the services by alias. Without `traffic` nothing is limited and nothing breaks (tests, benchmarks)."""
        self._services = dict(services)
        self._crashpoint = crashpoint
        self._traffic = traffic
        self._calls = calls

    @property
    def aliases(self) -> tuple[str, ...]:
        """The models that can be called."""
        return tuple(self._services)

    async def call(self, request: ModelRequest, progress: Progress, caller: Caller = NOBODY) -> ModelReply | Failure:
        """Perform one attempt, once limits and breaker let it through (R3.5, R3.15); two where policy hedges."""
        after_s = caller.policies.retry.shape.model.hedge_after if caller.policies is not None else None
        if after_s is None or request.tools:
            return await self._once(request, progress, caller)
        return await hedged(lambda seen: self._once(request, seen, caller), after_s, progress)

    async def _once(self, request: ModelRequest, progress: Progress, caller: Caller) -> ModelReply | Failure:
        service, traffic = self._services[request.model], self._traffic
        if traffic is None:
            return await self._attempt(service, request, service.clocks, progress, caller)
        name = f"model/{request.model}"
        # Walking through a whole history is not for nothing.
        counts = service.prices.input or service.prices.output or traffic.counts_tokens
        tokens = estimated_tokens(request) if counts else 0
        most = Usage(input_tokens=tokens, output_tokens=request.max_tokens)
        progress(IN_LINE)
        passed = await traffic.enter(name, caller, tokens=tokens, cost_usd=service.prices.cost_usd(most))
        if isinstance(passed, Failure):
            return passed
        progress(SENT)
        answer: ModelReply | Failure | None = None
        first = _FirstEvent(progress)
        try:
            answer = await self._attempt(service, request, traffic.clocks(name), first, caller)
        finally:
            if answer is None:
                await traffic.cancelled(passed)
        self._measure(traffic, passed, answer, first)
        usage = answer.usage or Usage()
        failure = answer if isinstance(answer, Failure) else None
        await traffic.left(passed, failure, usage.total, service.prices.cost_usd(usage))
        return answer

    def silence_s(self, alias: str) -> float:
        """How long a call that was sent may show nothing; its own clocks end it then (net/clocks.py)."""
        service, traffic = self._services[alias], self._traffic
        clocks = service.clocks if traffic is None else traffic.clocks(f"model/{alias}")
        return min(clocks.call_s, max(clocks.connect_s + clocks.first_event_s, clocks.idle_s))

    def health(self, alias: str) -> Health:
        """What is known of a model now (R3.16)."""
        return self._traffic.health(alias) if self._traffic is not None else Health()

    async def check(self, request: ModelRequest) -> ModelReply | Failure:
        """One call past limits and an open breaker, for a person who asks whether a model answers."""
        service = self._services[request.model]
        return await self._attempt(service, request, service.clocks, lambda _: None, NOBODY)

    async def _attempt(
        self, service: Service, request: ModelRequest, clocks: CallClocks, progress: Progress, caller: Caller
    ) -> ModelReply | Failure:
        with self._calls.model(request, caller) as call:
            return call.ended(await self._exchange(service, request, clocks, call.watched(progress), caller))

    async def _exchange(
        self, service: Service, request: ModelRequest, clocks: CallClocks, progress: Progress, caller: Caller
    ) -> ModelReply | Failure:
        self._crashpoint("J4")
        chaos = self._traffic.chaos if self._traffic is not None else None

        async def perform() -> ModelReply | Failure:
            return await service.provider.call(request, clocks, self._watched(progress))

        if chaos is None:
            answer = await perform()
        else:
            answer = await chaos.model(f"model/{request.model}", caller, clocks, perform)
        if isinstance(answer, Failure):
            return answer
        self._crashpoint("J7")
        return _usable(replace(answer, cost_usd=service.prices.cost_usd(answer.usage)), request.model)

    def _measure(self, traffic: Traffic, passed: Pass, answer: ModelReply | Failure, first: _FirstEvent) -> None:
        """How fast the model answers; one that ran into a clock before its first event counts with what it took."""
        now = monotonic()
        slow = isinstance(answer, Failure) and answer.transport is not None and "timeout" in answer.transport
        if first.at is not None or slow:
            took_s = (first.at if first.at is not None else now) - first.sent
            traffic.first_events.add(passed.name, passed.started, took_s)

    async def aclose(self) -> None:
        """Give back all connections."""
        for service in self._services.values():
            await service.provider.aclose()

    def _watched(self, progress: Progress) -> Progress:
        def seen(word: str) -> None:
            self._crashpoint("J6")
            progress(word)

        return seen


class _FirstEvent:
    """Progress that remembers when the first useful event came (monotonic)."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.sent = monotonic()
        self.at: float | None = None

    def __call__(self, word: str) -> None:
        if self.at is None:
            self.at = monotonic()
        self._progress(word)


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
