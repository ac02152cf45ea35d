"""Daemon: start, drain, signals, notices for systemd; keeps the workers alive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from harnessd.config.reload import Outcome
from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError, OutcomeUnknown, StorageFull, StoreLocked, StoreLost
from harnessd.domain.ports import Clock, History, Refused, Store
from harnessd.domain.task import TaskDraft
from harnessd.engine.protocol import StepDown
from harnessd.runtime import telemetry
from harnessd.runtime.control.live import Told
from harnessd.runtime.host.early_stop import early
from harnessd.runtime.host.systemd import ServiceManager
from harnessd.runtime.policies.in_force import Standing
from harnessd.runtime.policies.keeper import Keeper, Result
from harnessd.runtime.runner import Runner
from harnessd.runtime.worker import Pool

_log = telemetry.log("daemon")
_HEAR_S = 0.2  # between two looks for what other daemons queued
# Lost hints (a wake-up that fell between two commits) and expired leases are found by this sweep, and by it alone.
_SWEEP_S = 60.0
_telling: set[asyncio.Future[None]] = set()  # a task that nobody holds may be collected in the middle
_CONTROL_S = 5.0  # for open streams to say good-bye


class WallClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(slots=True)
class Facade:
    """The running daemon as the control API sees it; what it cannot know itself is handed in by app."""

    pool: Pool
    clock: Clock
    draft: Callable[[Mapping[str, Any]], TaskDraft | Refused]
    in_force: Callable[[TaskDraft, str | None], Mapping[str, Any]]
    facts: Callable[[], Mapping[str, Any]]
    keeper: Keeper
    reload: Callable[[Callable[[Outcome], Awaitable[Any]], bool], Awaitable[Any]]  # (who hears of it, yes)
    channel: Callable[[str, str], Awaitable[Mapping[str, Any] | Refused]]  # one message to try it: (name, by)
    window: Callable[[History], Mapping[str, Any] | Refused]  # what fills a task's window
    sources: Callable[[], Mapping[str, Any]] = dict  # which files are read, and what agents ask for
    _errands: set[asyncio.Task[None]] = field(default_factory=set)

    def wake(self) -> None:
        self.pool.wake()

    def tell(self, task: str, what: Told, by: str = "") -> None:
        runner = self.pool.running.get(task)
        if runner is None:
            return
        match what:
            case "cancel":
                runner.cancel(by)
            case "pause" | "pause_now":
                runner.step_down(StepDown(self.clock.now(), "pause", now=what == "pause_now"))
            case "unpause":
                runner.withdraw_pause()
            case "message":
                self._errand(self.pool.hear(task))
            case "policies":
                self._errand(self.pool.refresh(task))

    def lost(self, fault: HarnessError) -> None:
        self.pool.give_up(fault)

    def progress(self, task: str) -> Mapping[str, Any] | None:
        runner = self.pool.running.get(task)
        return None if runner is None else _progress(runner, self.clock)

    def status(self) -> Mapping[str, Any]:
        return {**self.facts(), "running": self.pool.busy, "draining": self.pool.draining}

    def check_draft(self, body: Mapping[str, Any]) -> TaskDraft | Refused:
        return self.draft(body)

    def effective(self, draft: TaskDraft, task: str | None) -> Mapping[str, Any]:
        return self.in_force(draft, task)

    def context(self, history: History) -> Mapping[str, Any] | Refused:
        return self.window(history)

    def policies(self) -> Mapping[str, Any]:
        return {**self.keeper.facts(), "guard": self.keeper.guard, **self.sources()}

    async def reload_policies(self, *, by: str, note: str, yes: bool, expect: str) -> Mapping[str, Any] | Refused:
        results: list[Result] = []

        async def hear(outcome: Outcome) -> None:
            results.append(await self.keeper.take(outcome, by=by, note=note, yes=yes, expect=expect))

        await self.reload(hear, yes)
        return results[-1].json() | {"facts": self.keeper.facts()}

    async def revert_policies(self, number: int, *, by: str, note: str) -> Mapping[str, Any] | Refused:
        done = await self.keeper.revert(number, by=by, note=note)
        return done if isinstance(done, Refused) else done.json()

    async def test_channel(self, name: str, *, by: str) -> Mapping[str, Any] | Refused:
        return await self.channel(name, by)

    def standing(self) -> Sequence[Mapping[str, Any]]:
        wishes, now = self.keeper.in_force.wishes, self.clock.now()
        return [_standing(one, now) | {"wishes": dict(wishes(one.task.draft.agent))} for one in self.pool.standing()]

    def _errand(self, work: Any) -> None:
        errand = asyncio.ensure_future(work)
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)


def _standing(one: Standing, now: float) -> dict[str, Any]:
    draft = one.task.draft
    return {
        "task": one.task.id,
        "agent": draft.agent,
        "workspace": draft.workspace,
        "labels": dict(draft.labels),
        "priority": draft.priority,
        "policies": dict(draft.policies),
        "budget": dict(draft.budget),
        "pinned_revision": draft.pinned_revision,
        "used": one.counters.used(max(0.0, now - one.task.submitted_at)),
        "warned": list(one.counters.warned),
    }


def _progress(runner: Runner, clock: Clock) -> dict[str, Any]:
    now = clock.monotonic()
    counters = runner.run.counters
    return {
        "doing": runner.life.doing,
        "phase": runner.run.state.value,
        "since": clock.now() - (now - runner.life.since),
        "life_s": round(now - runner.life.moved, 3),
        "until": counters.wait_until,
        "in_line": runner.life.in_line,
        "turns": counters.turns,
        "tool_calls": counters.tool_calls,
        "cost_usd": counters.cost_usd,
    }


@dataclass(frozen=True, slots=True)
class Parts:
    """What `serve` keeps alive."""

    store: Store
    pool: Pool
    clock: Clock
    manager: ServiceManager
    control: Callable[[asyncio.Event, Callable[[], None]], Awaitable[None]]  # (stop, started)
    reload: Callable[[], Awaitable[Any]]  # what SIGHUP asks for
    watch: Callable[[], Awaitable[None]]  # the policy files, until cancelled
    status_line: Callable[[], str]
    also: Sequence[Callable[[], Awaitable[None]]] = ()  # other helpers, each until cancelled
    drain_s: float = 60.0
    close: Callable[[], Awaitable[None]] | None = None
    ended: Callable[[], Awaitable[None]] | None = None  # called last, at a planned end only
    asked: Callable[[], bool] = lambda: early.asked  # SIGTERM came before there was a loop to hear it


async def serve(parts: Parts) -> int:
    """Run until SIGTERM or a lost store; gives the exit status of contracts.md."""
    stop = asyncio.Event()
    now = asyncio.Event()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    _on_signals(loop, stop, now, parts)
    hangups = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hangups.set)
    stop_control = asyncio.Event()
    control = asyncio.create_task(_as_coroutine(parts.control(stop_control, started.set)), name="control")
    pool = asyncio.create_task(parts.pool.run(), name="pool")
    helpers: list[asyncio.Task[None]] = [
        asyncio.create_task(_sweep(parts), name="sweep"),
        asyncio.create_task(_hear(parts), name="hear"),
        asyncio.create_task(_reload_on(hangups, parts), name="reload"),
        asyncio.create_task(_as_coroutine(parts.watch()), name="watch"),
        asyncio.create_task(_watchdog(parts), name="watchdog"),
        *(asyncio.create_task(_as_coroutine(helper()), name=helper.__qualname__) for helper in parts.also),
    ]
    for helper in helpers:
        helper.add_done_callback(partial(_tell_fault, parts))
    stopping = asyncio.create_task(stop.wait(), name="stop")
    helpers.append(asyncio.create_task(_say_ready(started, parts), name="ready"))
    planned = False
    try:
        watched: set[asyncio.Future[Any]] = {stopping, control, pool, parts.pool.lost}
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        fault = _fault_of(control, pool, parts.pool.lost)
        if fault is None:
            await _drain(parts, now)
            planned = True
        return _end(fault)
    finally:
        for task in (*helpers, stopping, pool):
            task.cancel()
        # With a lost store nothing can be recorded any more: what runs is ended before anything it needs is closed.
        await parts.pool.abandon()
        stop_control.set()
        await asyncio.wait({control}, timeout=_CONTROL_S)
        control.cancel()
        if parts.close is not None:
            await parts.close()
        if planned and parts.ended is not None:
            await parts.ended()
        await asyncio.gather(*helpers, stopping, pool, control, return_exceptions=True)


def _tell_fault(parts: Parts, done: asyncio.Task[None]) -> None:
    """A helper that fails is our bug; the daemon goes on without it, and says so. A lost store ends it."""
    if done.cancelled() or (fault := done.exception()) is None:
        return
    if isinstance(fault, (StoreLost, OutcomeUnknown)):
        parts.pool.give_up(fault)
    else:
        told = "".join(traceback.format_exception(fault))
        _log.error("internal_error", helper=done.get_name(), traceback=told)
        words = {"fault": f"{done.get_name()}: {type(fault).__name__}: {fault}", "helper": done.get_name()}
        telling = asyncio.ensure_future(_event(parts, EventType.INTERNAL_ERROR, words))
        _telling.add(telling)
        telling.add_done_callback(_telling.discard)


async def _event(parts: Parts, word: EventType, data: Mapping[str, Any]) -> None:
    with contextlib.suppress(HarnessError):  # a store that takes nothing any more is told by whoever needs it
        await parts.store.log(word, data, parts.clock.now())


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


def _on_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, now: asyncio.Event, parts: Parts) -> None:
    def asked() -> None:
        if stop.is_set():
            now.set()
        parts.manager.stopping(parts.drain_s + 10.0)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    if parts.asked():
        asked()


async def _say_ready(started: asyncio.Event, parts: Parts) -> None:
    await started.wait()
    parts.manager.ready(parts.status_line())
    _log.info("ready", pid=os.getpid(), status=parts.status_line())


async def _drain(parts: Parts, now: asyncio.Event) -> None:
    begun, running = parts.clock.monotonic(), parts.pool.busy
    _log.info("draining", running=running, timeout_s=parts.drain_s)
    await _event(parts, EventType.DRAINING, {"running": running, "timeout_s": parts.drain_s})
    drain = asyncio.create_task(parts.pool.drain(parts.drain_s))
    hurry = asyncio.create_task(now.wait())
    both: set[asyncio.Future[Any]] = {drain, hurry}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not drain.done():
        drain.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drain
        await parts.pool.drain(0.0)
    hurry.cancel()
    cut = [] if drain.cancelled() else drain.result()
    _log.info("drained", cut=cut if not drain.cancelled() else "at once, as asked")
    took_s = round(parts.clock.monotonic() - begun, 1)
    many = f"{running} task{'s' * (running != 1)}"
    sentence = f"{many} handed back in {took_s} s, {len(cut)} of them cut." if running else "Nothing was running."
    await _event(parts, EventType.DRAINED, {"running": running, "cut": cut, "took_s": took_s, "sentence": sentence})


def _fault_of(*watched: asyncio.Future[Any]) -> BaseException | None:
    for future in watched:
        if not future.done() or future.cancelled():
            continue
        if (fault := future.exception()) is not None:
            return fault
        if isinstance(result := future.result(), BaseException):
            return result
    return None


def _end(fault: BaseException | None) -> int:
    if fault is None:
        return 0
    if isinstance(fault, HarnessError):
        _log.error("stopped", sentence=fault.sentence, remedy=fault.remedy)
        return fault.exit_code
    raise fault


async def _sweep(parts: Parts) -> None:
    while True:
        await asyncio.sleep(_SWEEP_S)
        with contextlib.suppress(StorageFull, StoreLocked):
            await parts.pool.sweep()
        parts.pool.wake()


async def _hear(parts: Parts) -> None:
    """Where several daemons share the store, another one's commit may leave something to claim here."""
    while hasattr(parts.store, "store_nodes"):
        await parts.store.wait_queued()
        parts.pool.wake()
        await asyncio.sleep(_HEAR_S)
    await asyncio.Event().wait()


async def _reload_on(hangups: asyncio.Event, parts: Parts) -> None:
    while True:
        await hangups.wait()
        hangups.clear()
        parts.manager.reloading()
        await parts.reload()
        parts.manager.ready(parts.status_line())


async def _watchdog(parts: Parts) -> None:
    """Ping systemd from the loop that does the work: a blocked loop must look dead."""
    if parts.manager.watchdog_s is None:
        return
    while True:
        parts.manager.alive()
        await asyncio.sleep(parts.manager.watchdog_s)
