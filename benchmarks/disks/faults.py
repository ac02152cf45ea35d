"""Faults: every operation on the disk fails once: EIO, ENOSPC, a short write; pairs; and for good (G4, F40).

    python benchmarks/disks/faults.py --pairs 20000

A library laid before libc's calls counts what the store asks of the disk and fails the n-th, for n = 1, 2, 3 ... until
a run is over before its turn comes. What must hold, each time: every answer is a yes that is kept, a no that is true,
or "unknown"; no answer is an error that nobody knows; the process ends in order; and the next start finds it all.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import errno
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.disks.children import in_a_child
from harnessd.domain.effect import EffectState
from harnessd.domain.failure import REFUSED_FOR_NOW, HarnessError, OutcomeUnknown
from harnessd.domain.ports import Submitted, TaskFilter
from harnessd.domain.record import AppendNode, ChangeTask, PlanEffect, Record, SettleEffect
from harnessd.domain.task import TaskState, Verb
from harnessd.stores import SqlStore, open_store
from tests.stores.scenes import NOW, draft, effect, lease_of, result, user

ROOT = Path(__file__).resolve().parents[2]
MEMORY = Path("/dev/shm")
SHORT = 0
KINDS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "short": SHORT}
GONE = {"gone": errno.EIO, "read-only": errno.EROFS}  # from the n-th operation on all fail, or all that write
RUN_S = 60  # the longest that a run may take, whatever fails
SHIM = "HARNESSD_SHIM"

Strike = tuple[int, str]


@dataclass(slots=True)
class Heard:
    """What one run answered."""

    kept: set[tuple[str, str]] = field(default_factory=set)  # (key, task)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    nodes: set[tuple[str, str]] = field(default_factory=set)
    completed: set[str] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)
    strange: list[str] = field(default_factory=list)
    operations: int = 0


def say(**words: Any) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


async def _asked(what: str, name: str, work: Awaitable[Any]) -> Any:
    """Await one request and say what its answer was."""
    try:
        answer = await work
    except HarnessError as error:
        say(what=what, name=name, error=type(error).__name__, unknown=isinstance(error, OutcomeUnknown))
        if not error.sentence:
            say(strange=f"{what} {name}: an error without a sentence")
        return None
    except Exception as error:  # noqa: BLE001 - this is what is looked for
        say(strange=f"{what} {name}: {error!r}")
        return None
    return answer


async def _submit(store: SqlStore, key: str) -> None:
    answer = await _asked("submit", key, store.submit(draft("x" * 3000, key=key), NOW))
    if isinstance(answer, Submitted):
        say(kept=[key, answer.task.id])


async def scenario(folder: Path, turns: int) -> None:
    """The standard scenario: a start, three tasks a turn, one of them worked on to its end, a copy, an orderly end."""
    store = open_store(folder / "harnessd.db", pragmas=("PRAGMA wal_autocheckpoint = 30",))
    try:
        await store.open("faulty")
    except HarnessError as error:
        say(what="open", name="", error=type(error).__name__, unknown=False)
        return
    try:
        for turn in range(turns):
            await asyncio.gather(*(_submit(store, f"k{turn}{n}") for n in range(3)))
            for task in await _asked("claim", "", store.claim("faulty", 1, NOW, 20)) or ():
                lease = lease_of(task)
                first: list[Record] = [AppendNode(user("n1", None)), PlanEffect(effect("e1"))]
                if await _asked("record", task.id, _true(store.record(lease, first, NOW))):
                    say(node=[task.id, "n1"])
                rest: list[Record] = [SettleEffect("e1", EffectState.DONE), AppendNode(result("n2", "n1", "c1"))]
                if await _asked("record", task.id, _true(store.record(lease, rest, NOW))):
                    say(node=[task.id, "n2"])
                end: list[Record] = [ChangeTask(Verb.COMPLETE, sentence="Done.")]
                if await _asked("record", task.id, _true(store.record(lease, end, NOW))):
                    say(completed=task.id)
            if turn == turns - 1:
                await _asked("backup", "", store.backup(str(folder / "copy.db")))
    finally:
        await store.close()


async def _true(work: Awaitable[Any]) -> bool:
    await work
    return True


def _run(folder: Path, strikes: Sequence[Strike], turns: int) -> Heard:
    """The scenario in a child whose disk fails; what it said."""

    def work() -> None:
        try:
            shim = ctypes.CDLL(os.environ[SHIM])
            (n, kind), (m, other) = [*strikes, (-1, "EIO")][:2]
            full = len(strikes) == 1 and kind not in ("EIO", "gone")  # such a disk fails no read
            errors = KINDS | GONE
            shim.shim_arm(str(folder).encode(), n, errors[kind], m, errors[other], full, kind in GONE)
            asyncio.run(scenario(folder, turns))
            say(operations=shim.shim_count())
        except BaseException as error:
            say(strange=f"the run ended with {error!r}")
            raise

    child, read = in_a_child(work, RUN_S)
    with os.fdopen(read, "rb") as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    heard = _heard(json.loads(line) for line in lines)
    if status:
        heard.strange.append(f"the run ended with status {status}")
    return heard


def _heard(lines: Any) -> Heard:
    heard = Heard()
    for line in lines:
        match line:
            case {"kept": [key, task]}:
                heard.kept.add((key, task))
            case {"node": [task, node]}:
                heard.nodes.add((task, node))
            case {"completed": task}:
                heard.completed.add(task)
            case {"strange": words}:
                heard.strange.append(words)
            case {"operations": count}:
                heard.operations = count
            case {"what": what, "name": name, "error": error, "unknown": unknown}:
                heard.errors[error] += 1
                if what == "submit":
                    (heard.unknown if unknown else heard.refused).add(name)
            case _:
                heard.strange.append(f"what is {line}?")
    return heard


async def _check(folder: Path, heard: Heard) -> list[str]:
    """Start once more without faults, and compare."""
    wrong = list(heard.strange)
    store = open_store(folder / "harnessd.db")
    try:
        await store.open("next")
    except HarnessError as error:
        return [*wrong, f"the next start is refused: {error}"]
    try:
        await store.release_all(NOW)
        tasks = {task.draft.key: task for task in await store.list(TaskFilter(limit=100))}
        there = {(str(key), task.id) for key, task in tasks.items()}
        wrong += [f"{key} was acknowledged and is gone" for key, task in heard.kept - there]
        wrong += [f"{key} was refused and is there" for key in heard.refused if key in tasks]
        for task in tasks.values():
            nodes = {(task.id, node.id) for node in await store.nodes(task.id)}
            wrong += [f"node {node} is gone" for node in heard.nodes if node[0] == task.id and node not in nodes]
            if (fault := await store.verify(task.id)) is not None:
                wrong.append(fault)
            if task.id in heard.completed and task.state is not TaskState.COMPLETED:
                wrong.append(f"{task.id} had ended and is {task.state}")
        for key in heard.unknown | heard.refused:  # whoever asks again with the same key gets one task, at once
            answers = [await store.submit(draft("x" * 3000, key=key), NOW) for _ in range(2)]
            if len({answer.task.id for answer in answers if isinstance(answer, Submitted)}) != 1:
                wrong.append(f"{key} asked for again: {answers}")
    except REFUSED_FOR_NOW as error:
        wrong.append(f"the next start works no more: {error}")
    finally:
        await store.close()
    return wrong


@dataclass(frozen=True, slots=True)
class Tried:
    """One run: what failed, how it was answered, what was wrong."""

    strikes: tuple[Strike, ...]
    struck: bool
    errors: Counter[str]
    wrong: tuple[str, ...]
    operations: int


def tried(strikes: tuple[Strike, ...], ready: Path | None = None) -> Tried:
    """One run with its check: on a fresh store, or a short run on a copy of one that is there."""
    with tempfile.TemporaryDirectory(prefix="harnessd-fault-", dir=MEMORY) as scratch:
        folder = Path(scratch) / "state"
        if ready is not None:
            shutil.copytree(ready, folder)
        heard = _run(folder, strikes, 3 if ready is None else 1)
        wrong = asyncio.run(_check(folder, heard))
    # A run that was cut short by an early strike counts fewer operations than one without.
    return Tried(strikes, heard.operations >= strikes[0][0], heard.errors, tuple(wrong), heard.operations)


def _armed() -> None:
    """Start this program again with the library before libc's. Raises SystemExit where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("A C compiler is wanted: apt-get install gcc libc6-dev")
    scratch = Path(tempfile.mkdtemp(prefix="harnessd-shim-"))
    shim = scratch / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, Path(__file__).with_name("shim.c")], check=True)
    environment = os.environ | {"LD_PRELOAD": str(shim), SHIM: str(shim)}
    try:
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode)
    finally:
        shutil.rmtree(scratch)


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--pairs", type=int, default=20_000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--jobs", type=int, default=2)
    words.add_argument("--brief", action="store_true", help="a store that is there already, and one turn")
    asked = words.parse_args()
    if SHIM not in os.environ:
        _armed()
    with tempfile.TemporaryDirectory(prefix="harnessd-ready-", dir=MEMORY) as scratch:
        ready = Path(scratch) / "state" if asked.brief else None
        if ready is not None:
            asyncio.run(_made(ready))
        return _all(ready, asked.pairs, asked.seed, asked.jobs)


