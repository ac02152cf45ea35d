"""Tasks: submit, claim and complete of tasks that do nothing, beside huey; and how soon one starts after a silence."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator

from benchmarks.gate import Gate
from benchmarks.measuring import Rate, cpu_and_clock, interleaved, percentile
from benchmarks.our_store import OurQueue
from benchmarks.steps import scratch

TASKS = 4000
WORKERS = 32
SAMPLES = 5
SILENCE_S = 12.0


async def ours() -> Rate:
    """Submit everything at once, and have 32 workers claim and complete it meanwhile."""
    with scratch() as folder:
        queue = OurQueue(folder)
        await queue.open()
        cpu, clock = cpu_and_clock()
        submitted = asyncio.gather(*(queue.submit(number) for number in range(TASKS)))
        await queue.work_off(TASKS, WORKERS)
        await submitted
        cpu_after, clock_after = cpu_and_clock()
        await queue.close()
    return Rate(per_s=TASKS / (clock_after - clock), cpu_us=(cpu_after - cpu) / TASKS * 1e6)


async def peer(*arguments: str) -> dict[str, object]:
    """One measurement of huey, in its own process."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.huey_peer", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, _ = await child.communicate()
    if child.returncode:
        raise RuntimeError(f"huey's process ended with {child.returncode}")
    got: dict[str, object] = json.loads(printed)
    return got


async def huey() -> Rate:
    """What huey does with the same."""
    got = await peer("throughput")
    return Rate(per_s=float(str(got["per_s"])), cpu_us=float(str(got["cpu_us"])))


async def our_waits() -> list[float]:
    """Milliseconds from before the submit until a worker has the task, each after a silence."""
    waits = []
    with scratch() as folder:
        queue = OurQueue(folder)
        await queue.open()
        for number in range(SAMPLES):
            worker = asyncio.create_task(queue.work_off(1, 1))
            await asyncio.sleep(SILENCE_S)
            began = time.perf_counter()
            await queue.submit(number)
            waits.append((await worker - began) * 1e3)
        await queue.close()
    return waits


async def waits() -> tuple[list[float], list[float]]:
    """Both at the same time: most of it is silence."""
    mine, theirs = await asyncio.gather(our_waits(), peer("latency", f"--samples={SAMPLES}", f"--gap={SILENCE_S}"))
    peers = theirs["waits_ms"]
    assert isinstance(peers, list)
    return mine, peers


def gates() -> Iterator[Gate]:
    """All gates on the queue."""
    got = asyncio.run(interleaved({"ours": ours, "huey": huey}))
    yield Gate("no-op tasks", got["ours"].per_s, got["huey"].per_s, 3.0, "at least", "/s", "/s huey")
    yield Gate("no-op tasks: CPU a task", got["ours"].cpu_us, got["huey"].cpu_us, 1 / 3, "at most", "us", "us huey")
    mine, theirs = asyncio.run(waits())
    yield Gate(
        f"submit to start p50 after {SILENCE_S:.0f} s idle",
        percentile(mine, 0.5), percentile(theirs, 0.5), 1 / 20, "at most", "ms", "ms huey",
    )  # fmt: skip
