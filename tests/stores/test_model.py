"""Random legal operations on a real store beside a model of ten lines for each: both always say the same."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harnessd.domain.failure import IllegalEvent, LeaseLost
from harnessd.domain.ports import Refused, Submitted
from harnessd.domain.record import AppendNode, ChangeTask, MovePointer
from harnessd.domain.session import path_to
from harnessd.domain.task import TASK_TRANSITIONS, Lease, Task, TaskState, Verb
from harnessd.stores import open_store
from tests.stores.scenes import MEMORY, NOW, draft, lease_of, user

T = TypeVar("T")
WORKSPACES = ("", "/w", "/w/a", "/w/a/b", "/v")
OWN = (Verb.HAND_BACK, Verb.PARK, Verb.ASK, Verb.PAUSE, Verb.STOP, Verb.COMPLETE, Verb.CANCEL)
PERSONS = (Verb.RESUME, Verb.RETRY, Verb.CANCEL, Verb.PAUSE)


def meet(one: str, two: str) -> bool:
    """Two folders are equal, or one lies in the other."""
    one, two = one.rstrip("/") + "/", two.rstrip("/") + "/"
    return one.startswith(two) or two.startswith(one)


@dataclass
class Model:
    """What is expected of one task."""

    id: str
    key: str
    priority: int
    workspace: str
    number: int
    state: TaskState = TaskState.QUEUED
    epoch: int = 0
    lease: Lease | None = None
    holds: bool = False
    recoveries: int = 0
    nodes: dict[str, str | None] = field(default_factory=dict)
    pointer: str | None = None
    until: float | None = None
    asked: set[Verb] = field(default_factory=set)
    taken_back: bool = False  # a pause, while the worker may be on its way there

    def leave(self, state: TaskState) -> None:
        self.state, self.lease, self.taken_back = state, None, False
        if state.ended:
            self.holds = False
            self.asked.clear()


class Stores(RuleBasedStateMachine):
    """One store, restarted now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="harnessd-test-", dir=MEMORY))
        self.store = open_store(self.folder / "harnessd.db")
        self.tasks: dict[str, Model] = {}
        self.stale: list[Lease] = []
        self.now = NOW
        self.starts = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize()
    def start(self) -> None:
        self.run(self.store.open("a1"))
        self.starts += 1
        assert self.store.epoch == self.starts

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    def pick(self, number: int, *states: TaskState) -> Model | None:
        those = [model for model in self.tasks.values() if model.state in states or not states]
        return those[number % len(those)] if those else None

    # --- operations -----------------------------------------------------------------------------------------------

    @rule(key=st.integers(0, 6), priority=st.integers(0, 2), workspace=st.sampled_from(WORKSPACES))
    def submit(self, key: int, priority: int, workspace: str) -> None:
        known = next((model for model in self.tasks.values() if model.key == f"k{key}"), None)
        answer = self.run(self.store.submit(draft("p", workspace, key=f"k{key}", priority=priority), self.now))
        if known is None:
            assert isinstance(answer, Submitted)
            assert answer.fresh
            task = answer.task.id
            self.tasks[task] = Model(task, f"k{key}", priority, workspace, len(self.tasks))
        elif known.workspace == workspace:
            assert isinstance(answer, Submitted)
            assert (answer.fresh, answer.task.id) == (False, known.id)
        else:
            assert isinstance(answer, Refused)
            assert answer.code == "conflict"

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        expected = []
        queue = [model for model in self.tasks.values() if model.state is TaskState.QUEUED]
        for _ in range(limit):
            held = [model for model in self.tasks.values() if model.holds]
            free = [
                model
                for model in queue
                if model not in expected
                and not (
                    model.workspace and any(one is not model and meet(one.workspace, model.workspace) for one in held)
                )
            ]
            if not free:
                break
            best = min(free, key=lambda model: (-model.priority, model.number))
            best.holds = bool(best.workspace)
            expected.append(best)
        taken = self.run(self.store.claim("a1", limit, self.now, 20))
        assert [task.id for task in taken] == [model.id for model in expected]
        for model, task in zip(expected, taken, strict=True):
            model.state, model.lease, model.epoch, model.until = (
                TaskState.RUNNING,
                lease_of(task),
                model.epoch + 1,
                None,
            )
            assert lease_of(task).epoch == model.epoch

    @rule(which=st.integers(0, 99))
    def append(self, which: int) -> None:
        model = self.pick(which, TaskState.RUNNING)
        if model is None or model.lease is None:
            return
        node = f"n{len(model.nodes) + 1}"
        self.run(self.store.record(model.lease, [AppendNode(user(node, model.pointer))], self.now))
        model.nodes[node], model.pointer = model.pointer, node

    @rule(which=st.integers(0, 99), back=st.integers(0, 9))
    def move(self, which: int, back: int) -> None:
        model = self.pick(which, TaskState.RUNNING)
        if model is None or model.lease is None or not model.nodes:
            return
        to = list(model.nodes)[back % len(model.nodes)]
        self.run(self.store.record(model.lease, [MovePointer(model.pointer, to)], self.now))
        model.pointer = to

    @rule(which=st.integers(0, 99), verb=st.sampled_from(OWN))
    def leave(self, which: int, verb: Verb) -> None:
        model = self.pick(which, TaskState.RUNNING)
        if model is None or model.lease is None:
            return
        until = self.now + 50 if verb in (Verb.PARK, Verb.ASK) else None
        self.run(self.store.record(model.lease, [ChangeTask(verb, until=until)], self.now))
        self.stale.append(model.lease)
        overtaken = verb is Verb.PAUSE and model.taken_back
        model.leave(TASK_TRANSITIONS[TaskState.RUNNING][Verb.HAND_BACK if overtaken else verb])
        model.until = until
        if verb is Verb.PAUSE and not overtaken:
            model.asked.clear()

    @precondition(lambda self: self.stale)
    @rule(which=st.integers(0, 99))
    def write_with_an_old_lease(self, which: int) -> None:
        with pytest.raises(LeaseLost):
            self.run(self.store.record(self.stale[which % len(self.stale)], [ChangeTask(Verb.COMPLETE)], self.now))

    @rule(which=st.integers(0, 99))
    def write_on_a_wrong_parent(self, which: int) -> None:
        model = self.pick(which, TaskState.RUNNING)
        if model is None or model.lease is None:
            return
        with pytest.raises(IllegalEvent):
            self.run(self.store.record(model.lease, [AppendNode(user("x1", "nowhere"))], self.now))

    @rule(which=st.integers(0, 99), verb=st.sampled_from(PERSONS))
    def person(self, which: int, verb: Verb) -> None:
        model = self.pick(which)
        if model is None:
            return
        answer = self.run(self.store.apply(model.id, verb, self.now, "ann"))
        moves = TASK_TRANSITIONS[model.state]
        if model.state is TaskState.RUNNING and verb in (Verb.PAUSE, Verb.CANCEL):
            model.asked.add(verb)
            model.taken_back = model.taken_back and verb is not Verb.PAUSE
        elif model.state is TaskState.RUNNING and verb is Verb.RESUME and Verb.PAUSE in model.asked:
            model.asked.discard(Verb.PAUSE)
            model.taken_back = True
        elif verb in moves:
            model.leave(moves[verb])
            model.until = None
            model.asked.clear()
            if verb in (Verb.RESUME, Verb.RETRY):
                model.recoveries = 0
        elif (model.state, verb) not in {
            (TaskState.QUEUED, Verb.RESUME),
            (TaskState.PAUSED, Verb.PAUSE),
            (TaskState.STOPPED, Verb.CANCEL),
        }:
            assert isinstance(answer, Refused)
            return
        assert isinstance(answer, Task)

    @rule(seconds=st.integers(0, 40))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        changed = 0
        for model in self.tasks.values():
            if model.lease is not None and model.lease.expires_at <= self.now:
                self.stale.append(model.lease)
                model.leave(TaskState.QUEUED)
                model.recoveries += 1
                changed += 1
            elif model.until is not None and model.until <= self.now:
                model.leave(TaskState.QUEUED)
                model.until = None
                changed += 1
        assert self.run(self.store.sweep(self.now)) == changed
        due = [model.until for model in self.tasks.values() if model.until is not None]
        assert self.run(self.store.next_due(self.now)) == (min(due) if due else None)

    @rule()
    def restart(self) -> None:
        self.run(self.store.close())
        self.store = open_store(self.folder / "harnessd.db")
        self.start()
        cut = [model for model in self.tasks.values() if model.lease is not None]
        assert self.run(self.store.release_all(self.now)) == len(cut)
        for model in cut:
            if model.lease is not None:
                self.stale.append(model.lease)
            model.leave(TaskState.QUEUED)
            model.recoveries += 1

    # --- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def both_say_the_same(self) -> None:
        if not self.starts:
            return
        for model in self.tasks.values():
            task = self.run(self.store.find(model.id))
            assert isinstance(task, Task)
            assert (task.state, task.pointer, task.recoveries) == (model.state, model.pointer, model.recoveries)
            assert (task.pause_asked, task.cancel_asked) == (Verb.PAUSE in model.asked, Verb.CANCEL in model.asked)
            assert (task.lease is None) == (model.lease is None)
            nodes = self.run(self.store.nodes(model.id))
            assert {node.id: node.parent for node in nodes} == model.nodes
            path = path_to({node.id: node for node in nodes}, task.pointer)
            assert self.run(self.store.history(model.id)).path == path
            assert self.run(self.store.verify(model.id)) is None


TestStores = Stores.TestCase
TestStores.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
