"""One seed: faults and crashes for a while, then healing; what must hold is checked at the end."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from harnessd.domain.failure import HarnessError, StorageFull, StoreLost
from harnessd.domain.ports import Refused, Submitted, TaskFilter
from harnessd.domain.record import Question
from harnessd.domain.task import StopReason, Task, TaskDraft, TaskState, Verb
from harnessd.policy import PolicySet
from harnessd.stores import SqlStore
from tests.policy.written import policies
from tests.simulation.life import TTL_S, Disk, Life, SeededLoop, SkewedClock
from tests.simulation.world import CLASSES, World

TASKS_MAX, ACTS_MAX = 4, 4
TROUBLE_S = 150.0  # how long faults last, or until everything has ended
HEALED_WITHIN_S = 4 * 3600.0  # parked tasks wait for breakers, whose time doubles
LOOK_S = 15.0
POINTS = ("J3", "J4", "J6", "J7", "J9", "J12", "J21")
ALLOWED = "kind: tools\npermissions:\n  - {name: irreversible, when: {effect: irreversible}, do: allow}\n"


@cache
def in_force() -> PolicySet:
    """The shipped policies; the three tools need nobody's leave."""
    return policies(ALLOWED)


@dataclass
class Outcome:
    """What one seed came to. `broken`: which invariant, and how; empty is well."""

    seed: int
    broken: list[str] = field(default_factory=list)
    lives: int = 1
    tasks: int = 0
    asked: int = 0
    in_doubt: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    log: list[tuple[float, str]] = field(default_factory=list)


