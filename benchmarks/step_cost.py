"""Where the CPU time of one durable step goes, part by part: `.venv-bench/bin/python -m benchmarks.step_cost`.

Each part is run by itself, many times, on the same node of about 1 KiB; what the whole step costs at 256 sessions comes
from `steps`. What no part explains is asyncio, the hand-over between two threads, and the commit that 256 steps share.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.our_store import OWNER, TTL_S, draft
from benchmarks.steps import PAYLOAD, compare, scratch
from harnessd.domain.record import AppendNode
from harnessd.domain.session import Node, NodeKind
from harnessd.domain.task import Lease
from harnessd.domain.transfer.chain import chain_hash, digest
from harnessd.stores import open_store
from harnessd.stores.batch import execute
from harnessd.stores.database import Statement, queries
from harnessd.stores.records import unit_of
from harnessd.stores.rows import encode

SESSIONS, DEPTH = 256, 20
SAID = {"blocks": [{"type": "text", "text": PAYLOAD.decode()}]}


def cpu_us(work: Callable[[], object], times: int = 5000) -> float:
    """CPU microseconds of one call, the best of five runs: what disturbs can only add."""
    best = float("inf")
    for _ in range(5):
        began = time.thread_time()
        for _ in range(times):
            work()
        best = min(best, (time.thread_time() - began) / times)
    return best * 1e6


async def leased(folder: Path) -> Sequence[Lease]:
    """A store with a task for each session, all of them leased."""
    store = open_store(folder / "ours.db")
    await store.open(OWNER)
    now = time.time()
    await asyncio.gather(*(store.submit(draft(number), now) for number in range(SESSIONS)))
    claimed = await store.claim(OWNER, SESSIONS, now, TTL_S)
    await store.close()
    return [task.lease for task in claimed if task.lease]


def node(number: int) -> Node:
    """The node of one step."""
    return Node(f"n{number}", f"n{number - 1}" if number > 1 else None, NodeKind.ASSISTANT, SAID, 1.0)


def statements(folder: Path, leases: Sequence[Lease]) -> dict[str, float]:
    """CPU microseconds of each statement of a step, in one transaction as in a batch."""
    units = [unit_of(lease, (AppendNode(node(step)),), 1.0, 0) for step in range(1, DEPTH + 1) for lease in leases]
    spent: dict[str, float] = {}
    with closing(sqlite3.connect(folder / "ours.db", isolation_level=None, cached_statements=256)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.create_function("chain", 2, chain_hash, deterministic=True)
        cursor = connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        for unit in units:
            for statement in unit:
                spent[statement.name] = spent.get(statement.name, 0.0) + timed(cursor, statement)
        cursor.execute("ROLLBACK")
    return {name: seconds / len(units) * 1e6 for name, seconds in spent.items()}


def timed(cursor: sqlite3.Cursor, statement: Statement) -> float:
    """CPU seconds of one statement."""
    began = time.thread_time()
    execute(cursor, queries()[statement.name], statement)
    return time.thread_time() - began


def parts() -> Iterator[tuple[str, float]]:
    """Name and CPU microseconds of each part."""
    lease = Lease("t1", OWNER, 1, 1.0)
    text = encode(SAID)
    encoding = cpu_us(lambda: encode(SAID))
    hashing = cpu_us(lambda: digest("n2", "n1", "assistant", 1.0, text))
    building = cpu_us(lambda: unit_of(lease, (AppendNode(node(2)),), 1.0, 0))
    yield "JSON text of the node", encoding
    yield "SHA-256 of its row", hashing
    yield "the rest of the unit: node, parameters, statements", max(0.0, building - encoding - hashing)
    with scratch() as folder:
        leases = asyncio.run(leased(folder))
        for name, spent in statements(folder, leases).items():
            yield f"SQLite: {name}", spent
    yield "of that, the chain's SHA-256 called back by SQLite", cpu_us(lambda: chain_hash(bytes(32), bytes(32)))


def main() -> int:
    """Print the table."""
    whole = compare(SESSIONS, ("ours", "raw"))
    print(f"one durable step at {SESSIONS} sessions: CPU in microseconds, and its share\n")
    named = 0.0
    for name, spent in parts():
        print(f"{name:<52} {spent:6.1f}  {spent / whole['ours'].cpu_us:5.0%}")
        named += 0.0 if name.startswith("of that") else spent
    rest = max(0.0, whole["ours"].cpu_us - named)
    print(f"{'asyncio, two threads, the shared commit':<52} {rest:6.1f}  {rest / whole['ours'].cpu_us:5.0%}")
    print(f"{'the whole step':<52} {whole['ours'].cpu_us:6.1f}   100%")
    print(f"{'raw SQLite group commit, no index, nothing checked':<52} {whole['raw'].cpu_us:6.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
