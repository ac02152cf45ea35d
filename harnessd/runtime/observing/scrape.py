"""Scrape: what stands at the moment somebody asks, put into the figures, and all of it as text."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harnessd.domain.events import EventType
from harnessd.domain.ports import Clock, Store
from harnessd.domain.task import TaskState
from harnessd.policy import TaskPolicies
from harnessd.policy.budget import limit_of
from harnessd.runtime.observing.figures import Figures, take
from harnessd.runtime.observing.loop_watch import LoopWatch
from harnessd.runtime.observing.meters import exposition
from harnessd.runtime.observing.sink import Sink
from harnessd.runtime.observing.spans import Tracer
from harnessd.runtime.policies.in_force import Standing

NEAR = (0.7, 0.9)  # of a budget; the parts at which a task is warned by default
_BREAKER_STATES = ("closed", "half-open", "open", "tripped")
_WORDS = frozenset(EventType)


class Models(Protocol):
    """What is known of models and breakers."""

    def models(self) -> Sequence[Mapping[str, Any]]:
        """All models with breaker, load and what they cost today."""

    def breakers(self) -> Sequence[Mapping[str, Any]]:
        """All breakers."""


@dataclass(frozen=True, slots=True)
class Around:
    """What is looked at. `facts`: what `status` says of the daemon; `folder`: where the store lies."""

    store: Store
    clock: Clock
    facts: Callable[[], Mapping[str, Any]]
    standing: Callable[[], Sequence[Standing]]
    busy: Callable[[], int]
    draining: Callable[[], bool]
    policies_of: Callable[[Any], TaskPolicies]
    models: Models
    folder: Path
    sink: Sink | None
    loop: LoopWatch
    tracer: Tracer


@dataclass(slots=True)
class Scrape:
    """Gives the metrics. `begin` sets where the counting of the store's events starts."""

    figures: Figures
    around: Around
    _seen: int = 0
    _events: Counter[str] = field(default_factory=Counter)
    _ends: Counter[str] = field(default_factory=Counter)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def begin(self) -> None:
        """Events from now on are counted."""
        self._seen = await self.around.store.newest_event()

    async def text(self) -> str:
        """All metrics in Prometheus' text form."""
        async with self._turn:
            await self._look_at_the_store()
            self._look_at_the_daemon()
            self._look_at_the_models()
            self._look_at_budgets()
            self._look_at_policies()
            self._look_at_the_process()
            return exposition(self.figures)

    async def _look_at_the_store(self) -> None:
        store, figures, now = self.around.store, self.figures, self.around.clock.now()
        counts = await store.counts()
        figures.tasks.become({(state.value,): counts.get(state.value, 0) for state in TaskState})
        stand = await store.figures(now)
        figures.queue_due.set(stand.due)
        figures.queue_age_s.set(max(0.0, now - stand.oldest_due_at) if stand.oldest_due_at is not None else 0.0)
        kinds = ("approval", "outcome", "question")
        figures.questions.become({(kind,): stand.questions.get(kind, 0) for kind in kinds})
        figures.outbox.become({(channel,): count for channel, count in stand.outbox.items()})
        commits = store.commits()
        take(figures.commit_s, commits.bounds_s, commits.took, commits.took_s)
        figures.store_units.set(commits.units)
        happened = await store.event_counts(self._seen)
        self._seen = happened.upto
        self._events.update({word: count for word, count in happened.types.items() if word in _WORDS})
        self._ends.update(happened.ends)
        figures.events.become({(word,): count for word, count in self._events.items()})
        figures.tasks_ended.become({(reason,): count for reason, count in self._ends.items()})
        figures.rollbacks.become(
            {
                ("done",): self._events[EventType.ROLLED_BACK],
                ("failed",): self._events[EventType.ROLLBACK_FAILED],
            }
        )
        figures.compactions.set(self._events[EventType.COMPACTION])
        figures.notify_failed.set(self._events[EventType.NOTIFY_FAILED])

    def _look_at_the_daemon(self) -> None:
        figures, facts = self.figures, self.around.facts()
        figures.build.become({(str(facts.get("version", "")), str(facts.get("node", ""))): 1})
        figures.workers.set(float(facts.get("workers", 0)))
        figures.workers_busy.set(self.around.busy())
        figures.draining.set(self.around.draining())
        figures.warnings.set(len(facts.get("warnings", ())))
        figures.started.set(float(facts.get("started_at", 0.0)))
        disk = facts.get("disk", {})
        figures.disk_free.set(disk.get("free", 1.0))
        figures.checkpoint_bytes.set(disk.get("checkpoint_bytes", 0))
        figures.store_bytes.become({(part,): size for part, size in _sizes(self.around.folder).items()})
        loop = self.around.loop
        take(figures.loop_s, loop.turns.bounds, loop.turns.counts, loop.turns.total)
        figures.loop_blocked.set(loop.blocks)
        if self.around.sink is not None:
            figures.log_dropped.set(self.around.sink.dropped)
        spans = self.around.tracer.counts()
        figures.spans.become({(word,): count for word, count in spans.items() if word != "waiting"})

    def _look_at_the_models(self) -> None:
        figures = self.figures
        rows = {str(row["name"]): str(row["state"]) for row in self.around.models.breakers()}
        figures.breaker.become(
            {(name, state): float(state == now) for name, now in rows.items() for state in _BREAKER_STATES}
        )
        models = {(str(row["model"]),): row for row in self.around.models.models()}
        figures.in_flight.become({alias: row["running"] for alias, row in models.items()})
        figures.in_line.become({alias: row["waiting"] for alias, row in models.items()})
        figures.cost_today.become({alias: row["cost_usd_today"] for alias, row in models.items()})

    def _look_at_budgets(self) -> None:
        near: Counter[tuple[str, ...]] = Counter()
        now = self.around.clock.now()
        for one in self.around.standing():
            policy = self.around.policies_of(one.task).budget
            for budget, used in one.counters.used(max(0.0, now - one.task.submitted_at)).items():
                limit = limit_of(policy, budget)
                for part in NEAR:
                    near[budget, f"{part:g}"] += bool(limit) and used >= part * (limit or 1)
        self.figures.near_limit.become(dict(near))

    def _look_at_policies(self) -> None:
        figures, now = self.figures, self.around.clock.now()
        policies: Mapping[str, Any] = self.around.facts().get("policies", {})
        refused = policies.get("refused")
        figures.revision.set(float(policies.get("revision", 0)))
        figures.policy_age_s.set(max(0.0, now - policies.get("since", now)))
        figures.policy_refused.set(refused is not None)
        figures.policy_refused_s.set(max(0.0, now - refused["at"]) if refused else 0.0)
        figures.policy_held.set("held" in policies)

    def _look_at_the_process(self) -> None:
        figures, proc = self.figures, Path("/proc/self")
        figures.cpu_s.set(time.process_time())
        figures.max_fds.set(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        # Out of descriptors nothing can be looked at, and that is the moment when somebody asks.
        with contextlib.suppress(OSError):
            pages = int((proc / "statm").read_text(encoding="ascii").split()[1])
            figures.resident.set(pages * os.sysconf("SC_PAGE_SIZE"))
        with contextlib.suppress(OSError):
            figures.open_fds.set(sum(1 for _ in (proc / "fd").iterdir()) - 1)  # one is the listing's own
            figures.threads.set(sum(1 for _ in (proc / "task").iterdir()))


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of the store's files by their part: database, write-ahead log, shared memory."""
    sizes: Counter[str] = Counter()
    for path in folder.glob("*.db*"):
        ending = path.name.rpartition("-")[2]
        with contextlib.suppress(OSError):  # the write-ahead log comes and goes
            sizes[ending if ending in ("wal", "shm") else "database"] += path.stat().st_size
    return {part: sizes[part] for part in ("database", "wal", "shm")}
