"""History: what was asked of a daemon and what it answered, recorded outside of it; then the books are compared.

The classes are those of a queue under fault injection: *lost* was acknowledged and is not there, *unexpected* is there
and nobody asked for it, *duplicated* is there more than once, *recovered* got no answer, because the daemon died
first, and is there all the same, *in doubt* is an act of which nobody can know, put to a person. Only the last two may
happen.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.proofs.outside import Outside
from benchmarks.proofs.snapshot import Snapshot

Kind = Literal["submit", "answer", "send", "policy", "rollback"]


@dataclass(slots=True)
class Asked:
    """One request: what it was, and what came back; `answer` is None where the daemon died first."""

    kind: Kind
    key: str
    at: float
    life: int
    about: Mapping[str, Any]
    answer: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Classes:
    """How many of each class; and what of it breaks a promise."""

    acknowledged: int = 0
    acts: int = 0
    lost: int = 0
    unexpected: int = 0
    duplicated: int = 0
    recovered: int = 0
    in_doubt: int = 0
    escalated: int = 0
    kills: int = 0
    broken: list[str] = field(default_factory=list)

    def add(self, other: Classes) -> None:
        """Both together."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def line(self) -> str:
        """In one line."""
        share = self.in_doubt / self.kills if self.kills else 0.0
        return (
            f"{self.kills} kills, {self.acknowledged} acknowledged, {self.acts} acts: {self.lost} lost, "
            f"{self.unexpected} unexpected, {self.duplicated} duplicated, {self.recovered} recovered, "
            f"{self.in_doubt} in doubt ({share:.3f} a kill, {self.escalated} escalated), "
            f"{len(self.broken)} broke a promise"
        )


@dataclass(slots=True)
class History:
    """The record of one state folder, over all lives of its daemon."""

    life: int = 0
    asked: list[Asked] = field(default_factory=list)
    nodes: dict[tuple[str, str], str] = field(default_factory=dict)  # (task, node) -> content as it was shown
    used: dict[str, dict[str, float]] = field(default_factory=dict)  # task -> the most that was shown as used
    kills: list[str] = field(default_factory=list)

    def ask(self, kind: Kind, key: str, about: Mapping[str, Any], do: Callable[[], Mapping[str, Any]]) -> Asked:
        """Record the wish first, then what came of it. What `do` raises comes through."""
        one = Asked(kind, key, time.time(), self.life, about)
        self.asked.append(one)
        one.answer = do()
        return one

    def saw_nodes(self, task: str, nodes: Sequence[Mapping[str, Any]]) -> None:
        """Nodes that were shown: from now on they may not be lost and may not change."""
        for node in nodes:
            self.nodes.setdefault((task, str(node["node"])), _content(node))

    def saw_used(self, task: str, row: Mapping[str, Any]) -> None:
        """Counters that were shown: what was spent stays spent."""
        most = self.used.setdefault(task, {})
        for name in ("turns", "tool_calls", "cost_usd"):
            most[name] = max(most.get(name, 0.0), float(row.get(name) or 0.0))

    @property
    def submits(self) -> dict[str, list[Asked]]:
        """All submits by their key."""
        found: dict[str, list[Asked]] = {}
        for one in self.asked:
            if one.kind == "submit":
                found.setdefault(one.key, []).append(one)
        return found

    def dump(self, path: Path) -> None:
        """One JSON line a request: to look into what a seed found."""
        path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in self.asked))


def _content(node: Mapping[str, Any]) -> str:
    """A node as it was written; checkpoints and what was done there are rows of their own, and come later."""
    kept = {name: value for name, value in node.items() if name not in ("checkpoint", "outward")}
    return json.dumps(kept, sort_keys=True)


def classify(history: History, store: Snapshot, outside: Outside, *, ended: bool) -> Classes:
    """Compare the three books. `ended`: all tasks had the time to end, so that nothing may be missing any more."""
    found = Classes(kills=len(history.kills))
    _tasks(history, store, found)
    _words(history, store, found)
    _acts(history, store, outside, found, ended=ended)
    return found