@dataclass
class Run:
    """The driver of one seed: it is the nemesis, then the doctor, and every person."""

    seed: int
    folder: Path
    counts: int = 1
    luck: random.Random = field(init=False)
    world: World = field(init=False)
    clock: SkewedClock = field(default_factory=SkewedClock)
    disk: Disk = field(default_factory=Disk)
    acked: dict[str, list[str]] = field(default_factory=dict)  # id -> plan
    places: dict[str, str] = field(default_factory=dict)  # id -> workspace, which names the task in the world
    turns: dict[str, int] = field(default_factory=dict)  # id -> the most turns that were ever seen
    cancelled: set[str] = field(default_factory=set)
    out: Outcome = field(init=False)
    _points: dict[str, int] = field(default_factory=dict)
    _over: bool = False

    def __post_init__(self) -> None:
        self.luck = random.Random(self.seed)
        self.world = World(random.Random(self.seed + 1), counts=self.counts)
        self.out = Outcome(self.seed)

    async def whole(self) -> Outcome:
        """Trouble, healing, the check."""
        self.world.trouble = self.luck.choice((0.0, 0.05, 0.2, 0.5))
        kills = sorted(self.luck.uniform(0, TROUBLE_S) for _ in range(self.luck.randrange(4)))
        if self.luck.random() < 0.5:
            self._points = {self.luck.choice(POINTS): self.luck.randrange(1, 6)}
        life = await self._born()
        life = await self._submit_all(life)
        loop = asyncio.get_running_loop()
        while loop.time() < TROUBLE_S and not self._over:
            until = min([at for at in kills if at > loop.time()] + [loop.time() + LOOK_S, TROUBLE_S])
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, until - loop.time())):
                    await life.killed.wait()
            if life.killed.is_set() or until in kills:
                life = await self._again(life)
            elif life.pool.lost.done():
                return self._end("the daemon gave its store up: " + str(life.pool.lost.result()))
            else:
                with suppress(StoreLost):  # killed in the middle: seen in the next round
                    await self._meddle(life)
        self.world.trouble, self.disk.full, self._points = 0.0, False, {}
        if life.killed.is_set():
            life = await self._again(life)
        await self._heal(life)
        await self._check(life.store)
        await life.end()
        return self._end()

    # --- daemons ------------------------------------------------------------------------------------------------------

    async def _born(self) -> Life:
        life = Life(self.folder, self.world, self.clock, self.disk, in_force(), self._crash)
        await life.begin()
        return life

    def _crash(self, point: str) -> bool:
        if point not in self._points:
            return False
        self._points[point] -= 1
        if self._points[point]:
            return False
        self._points = {}
        self.world.faults[f"killed at {point}"] += 1
        return True

    async def _again(self, life: Life) -> Life:
        await life.bury()
        self.out.lives += 1
        await asyncio.sleep(self.luck.choice((0.1, 2.0, 2 * TTL_S)))
        return await self._born()

    # --- persons and the nemesis --------------------------------------------------------------------------------------

    async def _submit_all(self, life: Life) -> Life:
        """Each task once, however often its client has to ask."""
        for number in range(self.luck.randrange(1, TASKS_MAX + 1)):
            acts = [f"{self.luck.choice(list(CLASSES))}:{at}" for at in range(self.luck.randrange(1, ACTS_MAX + 1))]
            place = f"{self.folder}/space/{number}"
            draft = TaskDraft(f"Task {number}: do {' '.join(acts)}. Then end.", "coder", place, key=f"k{number}")
            answer: Submitted | Refused | None = None
            while answer is None:
                try:
                    answer = await life.store.submit(draft, self.clock.now())
                except StoreLost:
                    life = await self._again(life)
            assert isinstance(answer, Submitted), answer
            self.acked[answer.task.id], self.places[answer.task.id] = acts, place
            life.pool.wake()
        return life

    async def _meddle(self, life: Life) -> None:
        """Something happens to a running daemon."""
        await self._look(life.store)
        what = self.luck.choice(("nothing", "nothing", "full", "skew", "pause", "send", "resume", "answer", "cancel"))
        with suppress(StorageFull, StoreLost):
            if what == "full":
                self.disk.full = not self.disk.full
            elif what == "skew":
                self.clock.skew_s += self.luck.choice((-3600.0, -30.0, 30.0, 3600.0))
            elif what == "answer":
                await self._answer_all(life)
            elif what != "nothing":
                await self._say(life, what)

    async def _say(self, life: Life, what: str) -> None:
        task = self.luck.choice(list(self.acked))
        if what == "send":
            await life.store.send(task, "Go on.", self.clock.now(), "a person")
            await life.pool.hear(task)
            return
        if what == "cancel" and self.luck.random() < 0.7:
            return
        verb = Verb(what)
        done = await life.store.apply(task, verb, self.clock.now(), "a person")
        if verb is Verb.CANCEL and not isinstance(done, Refused):
            self.cancelled.add(task)
        if (runner := life.pool.running.get(task)) is not None and verb is Verb.CANCEL:
            runner.cancel("a person")
        life.pool.wake()

    async def _answer_all(self, life: Life) -> None:
        for question in await life.store.questions():
            self.out.in_doubt += question.kind == "outcome"
            choice = self._truth(question)
            await life.store.answer(f"{question.task}/{question.id}", choice, "", self.clock.now(), "a person")
        life.pool.wake()

    def _truth(self, question: Question) -> str:
        """A person looks what became of it, in the world, and says so."""
        if "not-done" in question.choices:
            act = f"{question.data['tool'].removeprefix('tool/')}:{json.loads(question.data['arguments'])['what']}"
            return "done" if self.world.done[self.places[question.task], act] else "not-done"
        return next((good for good in ("go-on", "allow") if good in question.choices), question.choices[0])

    # --- healing ------------------------------------------------------------------------------------------------------

    async def _heal(self, life: Life) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        life.pool.wake()
        while loop.time() - began < HEALED_WITHIN_S:
            tasks = await self._look(life.store)
            if all(task.state is TaskState.COMPLETED or task.id in self.cancelled for task in tasks):
                return
            await self._answer_all(life)
            for task in tasks:
                if task.state in (TaskState.STOPPED, TaskState.PAUSED) and task.id not in self.cancelled:
                    if task.reason is StopReason.BUDGET_EXHAUSTED:  # a clock that was set forward uses up wall time
                        await life.store.change(task.id, self.clock.now(), "a person", {"budget": {"wall_time": 1e6}})
                    await life.store.apply(task.id, Verb.RESUME, self.clock.now(), "a person")
                    life.pool.wake()
            await asyncio.sleep(LOOK_S)

    # --- what must hold -----------------------------------------------------------------------------------------------

    async def _look(self, store: SqlStore) -> Sequence[Task]:
        """At any time: nothing acknowledged is gone, what was spent stays spent, no act is done twice."""
        tasks = await store.list(TaskFilter(limit=100))
        there = {task.id for task in tasks}
        self.out.broken += [f"I1: task {one} was acknowledged and is gone" for one in self.acked.keys() - there]
        self.out.broken += [f"I1: task {one} was never asked for" for one in there - self.acked.keys()]
        for task in tasks:
            if task.counters.turns < self.turns.get(task.id, 0):
                self.out.broken.append(f"I8: task {task.id} had {self.turns[task.id]} turns, now {task.counters.turns}")
            self.turns[task.id] = task.counters.turns
        self._over = all(task.state.ended for task in tasks)
        for (place, act), times in self.world.done.items():
            if act.startswith("pay") and times > 1:
                self.out.broken.append(f"I3: {act} of {place} was done {times} times")
        return tasks

    async def _check(self, store: SqlStore) -> None:
        for task in await self._look(store):
            ended = task.state is TaskState.COMPLETED or task.id in self.cancelled
            if not ended:
                words = f"{task.state.value} {task.reason or ''} {task.sentence or task.why}"
                self.out.broken.append(f"I4: task {task.id} is still {words}")
            if (misfit := await store.verify(task.id)) is not None:
                self.out.broken.append(f"I2, I5: {misfit}")
            if task.state is TaskState.COMPLETED:
                done = {act for (place, act), n in self.world.done.items() if place == self.places[task.id] and n}
                missing = [act for act in self.acked[task.id] if act not in done]
                self.out.broken += [f"I3: task {task.id} is completed, and {act} was never done" for act in missing]
        self.out.broken += [f"I5: {words}" for words in self.world.unpaired]
        events = await store.events(limit=100_000)
        self.out.log = [(event.at, event.type) for event in events]
        self.out.broken += [f"R1.2: {event.data}" for event in events if event.type == "internal_error"]

    def _end(self, *broken: str) -> Outcome:
        self.out.broken = list(dict.fromkeys([*self.out.broken, *broken]))
        self.out.tasks, self.out.asked, self.out.faults = len(self.acked), self.world.asked, self.world.faults
        self.out.virtual_s = asyncio.get_running_loop().time()
        return self.out


def simulate(seed: int, scratch: Path | None = None, counts: int = 1) -> Outcome:
    """One seed, on a loop of its own. A fault of ours is an outcome, too. `counts`: see World."""
    folder = Path(tempfile.mkdtemp(prefix="sim-", dir=scratch))
    outcome = Outcome(seed, ["it did not end"])

    async def go() -> None:
        nonlocal outcome
        outcome = await Run(seed, folder, counts).whole()

    try:
        with asyncio.Runner(loop_factory=SeededLoop) as runner:
            runner.run(go())
    except (HarnessError, AssertionError, TimeoutError) as fault:
        outcome.broken = [f"{type(fault).__name__}: {fault}"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome
