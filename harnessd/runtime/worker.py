"""Worker: lease a task, heartbeat, hand it to a runner, release; a pool, so that one stalled task blocks no other."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from harnessd.domain.failure import REFUSED_FOR_NOW, ErrorClass, HarnessError, LeaseLost, OutcomeUnknown, StoreLost
from harnessd.domain.ports import Refused, Store
from harnessd.domain.record import ChangeTask, RecordEvent
from harnessd.domain.task import StopReason, Task, Verb
from harnessd.engine.protocol import Cancelled, Finish, RunBrief, StepDown
from harnessd.policy import TaskPolicies
from harnessd.runtime import recovery, telemetry
from harnessd.runtime.catalog import Catalog
from harnessd.runtime.host.leases import Leases
from harnessd.runtime.policies.in_force import Standing
from harnessd.runtime.runner import Runner, Surroundings, lease_of
from harnessd.runtime.traffic.desk import Seats

_log = telemetry.log("worker")
DRAIN = "drain"  # why a pool holds: a person, or a stop, wants it empty
Attempt = Callable[[Task, Callable[[Task], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How many tasks at once, and how leases live (seconds)."""

    owner: str
    workers: int = 32
    ttl_s: float = 20.0
    heartbeat_s: float = 5.0
    seats: Callable[[Sequence[Task]], Seats] = lambda _: Seats()  # what limits still let run beside these


