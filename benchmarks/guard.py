"""The guard path: what the gateway adds to a model call that succeeds, beside what tenacity alone adds."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator

import httpx
from tenacity import AsyncRetrying, stop_after_attempt

from benchmarks.calls import BODY, HEADERS, service
from benchmarks.gate import Gate
from harnessd.domain.messages import FinishReason, Message, ModelReply, ModelRequest, TextBlock
from harnessd.domain.ports import CallClocks, Progress
from harnessd.runtime.gateway import Gateway, Prices, Service

CALLS = 4000
HTTP_CALLS = 400
ROUNDS = 9
REQUEST = ModelRequest("primary", "", (), (), 100)
REPLY = ModelReply(Message("assistant", (TextBlock("done"),)), FinishReason.STOP)


class AtOnce:
    """A model service that answers at once: what remains is the way to it."""

    async def call(self, request: ModelRequest, clocks: CallClocks, progress: Progress) -> ModelReply:
        """Answer."""
        del request, clocks, progress
        return REPLY

    async def aclose(self) -> None:
        """Nothing is held."""


def unheard(word: str) -> None:
    """Progress that nobody watches."""


async def cpu_us(call: Callable[[], Awaitable[object]], calls: int) -> float:
    """CPU microseconds of one call."""
    began = time.process_time()
    for _ in range(calls):
        await call()
    return (time.process_time() - began) / calls * 1e6


async def measure(url: str) -> tuple[float, float, float]:
    """Microseconds of CPU: the gateway alone, tenacity alone, a whole loopback call by httpx."""
    provider, clocks = AtOnce(), CallClocks()
    gateway = Gateway({"primary": Service(provider, Prices())})
    shared = httpx.AsyncClient()

    async def bare() -> object:
        return await provider.call(REQUEST, clocks, unheard)

    async def guarded() -> object:
        return await gateway.call(REQUEST, unheard)

    async def by_tenacity() -> object:
        async for attempt in AsyncRetrying(stop=stop_after_attempt(3)):
            with attempt:
                return await provider.call(REQUEST, clocks, unheard)
        return None

    async def by_httpx() -> object:
        return (await shared.post(f"{url}/call", headers=HEADERS, content=BODY)).content

    rounds = []
    for _ in range(ROUNDS):
        floor = await cpu_us(bare, CALLS)
        ours, peer = await cpu_us(guarded, CALLS), await cpu_us(by_tenacity, CALLS)
        rounds.append((ours - floor, peer - floor, await cpu_us(by_httpx, HTTP_CALLS)))
    await shared.aclose()
    ours, peer, whole = (statistics.median(values) for values in zip(*rounds, strict=True))
    return ours, peer, whole


def gates() -> Iterator[Gate]:
    """The gates on the guard path."""
    with service() as url:
        ours, peer, whole = asyncio.run(measure(url))
    yield Gate("guard path of a successful call: CPU", ours, peer, 0.5, "at most", "us", "us tenacity")
    yield Gate("guard path of a successful call: CPU", ours, whole, 0.02, "at most", "us", "us a loopback httpx call")