def _tasks(history: History, store: Snapshot, found: Classes) -> None:
    by_key = {row["key"]: row for row in store.tasks.values() if row["key"]}
    for key, tries in history.submits.items():
        ids = {str(one.answer["task"]) for one in tries if one.answer is not None}
        found.acknowledged += bool(ids)
        row = by_key.get(key)
        there = row["id"] if row is not None else None
        if ids and ids != {there}:
            found.lost += 1
            found.broken.append(f"I1: submit {key} was acknowledged as {ids}, and is {there} in the store")
        found.recovered += row is not None and any(one.answer is None for one in tries)
    strangers = [key for key in by_key if key not in history.submits]
    nameless = [row["id"] for row in store.tasks.values() if not row["key"]]
    found.unexpected += len(strangers) + len(nameless)
    found.broken += [f"unexpected: task with the key {key}" for key in strangers]
    found.broken += [f"unexpected: task {task} without a key" for task in nameless]


def _words(history: History, store: Snapshot, found: Classes) -> None:
    """Verdicts, messages and policies that were acknowledged."""
    for one in history.asked:
        if one.answer is None or one.kind == "submit":
            continue
        found.acknowledged += 1
        if one.kind == "answer":
            row = store.questions.get((one.about["task"], one.about["question"]))
            there = row is not None and row["choice"] == one.about["choice"]
        elif one.kind == "send":
            there = any(one.about["text"] in message["text"] for message in store.messages)
        elif one.kind == "policy":
            there = one.answer.get("result") != "applied" or one.answer.get("revision") in store.revisions
        else:
            there = any(row["task"] == one.about["task"] and row["ended_at"] for row in store.restores)
        if not there:
            found.lost += 1
            found.broken.append(f"I1: {one.kind} {one.key} was acknowledged and is not in the store: {one.about}")


def _acts(history: History, store: Snapshot, outside: Outside, found: Classes, *, ended: bool) -> None:
    """The journal and the world outside agree: I3."""
    wanted = {str(name) for one in history.asked for name in one.about.get("acts", ())}
    found.acts = sum(outside.by_name.values())
    for name, times in outside.by_name.items():
        if name not in wanted:
            found.unexpected += 1
            found.broken.append(f"I3: {name} was done outside, and nobody asked for it")
        elif times > 1:
            found.duplicated += 1
            found.broken.append(f"I3: {name} was done {times} times, under {outside.keys_of[name]}")
    if ended:
        missing = sorted(wanted - set(outside.by_name))
        found.lost += len(missing)
        found.broken += [f"I3: {name} was never done, and its task has ended" for name in missing]
    for effect in store.effects:
        done = effect["kind"] == "tool" and effect["effect_class"] == "irreversible" and effect["state"] == "done"
        refused = json.loads(effect["result"] or "{}").get("is_error")
        if done and not refused and effect["key"] and not outside.by_key[effect["key"]]:
            found.broken.append(f"I3: {effect['task']} {effect['id']} is done in the journal, and never was outside")
    _doubts(store, found)


def _doubts(store: Snapshot, found: Classes) -> None:
    """Acts whose outcome nobody could know: each was put to a person, with all that he needs (G7)."""
    asked: Counter[str] = Counter()
    for (task, question), row in store.questions.items():
        if row["kind"] != "outcome":
            continue
        data = json.loads(row["data"])
        key, says = str(data.get("key") or ""), str(row["sentence"])
        asked[key] += 1
        found.in_doubt += 1
        command = str(data.get("command") or data.get("arguments") or data.get("tool") or "")
        choices = json.loads(row["choices"])
        if key and key in says and data.get("started_at") and command and {"done", "not-done"} <= set(choices):
            found.escalated += 1
        else:
            found.broken.append(f"G7: {task} {question} does not say key, time, command and next step: {says} {data}")
    for effect in store.effects:
        if effect["state"] == "unknown" and effect["effect_class"] == "irreversible" and not asked[effect["key"]]:
            probed = any(other["kind"] == "probe" and other["key"] == effect["key"] for other in store.effects)
            if not probed:
                found.in_doubt += 1
                found.broken.append(f"G7: {effect['task']} {effect['id']} is unknown, and nobody was asked")