class Pool:
    """Claims while there is room, sleeps until something is due; no polling."""

    def __init__(
        self,
        store: Store,
        around: Surroundings,
        catalog: Callable[[], Catalog],
        policies_of: Callable[[Task], TaskPolicies],
        settings: PoolSettings,
        prepare: Callable[[Task], Awaitable[Refused | None]] | None = None,
    ) -> None:
        """Everything is handed in; nothing starts before `run`.

        `prepare` is awaited before a run is restored; what it refuses is stopped with its words.
        """
        self._store = store
        self._around = around
        self._catalog = catalog
        self._policies_of = policies_of
        self._settings = settings
        self.leases = Leases(store, around.clock, settings.ttl_s)
        self._prepare = prepare
        self._wake = asyncio.Event()
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._runners: dict[str, Runner] = {}
        self._tasks: dict[str, Task] = {}
        self._heart: asyncio.Task[None] | None = None
        self._claiming = asyncio.Lock()
        self._abandoned = False
        self._held: set[str] = set()
        self._claimed_at: dict[str, float] = {}
        self._missing: set[tuple[str, str]] = set()
        self._notes: set[asyncio.Task[None]] = set()
        self._ending = False
        self.attempt: Attempt = lambda task, serve: serve(task)  # who looks on while a task is worked on
        self.roll_back: Callable[[str], Awaitable[object]] | None = None  # carries out what a run decided on
        self.lost: asyncio.Future[HarnessError] = asyncio.get_running_loop().create_future()

    @property
    def running(self) -> Mapping[str, Runner]:
        """The runners at work, by task."""
        return self._runners

    @property
    def draining(self) -> bool:
        """No new task is taken, and what runs is handed back: for good, or until a person takes it back."""
        return self._ending or DRAIN in self._held

    @property
    def busy(self) -> int:
        """Tasks that hold a worker."""
        return len(self._serving)

    def standing(self) -> list[Standing]:
        """The running tasks with what they have used until now."""
        return [Standing(self._tasks[id_], runner.run.counters) for id_, runner in self._runners.items()]

    def named_lately(self, names: Collection[str], within_s: float) -> list[str]:
        """The tasks whose tools ran within this time and name one of these in their arguments."""
        return [task for task, runner in self._runners.items() if runner.named_lately(names, within_s)]

    @property
    def preparing(self) -> dict[str, float]:
        """The claimed tasks whose run is not there yet, with the seconds since their claim."""
        now = self._around.clock.monotonic()
        return {task: now - at for task, at in self._claimed_at.items() if task not in self._runners}

    def hold(self, why: str) -> None:
        """No new step until `release`: nothing is claimed, and what runs is handed back at its step border."""
        self._held.add(why)
        for runner in list(self._runners.values()):
            runner.step_down(self._step_down())

    def release(self, why: str) -> None:
        """What was held for this goes on."""
        self._held.discard(why)
        self.wake()

    def _step_down(self) -> StepDown:
        return StepDown(self._around.clock.now(), "drain" if self.draining else "storage_full")

    def note(self, task: str, type_: str, data: Mapping[str, Any]) -> None:
        """Leave an event of a task at work; nobody waits for it."""
        row = self._tasks.get(task)
        if row is not None:
            noting = asyncio.create_task(self._note(row, RecordEvent(type_, dict(data))))
            self._notes.add(noting)
            noting.add_done_callback(self._notes.discard)

    async def _note(self, task: Task, record: RecordEvent) -> None:
        with contextlib.suppress(HarnessError):  # the lease went elsewhere, or the store is gone: told elsewhere
            await self._record(task, record)

    def restart(self, task: str) -> None:
        """Give up a worker that does not move: its lease runs out, and the task is taken up again, charged as one.

        The coroutine may never end. It holds no place any more, and its lease lets it write nothing.
        """
        serving = self._serving.pop(task, None)
        self._runners.pop(task, None)
        self._tasks.pop(task, None)
        self._claimed_at.pop(task, None)
        if serving is not None:
            serving.cancel()
        self._wake.set()

    def wake(self) -> None:
        """Something may be claimable."""
        self._wake.set()

    async def run(self) -> None:
        """Claim and serve until drained; the only exits are `drain` and a lost store."""
        while not self._ending:
            self._wake.clear()
            await self._unless_refused(self._claim)
            due = await self._store.next_due(self._around.clock.now())
            wait_s = None if due is None else max(0.0, due - self._around.clock.now())
            # Not asyncio.wait_for: until Python 3.12 it swallows a cancellation that comes together with the result.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            if due is not None and due <= self._around.clock.now():
                await self._unless_refused(self.sweep)

    async def sweep(self) -> None:
        """Take up what is due, and what no worker holds: after a sleep or a set clock leases of ours only look old."""
        if await self._prolong():
            await self._store.sweep(self._around.clock.now())

    async def drain(self, timeout_s: float) -> list[str]:
        """For good: `empty`, and `run` ends. Gives the ids of the tasks that had to be cut."""
        self._ending = True
        self._wake.set()
        self._around.crashpoint("J24")
        cut = await self.empty(timeout_s)
        if self._heart is not None:
            self._heart.cancel()
        self._around.crashpoint("J24-after")
        return cut

    async def empty(self, timeout_s: float | None) -> list[str]:
        """No new claims until `release(DRAIN)`; each task stops at its step border. Gives the ids of those cut."""
        self.hold(DRAIN)
        # A claim that is on its way to the store still brings tasks, and they are handed back like the others.
        async with self._claiming:
            pass
        if self._serving:
            await asyncio.wait(list(self._serving.values()), timeout=timeout_s)
        cut = dict(self._serving)
        for serving in cut.values():
            serving.cancel()
        await asyncio.gather(*cut.values(), return_exceptions=True)
        return list(cut)

    async def abandon(self) -> None:
        """The store is lost: end the runs without a word. What they did is found in the journal by the next owner."""
        self._ending = self._abandoned = True
        for serving in (left := list(self._serving.values())):
            serving.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._heart is not None:
            self._heart.cancel()

    async def hear(self, task: str) -> None:
        """Give a running task the words that persons said to it since."""
        runner = self._runners.get(task)
        if runner is not None:
            history = await self._store.history(task)
            for message in history.messages:
                runner.hear(message, history.ended_jobs)

    async def _unless_refused(self, write: Callable[[], Awaitable[object]]) -> None:
        """A write of the pool's own. Where the store has no room, or is held by somebody, it is due again soon."""
        try:
            await write()
        except REFUSED_FOR_NOW as refused:
            _log.warning("refused", sentence=refused.sentence)
            await self._around.room.after(refused)
            self._wake.set()

    async def _claim(self) -> None:
        async with self._claiming:
            if not self._ending and not self._held:
                await self._claim_free()

    async def _claim_free(self) -> None:
        taken = True
        while taken:
            free, seats = self._settings.workers - len(self._serving), self._settings.seats(list(self._tasks.values()))
            free = free if seats.free is None else min(free, seats.free)
            taken = free > 0 and await self._take(1 if seats.one_by_one else free, seats) > 0 and seats.one_by_one

    async def _take(self, count: int, seats: Seats) -> int:
        tasks = await self.leases.claim(self._settings.owner, count, seats.full)
        for task in tasks:
            self._around.crashpoint("J3")
            self._tasks[task.id] = task
            self._claimed_at[task.id] = self._around.clock.monotonic()
            self._around.watching()
            serving = asyncio.create_task(self.attempt(task, self._serve), name=f"serve {task.id}")
            self._serving[task.id] = serving
            serving.add_done_callback(partial(self._served, task.id))
        if self._serving and (self._heart is None or self._heart.done()):
            self._heart = asyncio.create_task(self._beat(), name="heartbeat")
        return len(tasks)

    def _served(self, task: str, done: asyncio.Task[None]) -> None:
        if self._serving.get(task) is done:
            del self._serving[task]
            self._runners.pop(task, None)
            self._tasks.pop(task, None)
            self._claimed_at.pop(task, None)
        self._wake.set()
        if not done.cancelled() and (fault := done.exception()) is not None:
            self.give_up(fault if isinstance(fault, HarnessError) else HarnessError(f"{type(fault).__name__}: {fault}"))

    def give_up(self, fault: HarnessError) -> None:
        """The store is lost: whoever waits for `lost` ends the daemon."""
        if not self.lost.done():
            self.lost.set_result(fault)

    async def _serve(self, task: Task) -> None:
        try:
            await self._work(task)
        except LeaseLost as lost:
            _log.warning("lease_lost", task=task.id, sentence=lost.sentence)
        except asyncio.CancelledError:
            # Cut at the end of a drain: handed back as it stands, no attempt charged.
            if not self._abandoned and self._ours(task):
                with contextlib.suppress(HarnessError):
                    await self._record(task, ChangeTask(verb=Verb.HAND_BACK, why="cut at the end of a drain"))
            raise
        except (StoreLost, OutcomeUnknown):
            raise
        except Exception as fault:  # noqa: BLE001 - a program fault ends its task, never its neighbours (R1.2)
            await self._internal_error(task, fault)

    def _ours(self, task: Task) -> bool:
        """This coroutine is still the task's worker: it was not given up meanwhile."""
        return self._serving.get(task.id) is asyncio.current_task()

    async def _work(self, task: Task) -> None:
        brief = await self._fit(task)
        if isinstance(brief, Refused):
            await self._record(task, recovery.cannot_go_on(task, brief))
            return
        history = await self._store.history(task.id)
        now = self._around.clock.now()
        restored = await asyncio.to_thread(recovery.restore, brief, history, self._around.toolbox.partial, now)
        runner = Runner(
            task=task,
            lease=lease_of(task),
            run=restored.run,
            around=self._around,
            policies=lambda: self._policies_of(self._as_it_stands(task)),
        )
        runner.know(restored.heard)
        if not self._ours(task):
            return
        self._runners[task.id] = runner
        await self._asked_meanwhile(task, runner)
        self._tell_missing(task)
        last = await runner.work(restored.first)
        why = getattr(last, "why", None)
        kind = ("handed_over", why) if why == "parked" else None
        _log.info("handed_over", kind=kind, task=task.id, end=type(last).__name__, why=why)
        if why == "rolling_back" and self.roll_back is not None:
            await self.roll_back(task.id)
        if isinstance(last, Finish):
            self._around.crashpoint("J21")
            await self._around.toolbox.jobs.end_task(task.id)

    def _as_it_stands(self, task: Task) -> Task:
        """The row with the stand-ins of this moment: they decide whose policies hold."""
        row, runner = self._tasks.get(task.id, task), self._runners.get(task.id)
        return row if runner is None or not runner.run.acting else replace(row, counters=runner.run.counters)

    async def _fit(self, task: Task) -> RunBrief | Refused:
        """What the run knows from the start, or why it cannot be: the world changed since the task was submitted."""
        if not task.draft.agent:
            return Refused(recovery.CORRUPT, "The record of the task is damaged in the store.", "Restore a backup.")
        if (misfit := await self._store.verify(task.id)) is not None:
            # Nothing goes on from a history that is not what was written (I5).
            return Refused(recovery.CORRUPT, misfit, "Restore a backup.")
        brief = self._catalog().brief(task)
        if isinstance(brief, str):
            return Refused("gone", brief, "Put it back and resume.")
        refused = await self._prepare(task) if self._prepare is not None else None
        return brief if refused is None else refused

    async def _asked_meanwhile(self, task: Task, runner: Runner) -> None:
        """A wish that reached the row, or the pool, before this runner could hear it."""
        row = await self._store.find(task.id)
        if self._ending or self._held:
            runner.run.receive(self._step_down(), runner.policies())
        if not isinstance(row, Task):
            return
        if row.cancel_asked:
            runner.run.receive(Cancelled(self._around.clock.now()), runner.policies())
        elif row.pause_asked:
            runner.run.receive(StepDown(self._around.clock.now(), "pause"), runner.policies())

    async def refresh(self, task: str) -> None:
        """A running task's row was changed by a person (budget, policies): its next decision sees it."""
        row = await self._store.find(task)
        if isinstance(row, Task) and task in self._tasks:
            self._tasks[task] = row

    def policies_changed(self) -> None:
        """Another set is in force: what it lacks of what tasks name is told."""
        for task in list(self._tasks.values()):
            self._tell_missing(task)

    def _tell_missing(self, task: Task) -> None:
        row = self._tasks.get(task.id, task)
        for sentence in self._policies_of(row).missing:
            if (task.id, sentence) not in self._missing:
                self._missing.add((task.id, sentence))
                self.note(task.id, "policy_missing", {"sentence": f"{sentence}; the next one in line holds instead."})

    async def _internal_error(self, task: Task, fault: BaseException) -> None:
        told = "".join(traceback.format_exception(fault))
        _log.error("internal_error", task=task.id, traceback=told)
        words = self._around.toolbox.redact(f"{type(fault).__name__}: {fault}")
        sentence = f"harnessd itself failed ({type(fault).__name__}); the operator was told. The history is kept."
        change = ChangeTask(
            verb=Verb.STOP,
            reason=StopReason.INTERNAL_ERROR,
            error_class=ErrorClass.INTERNAL_ERROR.value,
            sentence=sentence,
            next_steps=(("harnessctl", "logs", task.id), ("harnessctl", "retry", task.id)),
        )
        with contextlib.suppress(LeaseLost):
            await self._record(task, RecordEvent("internal_error", {"fault": words}), change)
        await self._around.toolbox.jobs.end_task(task.id)

    async def _record(self, task: Task, *records: Any) -> None:
        await self._around.journal.record(lease_of(task), records, self._around.clock.now())

    async def _beat(self) -> None:
        while self._serving and not self.lost.done():
            await asyncio.sleep(self._settings.heartbeat_s)
            await self._prolong()

    async def _prolong(self) -> bool:
        """All leases at once. False where the store took nothing: nobody else can take the tasks either."""
        leases = [lease_of(task) for task in self._tasks.values()]
        try:
            kept = await self.leases.prolong(leases)
        except HarnessError as lost:
            if not isinstance(lost, REFUSED_FOR_NOW):
                self.give_up(lost)
            return False
        for task in ({lease.task for lease in leases} - kept) & self._serving.keys():
            _log.warning("lease_lost", task=task, sentence="the lease ran out or was taken; the run is cut")
            self._serving[task].cancel()
        return True
