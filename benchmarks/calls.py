"""Model calls over HTTP: CPU of 100 in flight beside one shared httpx client, and what 1000 held streams cost."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import httpx

from benchmarks.gate import Gate
from benchmarks.measuring import Rate, cpu_and_clock, interleaved, resident_mib
from harnessd.domain.ports import CallClocks
from harnessd.net import CallTimer, Clients, Outgoing

IN_FLIGHT = 100
CALLS = 1000
STREAMS = 1000
HEADERS = {"content-type": "application/json"}
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 500}]}).encode()


@contextmanager
def service() -> Iterator[str]:
    """The echo service in a process of its own, so that its CPU is not counted."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.echo_service"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        yield f"http://127.0.0.1:{child.stdout.readline().strip()}"
    finally:
        child.kill()
        child.wait()


async def rate(call: Callable[[], Awaitable[None]]) -> Rate:
    """Calls a second and CPU a call, with 100 of them in flight."""
    left = CALLS

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    cpu, clock = cpu_and_clock()
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    cpu_after, clock_after = cpu_and_clock()
    return Rate(per_s=CALLS / (clock_after - clock), cpu_us=(cpu_after - cpu) / CALLS * 1e6)


async def compare(url: str) -> dict[str, Rate]:
    """Our kept clients and one shared httpx client, taking turns."""
    clients = Clients()
    shared = httpx.AsyncClient(limits=httpx.Limits(max_connections=None, max_keepalive_connections=None))

    async def ours() -> None:
        asked = Outgoing("POST", f"{url}/call", HEADERS, BODY)
        async with CallTimer(CallClocks()) as timer, clients.open(asked, timer) as answer:
            json.loads(b"".join([piece async for piece in answer.chunks()]))

    async def control() -> None:
        json.loads((await shared.post(f"{url}/call", headers=HEADERS, content=BODY)).content)

    got = await interleaved({"ours": lambda: rate(ours), "httpx": lambda: rate(control)})
    await clients.aclose()
    await shared.aclose()
    return got


class Held:
    """Streams that are open and wait, by our clients or by one shared httpx client."""

    def __init__(self, name: str, url: str) -> None:
        """Nothing is opened yet."""
        self._url = f"{url}/stream"
        self._one = {"ours": self._ours, "httpx": self._control}[name]
        self._clients = Clients(pools_max=STREAMS)
        self._shared = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=httpx.Timeout(60))
        self._streams: list[asyncio.Task[None]] = []
        self._opened = 0

    async def _ours(self) -> None:
        async with (
            CallTimer(CallClocks()) as timer,
            self._clients.open(Outgoing("GET", self._url, {}), timer) as answer,
        ):
            self._opened += 1
            async for _ in answer.chunks():
                pass

    async def _control(self) -> None:
        async with self._shared.stream("GET", self._url) as answer:
            self._opened += 1
            async for _ in answer.aiter_raw():
                pass

    async def open(self, count: int) -> None:
        """Open this many more, a few at a time, and wait until all of them have their headers."""
        ends = time.monotonic() + 60
        for _ in range(count):
            self._streams.append(asyncio.create_task(self._one()))
            while self._opened < len(self._streams) - 50 and time.monotonic() < ends:
                await asyncio.sleep(0.005)
        while self._opened < len(self._streams) and time.monotonic() < ends:
            await asyncio.sleep(0.005)
        if self._opened < len(self._streams):
            raise RuntimeError(f"only {self._opened} of {len(self._streams)} streams were opened")

    async def close(self) -> None:
        """End all streams."""
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        await self._clients.aclose()
        await self._shared.aclose()


async def held(name: str, url: str) -> float:
    """KiB that each of 1000 open streams costs this process, with an event a second on each."""
    streams = Held(name, url)
    await streams.open(1)
    gc.collect()
    before = resident_mib(os.getpid())
    await streams.open(STREAMS)
    await asyncio.sleep(3)
    gc.collect()
    cost = (resident_mib(os.getpid()) - before) * 1024 / STREAMS
    await streams.close()
    return cost


def held_by(name: str, url: str) -> float:
    """`held` in a process of its own: memory that one candidate gave back must not serve the next."""
    command = [sys.executable, "-m", "benchmarks.calls", name, url]
    done = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return float(done.stdout)


def gates() -> Iterator[Gate]:
    """The gates on outgoing calls."""
    with service() as url:
        got = asyncio.run(compare(url))
        yield Gate(
            f"model calls, {IN_FLIGHT} in flight: CPU a call",
            got["ours"].cpu_us, got["httpx"].cpu_us, 0.7, "at most", "us", "us one httpx client",
        )  # fmt: skip
    # A service each: the one that has just lost a thousand clients is still busy with that.
    with service() as url:
        ours = held_by("ours", url)
    with service() as url:
        control = held_by("httpx", url)
    yield Gate(f"{STREAMS} held streams: each", ours, control, 2.0, "at most", "KiB", "KiB bare httpx")


if __name__ == "__main__":
    print(asyncio.run(held(*sys.argv[1:3])))
