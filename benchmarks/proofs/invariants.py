"""Invariants of a store whose daemon ended, in any way and at any moment; each problem names the one it breaks.

I1 ack, I2 prefix, I3 effect, I5 pair, I8 budget and I11 one writer must hold at every moment; I4 live and I9 leak once
the daemon had the time to heal. I1 and I3 against the world outside are classified in `history.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.proofs.history import History
from benchmarks.proofs.snapshot import Row, Snapshot

ENDED = ("completed", "stopped")
LEFT_BY_US = re.compile(r"\.part$|\.restoring$|^\.harnessd-")
MARKER = b"_HARNESSD_CALL="


def broken(history: History, store: Snapshot) -> list[str]:
    """What must hold at every moment, and does not."""
    return [
        *_acks(history, store),
        *_prefix(store),
        *_seen(history, store),
        *_effects(store),
        *_pairs(store),
        *_budgets(history, store),
        *_one_writer(store),
    ]


def _acks(history: History, store: Snapshot) -> Iterator[str]:
    if store.sound != "ok":
        yield f"I1: the store is damaged: {store.sound}"
    if store.acked is not None and store.acked[1] > store.meta["commits"]:
        yield f"I1: commit {store.acked[1]} was acknowledged, and the store holds {store.meta['commits']}"
    if history.nodes and not store.nodes:
        yield "I1: nodes were shown, and the store holds none"


# --- I2: what is there is a prefix of what was done -------------------------------------------------------------------


def _prefix(store: Snapshot) -> Iterator[str]:
    numbers = store.sequence
    if numbers != list(range(1, len(numbers) + 1)):
        holes = sorted(set(range(1, (numbers or [0])[-1] + 1)) - set(numbers))
        yield f"I2: the sequence of nodes and events has holes {holes[:5]} or doubles"
    for task, session in store.sessions.items():
        yield from _tree(task, session, store.nodes.get(task, []))


def _tree(task: str, session: Row, nodes: Sequence[Row]) -> Iterator[str]:
    chain, there = bytes(32), set()
    for place, node in enumerate(nodes, 1):
        if node["parent"] is None and place > 1:
            yield f"I2: {task} has a second root, {node['id']}"
        if node["parent"] is not None and node["parent"] not in there:
            yield f"I2: {task} {node['id']} stands before its parent {node['parent']}"
        there.add(node["id"])
        row = f"{node['id']}\n{node['parent'] or ''}\n{node['kind']}\n{node['at']!r}\n{node['payload']}"
        chain = hashlib.sha256(chain + hashlib.sha256(row.encode()).digest()).digest()
        if bytes(node["chain"]) != chain:
            yield f"I5: the chain of {task} breaks at {node['id']}"
    if len(nodes) != session["nodes"] or bytes(session["chain"]) != chain:
        yield f"I2: {task} counts {session['nodes']} nodes and holds {len(nodes)}, or its chain ends elsewhere"
    if session["pointer"] is not None and session["pointer"] not in there:
        yield f"I2: the pointer of {task} is {session['pointer']}, which is not there"


def _seen(history: History, store: Snapshot) -> Iterator[str]:
    there = {(task, row["id"]) for task, rows in store.nodes.items() for row in rows}
    for task, node in history.nodes:
        if (task, node) not in there:
            yield f"I1: {task} {node} was shown, and is not in the store"


# --- I3: an act is known before it is begun, and told once ------------------------------------------------------------


def _effects(store: Snapshot) -> Iterator[str]:
    known = {(task, row["id"]) for task, rows in store.nodes.items() for row in rows}
    done: Counter[tuple[str, str]] = Counter()
    for effect in store.effects:
        if effect["kind"] == "tool" and (effect["task"], effect["node"]) not in known:
            yield f"I3: {effect['task']} {effect['id']} was planned by {effect['node']}, which is not there"
        if effect["state"] not in ("intent", "started") and effect["settled_at"] is None:
            yield f"I3: {effect['task']} {effect['id']} is {effect['state']} and never was settled"
        failed = json.loads(effect["result"] or "{}").get("is_error")
        if effect["state"] == "done" and effect["key"] and effect["kind"] == "tool" and not failed:
            done[effect["task"], effect["key"]] += 1
    for (task, key), times in done.items():
        if times > 1 and any(e["key"] == key and e["effect_class"] == "irreversible" for e in store.effects):
            yield f"I3: {task} did {key} {times} times by its own journal"


# --- I5: calls and results pair up ------------------------------------------------------------------------------------


def _pairs(store: Snapshot) -> Iterator[str]:
    for task, session in store.sessions.items():
        rows = {row["id"]: row for row in store.nodes.get(task, [])}
        path: list[Row] = []
        at = session["pointer"]
        while at in rows and len(path) <= len(rows):
            path.append(rows[at])
            at = rows[at]["parent"]
        ended = task in store.tasks and store.tasks[task]["state"] in ENDED
        yield from _paired(task, path[::-1], ended=ended)


def _paired(task: str, path: Sequence[Row], *, ended: bool) -> Iterator[str]:
    waiting: list[str] = []
    for row in path:
        blocks = json.loads(row["payload"]).get("blocks", ())
        if row["kind"] == "assistant":
            if waiting:
                yield f"I5: {task} {row['id']} comes before the results of {waiting}"
            waiting = [_call_of(block) for block in blocks if _call_of(block)]
        elif row["kind"] == "tool_result":
            for block in blocks:
                call = str(block.get("tool_use_id") or "")
                if call not in waiting:
                    yield f"I5: {task} {row['id']} is a result of {call}, which is not open"
                else:
                    waiting.remove(call)
    if ended and waiting:
        yield f"I5: {task} has ended, and {waiting} have no result"


def _call_of(block: Mapping[str, Any]) -> str:
    return str(block.get("id") or "") if block.get("type") == "tool_use" else ""


# --- I8: what was spent stays spent -----------------------------------------------------------------------------------


def _budgets(history: History, store: Snapshot) -> Iterator[str]:
    for task, shown in history.used.items():
        now = store.counters.get(task, {})
        for name, most in shown.items():
            if float(now.get(name) or 0.0) < most - 1e-9:
                yield f"I8: {task} had used {most:g} {name}, and now {now.get(name)}"
    told = Counter(
        (event["task"], str(data.get("budget")), str(data.get("level")))
        for event in store.events
        if event["type"] == "budget_warning" and (data := json.loads(event["data"])).get("budget") != "context"
    )
    for (task, budget, level), times in told.items():
        if times > 1:
            yield f"I8: {task} was warned {times} times of {level} of {budget}"


# --- I11: one writer --------------------------------------------------------------------------------------------------


def _one_writer(store: Snapshot) -> Iterator[str]:
    epochs = [row["epoch"] for row in store.starts]
    if epochs != sorted(set(epochs)) or (epochs and epochs[-1] > store.meta["owner_epoch"]):
        yield f"I11: the starts' epochs are {epochs}, the store's {store.meta['owner_epoch']}"
    holders = Counter(store.held.values())
    for task, times in holders.items():
        state = store.tasks[task]["state"] if task in store.tasks else "gone"
        if times > 1 or state in (*ENDED, "gone"):
            yield f"I11: {task} is {state} and holds {times} workspaces"
    at_work: set[str] = set()
    for event in store.events:
        if event["type"] == "started":
            if event["task"] in at_work:
                yield f"I11: {event['task']} was leased twice (event {event['seq']})"
            at_work.add(event["task"])
        elif event["type"] == "daemon_started":
            at_work.clear()  # the lock is held by one process alone, so nobody works for an older one
        elif event["type"] in GIVES_UP:
            at_work.discard(event["task"])


# Every event with which a task leaves the state `running`.
GIVES_UP = frozenset(
    {"handed_back", "parked", "needs_human", "approval_wanted", "paused", "task_stopped", "task_completed"}
    | {"interrupted", "rolling_back", "internal_error", "unanswered"}
)


# --- once it had the time to heal -------------------------------------------------------------------------------------


def left_over(store: Snapshot, folder: Path) -> list[str]:
    """I4 and I9, after the last daemon of a folder was stopped in order."""
    found = [
        f"I4: {task} is {row['state']}: {row['why'] or row['sentence']}"
        for task, row in store.tasks.items()
        if row["state"] not in ENDED
    ]
    found += [
        f"I4: the restore {row['token']} of {row['task']} is still open"
        for row in store.restores
        if not row["ended_at"]
    ]
    found += [f"I9: job {row['id']} of {row['task']} never ended" for row in store.jobs if row["ended_at"] is None]
    found += [f"I9: {root} is still held by {task}" for root, task in store.held.items()]
    found += [f"I9: process {pid} lives on" for pid in processes(folder / "state")]
    found += [
        f"I9: {path.relative_to(folder)} was left behind"
        for path in folder.rglob("*")
        if LEFT_BY_US.search(path.name) and not path.is_dir()
    ]
    if store.starts and store.starts[-1]["ended_at"] is None:
        found.append("I4: the last daemon was stopped in order, and its end is not noted")
    return found


def processes(state: Path) -> list[int]:
    """Live processes of any tool of the daemon whose state lies there, known by what it put into their environment."""
    mark = MARKER + hashlib.sha256(os.fsencode(state)).hexdigest()[:12].encode() + b"."
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if mark in Path(entry.path, "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended, or it is another user's
    return found