async def _made(folder: Path) -> None:
    store = open_store(folder / "harnessd.db")
    await store.open("ready")
    await store.close()


def _all(ready: Path | None, count: int, seed: int, jobs: int) -> int:
    began, luck = time.monotonic(), random.Random(seed)
    counts = {kind: tried(((10**9, kind),), ready).operations for kind in KINDS}
    longest = counts["EIO"]
    rows: dict[str, list[tuple[Strike, ...]]]
    rows = {kind: [((n, kind),) for n in range(1, counts[kind] + 6)] for kind in KINDS}
    for kind, most in (("gone", longest), ("read-only", counts["short"])):
        rows[kind] = [((n, kind),) for n in range(1, most, 8 if ready else 1)]
    rows["pairs"] = [_pair(luck, longest) for _ in range(count)]
    failed = False
    print(f"operations in a run without faults: {longest}, of them writes: {counts['short']}")
    print("faults       runs  struck   wrong   answers")
    with multiprocessing.get_context("fork").Pool(jobs) as workers:
        for name, some in rows.items():
            failed |= _row(name, workers.imap_unordered(partial(tried, ready=ready), some, chunksize=4))
    print(f"{'FAILED' if failed else 'Every answer was true.'} ({time.monotonic() - began:.0f} s)")
    return int(failed)


def _pair(luck: random.Random, longest: int) -> tuple[Strike, ...]:
    """Two faults, mostly near each other: the second strikes what mends the first."""
    n = luck.randint(1, longest)
    m = n + luck.randint(1, 12) if luck.random() < 0.7 else luck.randint(1, longest)
    return ((n, luck.choice(tuple(KINDS))), (m, luck.choice(tuple(KINDS))))


def _row(name: str, results: Any) -> bool:
    runs = struck = wrong = 0
    answers: Counter[str] = Counter()
    told: list[str] = []
    for one in results:
        runs += 1
        struck += one.struck
        wrong += bool(one.wrong)
        answers.update(one.errors)
        if one.wrong and len(told) < 8:
            told.append(f"  {one.strikes}: {'; '.join(one.wrong)[:400]}")
    print(f"{name:<10} {runs:>6} {struck:>7} {wrong:>7}   {dict(answers.most_common())}")
    print("\n".join(told), end="\n" if told else "", flush=True)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
