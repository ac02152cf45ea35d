"""A blocked event loop is noticed while it stands still, with its stack; systemd's ping stops with it. F37."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from harnessd.runtime.observing.loop_watch import LoopWatch
from tests.running import plain_environment


def stand_still(seconds: float) -> None:
    time.sleep(seconds)


def test_a_block_is_told_while_it_lasts_once_and_with_its_stack() -> None:
    # F37
    told: list[tuple[float, float, str]] = []
    watch = LoopWatch(lambda seconds, stack: told.append((time.monotonic(), seconds, stack)), limit_s=0.3)
    ended: list[float] = []

    async def work() -> None:
        watch.start()
        await asyncio.sleep(0.01)
        stand_still(1.5)
        ended.append(time.monotonic())
        for _ in range(10):
            await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=watch.loop) as runner:
        runner.run(work())
    at, seconds, stack = told[0]
    assert at < ended[0]
    assert seconds >= 0.3
    assert "stand_still" in stack
    assert [one for one in told if "stand_still" in one[2]] == [told[0]]
    assert watch.blocks == len(told)
    assert watch.longest_s >= 1.5
    assert sum(watch.turns.counts) > 10


def test_an_idle_loop_is_not_blocked_and_wakes_nobody() -> None:
    told: list[float] = []
    watch = LoopWatch(lambda seconds, _: told.append(seconds), limit_s=2.0)

    async def idle() -> int:
        watch.start()
        await asyncio.sleep(0.01)
        before = sum(watch.turns.counts)
        await asyncio.sleep(2.5)
        return sum(watch.turns.counts) - before

    with asyncio.Runner(loop_factory=watch.loop) as runner:
        turns = runner.run(idle())
    assert told == []
    assert turns <= 3


BLOCKED = """
import asyncio, os, time
from harnessd.runtime.daemon import _watchdog
from harnessd.runtime.host.systemd import ServiceManager
from harnessd.runtime.observing.loop_watch import LoopWatch
from harnessd.runtime.observing.service import blocked
from harnessd.runtime import telemetry
from harnessd.runtime.redact import Redactor
telemetry.configure(Redactor())
watch = LoopWatch(blocked)
class Parts: manager = ServiceManager(os.environ)
async def main():
    watch.start()
    pings = asyncio.create_task(_watchdog(Parts))
    await asyncio.sleep(1)
    time.sleep(3)
    print("over", flush=True)
    pings.cancel()
with asyncio.Runner(loop_factory=watch.loop) as runner:
    runner.run(main())
"""


def test_systemds_ping_stops_with_the_loop(tmp_path: Path) -> None:
    # F37: the daemon's own ping beside a loop that stands still; the address is in the abstract namespace.
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(b"\0harnessd-test-" + tmp_path.name.encode()[-60:])
    notices.settimeout(30)
    environment = plain_environment() | {
        "NOTIFY_SOCKET": f"@harnessd-test-{tmp_path.name[-60:]}",
        "WATCHDOG_USEC": "200000",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    times: list[float] = []
    with process, notices:
        while process.poll() is None:
            notices.settimeout(0.2)
            try:
                assert notices.recv(100) == b"WATCHDOG=1"
            except TimeoutError:
                continue
            times.append(time.monotonic())
        assert process.stdout is not None
        assert process.stderr is not None
        out, log = process.stdout.read(), process.stderr.read()
    assert out == "over\n"
    assert len(times) >= 3
    gaps = [after - before for before, after in pairwise(times)]
    assert max([*gaps, time.monotonic() - times[-1]]) > 2.0
    assert log.count("event_loop_blocked") == 1
    assert "time.sleep(3)" in log or "in main" in log
