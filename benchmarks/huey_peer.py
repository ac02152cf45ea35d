"""Peer: huey on SQLite with its sync on and eight worker threads, in a process of its own; prints figures as JSON."""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from huey import SqliteHuey

WORKERS = 8


def started(huey: Any) -> Any:
    """Start huey's consumer the way its own program does, without its signal handlers."""
    consumer = huey.create_consumer(workers=WORKERS, worker_type="thread")
    consumer._set_signal_handlers = lambda: None
    consumer.start()
    return consumer


def throughput(huey: Any, tasks: int) -> dict[str, float]:
    """Enqueue, claim and complete no-op tasks as fast as it can."""
    left = tasks
    lock, done = threading.Lock(), threading.Event()

    def nothing() -> None:
        nonlocal left
        with lock:
            left -= 1
            if left == 0:
                done.set()

    enqueue = huey.task()(nothing)
    cpu, clock = time.process_time(), time.perf_counter()
    consumer = started(huey)
    for _ in range(tasks):
        enqueue()
    done.wait()
    consumer.stop(graceful=True)
    spent = time.perf_counter() - clock
    return {"per_s": tasks / spent, "cpu_us": (time.process_time() - cpu) / tasks * 1e6}


def latency(huey: Any, samples: int, gap_s: float) -> dict[str, list[float]]:
    """Milliseconds from before the enqueue to the task's first line, each after a silence."""
    waits: list[float] = []
    ran = threading.Event()

    def tell(asked_at: float) -> None:
        waits.append((time.monotonic() - asked_at) * 1e3)
        ran.set()

    enqueue = huey.task()(tell)
    consumer = started(huey)
    for _ in range(samples):
        time.sleep(gap_s)
        ran.clear()
        enqueue(time.monotonic())
        ran.wait()
    consumer.stop(graceful=True)
    return {"waits_ms": waits}


def main() -> None:
    """Measure one thing and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["throughput", "latency", "idle"])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--gap", type=float, default=12.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        huey = SqliteHuey(filename=f"{folder}/huey.db", fsync=True)
        if asked.what == "throughput":
            print(json.dumps(throughput(huey, asked.tasks)))
        elif asked.what == "latency":
            print(json.dumps(latency(huey, asked.samples, asked.gap)))
        else:
            started(huey)
            print("ready", flush=True)
            threading.Event().wait()


if __name__ == "__main__":
    main()
