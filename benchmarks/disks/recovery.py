"""Recovery: how long a daemon needs after kill -9 with 10,000 tasks and 1,000,000 events in its store (G6).

    python benchmarks/disks/recovery.py --tasks 10000 --events 1000000

The store is built in SQL from what a real one holds after a few tasks, so that every row has its true shape. A
twentieth of the tasks was running at the kill, another twentieth waits in the queue or for a person; the rest has
ended. As a control the start of a store with nothing in it is measured beside it, and CPU beside the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harnessd.domain.effect import EffectState
from harnessd.domain.record import AppendNode, AskPerson, ChangeTask, PlanEffect, Record, SaveCounters, SettleEffect
from harnessd.domain.task import Counters, Verb
from tests.running import Running, running, settings
from tests.simulated import running_simulator
from tests.stores.scenes import NOW, assistant, effect, opened, result, submitted, user
from tests.stores.scenes import running as held

SCRIPT: dict[str, Any] = {"m": {"turns": [{"delay": "300s", "say": "Done."}]}}
BLOCK = 500  # tasks of one statement


async def _templates(path: Path, nodes: int) -> dict[str, str]:
    """One real task of each state: state -> id. Each has about so many nodes and the events of its changes."""
    found = {}
    async with opened(path) as store:
        for state in ("completed", "waiting", "running"):
            task, lease = await held(store, agent="m")
            parent = None
            for n in range(0, nodes, 3):
                reply = assistant(f"n{n + 1}", f"n{n}", "y" * 200, (f"c{n}",))
                await store.record(lease, [AppendNode(user(f"n{n}", parent)), AppendNode(reply)], NOW)
                parent = f"n{n + 2}"
                await store.record(lease, [PlanEffect(effect(f"e{n}", node=f"n{n + 1}", call=f"c{n}"))], NOW)
                done: list[Record] = [
                    SettleEffect(f"e{n}", EffectState.DONE),
                    AppendNode(result(parent, f"n{n + 1}", f"c{n}")),
                ]
                await store.record(lease, [*done, SaveCounters(Counters(turns=n))], NOW)
            if state == "completed":
                await store.record(lease, [ChangeTask(Verb.COMPLETE, sentence="Done.")], NOW)
            elif state == "waiting":
                ask = AskPerson("a1", "question", "n0", None, "Which?", ("go-on",))
                await store.record(lease, [ask, ChangeTask(Verb.ASK)], NOW)
            found[state] = task.id
        found["queued"] = (await submitted(store, agent="m")).id
    return found


def build(path: Path, tasks: int, events: int) -> None:
    """Many copies of the templates' rows: `nodes` and `events` share one sequence, each row a place of its own."""
    nodes = max(3, events // tasks // 2)
    found = asyncio.run(_templates(path, nodes))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as store:
        store.execute("PRAGMA synchronous = OFF").fetchall()
        rows = "SELECT (SELECT count(*) FROM nodes WHERE task = ?1) + (SELECT count(*) FROM events WHERE task = ?1)"
        each = store.execute(rows, (found["completed"],)).fetchone()[0]
        filler = max(0, events // tasks - each)
        store.execute("BEGIN")
        for first in range(0, tasks, BLOCK):
            block = range(first, min(first + BLOCK, tasks))
            for number in block:
                share = number % 20
                state = (
                    "running" if share == 0 else ("waiting", "queued")[number // 20 % 2] if share == 1 else "completed"
                )
                _copy(store, found[state], f"t{number:06}")
                newest = store.execute(
                    "SELECT max(s) FROM (SELECT max(seq) s FROM nodes UNION ALL SELECT max(seq) FROM events)"
                )
                _fill(store, f"t{number:06}", newest.fetchone()[0], filler)
        store.execute("COMMIT")


def _copy(store: sqlite3.Connection, template: str, task: str) -> None:
    shift = store.execute("SELECT max(s) FROM (SELECT max(seq) s FROM nodes UNION ALL SELECT max(seq) FROM events)")
    ahead = shift.fetchone()[0]
    begin = store.execute(
        "SELECT min(s) FROM (SELECT min(seq) s FROM nodes WHERE task = ?1 UNION ALL"
        " SELECT min(seq) FROM events WHERE task = ?1)",
        (template,),
    ).fetchone()[0]
    for table in ("tasks", "sessions", "budgets", "nodes", "events", "effects", "approvals"):
        columns = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
        owner = "id" if table == "tasks" else "task"
        shared = table in ("nodes", "events")
        wanted = [one for one in columns if one != "seq" or shared]
        values = [
            "?2"
            if one == owner
            else "NULL"
            if one == "key" and table == "tasks"
            else f"seq - {begin} + {ahead} + 1"
            if one == "seq"
            else one
            for one in wanted
        ]
        store.execute(
            f"INSERT INTO {table} ({', '.join(wanted)}) SELECT {', '.join(values)} FROM {table} WHERE {owner} = ?1",
            (template, task),
        )


def _fill(store: sqlite3.Connection, task: str, newest: int, count: int) -> None:
    store.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?3)"
        " INSERT INTO events (seq, at, task, node, type, data, revision)"
        " SELECT ?2 + i, ?4, ?1, NULL, 'retried', '{}', 0 FROM n WHERE ?3 > 0",
        (task, newest, count, NOW),
    )


def measure(daemon: Running, times: int) -> tuple[float, float]:
    """Start, wait for a first answer about all tasks, kill -9; the best of these times, and of their CPU (seconds)."""
    took = []
    for _ in range(times):
        began = time.monotonic()
        client = daemon.start()
        counts = client.get("/v1/status")
        ready_s = time.monotonic() - began
        assert daemon.process is not None
        words = Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()
        took.append((ready_s, (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")))
        print(f"ready after {ready_s:.2f} s, CPU {took[-1][1]:.2f} s, tasks at work {counts['running']}", flush=True)
        daemon.kill()
    return min(one for one, _ in took), min(cpu for _, cpu in took)


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--tasks", type=int, default=10_000)
    words.add_argument("--events", type=int, default=1_000_000)
    words.add_argument("--times", type=int, default=3)
    asked = words.parse_args()
    with tempfile.TemporaryDirectory(prefix="harnessd-recovery-") as scratch, running_simulator(SCRIPT) as service:
        folder = Path(scratch)
        with running(folder) as daemon:
            daemon.configure(settings(folder, service.url, {"m": "anthropic"}))
            path = folder / "state" / "harnessd.db"
            empty = measure(daemon, asked.times)
            for file in path.parent.glob("harnessd.db*"):
                file.unlink()
            began = time.monotonic()
            build(path, asked.tasks, asked.events)
            with contextlib.closing(sqlite3.connect(path)) as store:
                counted = [
                    store.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                    for table in ("tasks", "nodes", "events")
                ]
            print(f"built in {time.monotonic() - began:.0f} s, {path.stat().st_size >> 20} MiB: {counted}")
            took = measure(daemon, asked.times)
    print(f"{'':<22}{'ready':>8}{'CPU':>8}")
    print(f"{'after kill -9':<22}{took[0]:>6.2f} s{took[1]:>6.2f} s")
    print(f"{'control: empty store':<22}{empty[0]:>6.2f} s{empty[1]:>6.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
