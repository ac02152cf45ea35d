"""Runner: record, act, record; drives one Run to its end. Dull on purpose: every choice was made in the engine."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from harnessd.domain.effect import canonical_json
from harnessd.domain.failure import ErrorClass, Failure, LeaseLost
from harnessd.domain.ports import Clock
from harnessd.domain.record import PersonMessage, Record
from harnessd.domain.task import Lease, Task
from harnessd.engine.machine import Run
from harnessd.engine.protocol import (
    Act,
    CallModel,
    CallTool,
    CancelCalls,
    Cancelled,
    CheckpointFailed,
    Event,
    Finish,
    HandBack,
    ModelFailed,
    ModelReplied,
    PauseWithdrawn,
    PersonSaid,
    StepDown,
    TakeCheckpoint,
    ToolFailed,
    ToolReturned,
    Wait,
    WaitElapsed,
)
from harnessd.policy import TaskPolicies
from harnessd.runtime import telemetry
from harnessd.runtime.crashpoints import Crashpoint, before, nowhere
from harnessd.runtime.gateway import Gateway
from harnessd.runtime.host.disk import NoRoom, Recorder, Room
from harnessd.runtime.toolbox import Toolbox
from harnessd.runtime.traffic.caller import Caller
from harnessd.runtime.traffic.hedge import IN_LINE, SENT
from harnessd.runtime.workspaces.looking import CANCELLED, Looker

_log = telemetry.log("runner")
_CUT_S = 10.0  # a tool's cancellation ends everything it started within 2 s
_SAID_MAX = 20_000  # characters of a call's arguments that are kept
_ACTS = (CallModel, CallTool, TakeCheckpoint, CancelCalls, Wait, HandBack, Finish)


@dataclass(slots=True)
class Life:
    """Signs of life of a run: what it does, since when, and when something last moved (monotonic seconds)."""

    doing: str = ""
    since: float = 0.0
    moved: float = 0.0
    in_line: bool = False  # a limit holds the model call back: nobody was asked yet


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every runner of a daemon shares."""

    journal: Recorder
    gateway: Gateway
    toolbox: Toolbox
    clock: Clock
    luck: Callable[[], float] = random.random
    room: Room = field(default_factory=NoRoom)
    crashpoint: Crashpoint = nowhere
    watching: Callable[[], None] = lambda: None  # called when a call begins
    looker: Looker | None = None


@dataclass(slots=True)
class Runner:
    """One lease's work. `work` returns the last command; LeaseLost and StoreLost come through as they are."""

    task: Task
    lease: Lease
    run: Run
    around: Surroundings
    policies: Callable[[], TaskPolicies]
    life: Life = field(default_factory=Life)
    _events: asyncio.Queue[Event | BaseException] = field(default_factory=asyncio.Queue)
    _calls: dict[str, asyncio.Task[Event]] = field(default_factory=dict)
    _ending: set[str] = field(default_factory=set)
    _heard: set[int] = field(default_factory=set)
    _watched: dict[str, float] = field(default_factory=dict)
    _tools_begun: set[str] = field(default_factory=set)
    _tools_ended: float = -1e9
    _said: deque[str] = field(default_factory=lambda: deque(maxlen=8))  # what the newest tool calls asked for
    _silent: dict[str, str] = field(default_factory=dict)
    _silent_since: dict[str, float] = field(default_factory=dict)  # call -> when it was told to end (monotonic)
    _acts: dict[str, Act] = field(default_factory=dict)
    _left_behind: set[asyncio.Task[Event]] = field(default_factory=set)  # calls that nobody waits for any more
    _stepping_since: float | None = None

    def __post_init__(self) -> None:
        """A run that is taken up in a wait does nothing new: it lives since now, not since the machine's start."""
        self.life.since = self.life.moved = self.around.clock.monotonic()

    async def work(self, first: Event) -> HandBack | Finish:
        """Feed events to the run until it is over."""
        try:
            event: Event | BaseException = first
            while True:
                if isinstance(event, BaseException):
                    raise event
                last = await self._step(event)
                if last is not None:
                    return last
                event = await self._events.get()
        finally:
            await self._cut()

    def know(self, heard: frozenset[int]) -> None:
        """The persons' words that the restored run already holds."""
        self._heard |= heard

    def hear(self, message: PersonMessage, ended_jobs: Mapping[str, int] | None = None) -> None:
        """A person said something, or a job ended."""
        if message.id not in self._heard:
            self._heard.add(message.id)
            self._events.put_nowait(PersonSaid(self.around.clock.now(), message, ended_jobs or {}))

    def cancel(self, by: str) -> None:
        """A person wants the task to end."""
        self._events.put_nowait(Cancelled(self.around.clock.now(), by))

    def withdraw_pause(self) -> None:
        """A person takes a pause back before it was obeyed."""
        self._events.put_nowait(PauseWithdrawn(self.around.clock.now()))

    def step_down(self, event: StepDown) -> None:
        """Drain or pause."""
        self._events.put_nowait(event)

    def tools_ran(self, within_s: float) -> bool:
        """A tool of the task runs, or ended less than this long ago."""
        return bool(self._tools_begun) or self.around.clock.monotonic() - self._tools_ended < within_s

    def named_lately(self, names: Collection[str], within_s: float) -> bool:
        """A tool call that ran within this time names one of these in its arguments."""
        return self.tools_ran(within_s) and any(name in words for words in self._said for name in names)

    @property
    def watched(self) -> Mapping[str, float]:
        """The tool calls under way that have a limit of silence, in seconds."""
        return self._watched

    def end_silent(self, call: str, silent_s: float) -> None:
        """End a call that shows no life any more; it comes back as a timeout like any other."""
        if call not in self._watched or call not in self._calls or call in self._ending:
            return
        words = f"silent for {silent_s:.0f} s: no output and no CPU time in its whole process tree; it was ended"
        del self._watched[call]
        self._end_as_silent(call, words)

    @property
    def model_silence(self) -> tuple[str, float] | None:
        """The model call that was sent and is under way, and the seconds since it showed anything."""
        for call, act in self._acts.items():
            if isinstance(act, CallModel) and call in self._calls and not self.life.in_line:
                return act.request.model, self.around.clock.monotonic() - self.life.moved
        return None

    def end_silent_model(self, silent_s: float) -> None:
        """End a model call that its own clocks did not end; it comes back as a timeout like any other."""
        for call, act in list(self._acts.items()):
            if isinstance(act, CallModel) and call in self._calls and call not in self._silent:
                self._end_as_silent(call, f"silent for {silent_s:.0f} s, beyond its own clocks; it was ended")

    def unanswered(self, after_s: float) -> list[str]:
        """The calls that were told to end so long ago and did not come back."""
        now = self.around.clock.monotonic()
        return [call for call, since in self._silent_since.items() if call in self._calls and now - since >= after_s]

    def end_turn(self, call: str) -> None:
        """The second rung: go on without a call that does not even end. What it still does is not heard."""
        task, act = self._calls.pop(call), self._acts.pop(call)
        self._silent_since.pop(call, None)
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)
        self._events.put_nowait(self._cancelled(act, begun=True))

    @property
    def stuck_s(self) -> float:
        """How long the step under way takes already, in seconds; 0 between steps."""
        return 0.0 if self._stepping_since is None else self.around.clock.monotonic() - self._stepping_since

    def _end_as_silent(self, call: str, words: str) -> None:
        self._silent[call] = words
        self._silent_since[call] = self.around.clock.monotonic()
        _log.warning("rung", task=self.task.id, call=call, rung="cancel the call", words=words)
        self._calls[call].cancel()

    async def _step(self, event: Event) -> HandBack | Finish | None:
        self._stepping_since = self.around.clock.monotonic()
        try:
            return await self._take_step(event)
        finally:
            self._stepping_since = None

    async def _take_step(self, event: Event) -> HandBack | Finish | None:
        policies = self.policies()
        commands = self.run.receive(event, policies)
        records: tuple[Record, ...] = tuple(c for c in commands if not isinstance(c, _ACTS))
        acts: tuple[Act, ...] = tuple(c for c in commands if isinstance(c, _ACTS))
        if records:
            before(records, self.around.crashpoint)
            await self.around.journal.record(self.lease, records, self.around.clock.now(), policies.revision)
        self._alive(self.run.doing)
        last: HandBack | Finish | None = None
        for act in acts:
            last = self._perform(act) or last
        return last

    def _perform(self, act: Act) -> HandBack | Finish | None:
        match act:
            case CallModel():
                self._spawn(act.call, self._model(act), act)
            case CallTool():
                self._tools_begun.add(act.call)
                self._said.append(canonical_json(dict(act.arguments))[:_SAID_MAX])
                self._spawn(act.call, self._tool(act), act)
            case TakeCheckpoint():
                self._spawn(act.call, self._look(act), act)
            case Wait(until):
                self._spawn("wait", self._wait(until), act)
            case CancelCalls(calls):
                self._end_calls(calls)
            case HandBack() | Finish():
                return act
            case _ as never:
                assert_never(never)
        return None

    def _spawn(self, call: str, work: Coroutine[Any, Any, Event], act: Act) -> None:
        task = asyncio.create_task(work, name=f"{self.task.id} {call}")
        self._calls[call], self._acts[call] = task, act
        self.around.watching()
        task.add_done_callback(lambda done: self._done(call, act, done))

    def _done(self, call: str, act: Act, done: asyncio.Task[Event]) -> None:
        if self._calls.get(call) is not done:
            return  # its turn was ended without it
        del self._calls[call], self._acts[call]
        self._silent_since.pop(call, None)
        self._watched.pop(call, None)
        if call in self._tools_begun:
            self._tools_begun.discard(call)
            self._tools_ended = self.around.clock.monotonic()
        if done.cancelled():
            # Cancelled before its first step, a coroutine never sees it; the one event is owed all the same.
            if call in self._ending or call in self._silent:
                self._events.put_nowait(self._cancelled(act))
        elif (fault := done.exception()) is not None:
            # A tool or provider that raises is our bug (R1.2): it ends the run, and never becomes a result.
            self._events.put_nowait(fault)
        else:
            self._events.put_nowait(done.result())

    def _cancelled(self, act: Act, *, begun: bool = False, output: str = "") -> Event:
        now, words = self.around.clock.now(), "a person cancelled it"
        if isinstance(act, CallTool) and act.call in self._silent:
            return ToolFailed(now, act.call, self._silence(act, begun=begun, output=output), self.around.luck())
        if isinstance(act, CallTool):
            failure = Failure("tool", f"tool/{act.tool}", words, cancelled=True, effect_begun=begun, output=output)
            return ToolFailed(now, act.call, failure)
        if isinstance(act, TakeCheckpoint):
            return CheckpointFailed(now, CANCELLED, cancelled=True)
        if isinstance(act, CallModel) and act.call in self._silent:
            dependency = f"model/{act.request.model}"
            failure = Failure("model", dependency, self._silent.pop(act.call), transport="read_timeout")
            return ModelFailed(now, act.call, failure, self.around.luck())
        if isinstance(act, CallModel):
            return ModelFailed(now, act.call, Failure("model", f"model/{act.request.model}", words, cancelled=True))
        return WaitElapsed(now)

    def _silence(self, act: CallTool, *, begun: bool, output: str) -> Failure:
        return Failure(
            "tool",
            f"tool/{act.tool}",
            self._silent.pop(act.call),
            hint=ErrorClass.TIMEOUT,
            effect_begun=begun,
            output=output,
            advice="Find out what it waits for: it may have asked for input, or for a lock.",
        )

    def _end_calls(self, calls: tuple[str, ...]) -> None:
        for call in calls:
            self._ending.add(call)
            task = self._calls.get(call)
            if task is not None:
                task.cancel()

    async def _model(self, act: CallModel) -> Event:
        around = self.around
        try:
            if act.keep:
                await asyncio.to_thread(around.toolbox.keep, self.task, act.keep)
            # A link that takes over is asked for the first time: what failed elsewhere is no retry of it.
            here = self.run.counters.tries_of.get(act.request.model, 0) + 1
            caller = Caller.of(self.task, act.call, self.policies(), here)
            answer = await around.gateway.call(act.request, self._model_moves, caller)
        except asyncio.CancelledError:
            if act.call not in self._ending and act.call not in self._silent:
                raise
            return self._cancelled(act)
        now = around.clock.now()
        if isinstance(answer, Failure):
            self._tell(answer)
            health = around.gateway.health(act.request.model)
            return ModelFailed(now, act.call, answer, around.luck(), health.median_first_event_s, health.may_retry)
        return ModelReplied(now, act.call, answer, tuple(around.toolbox.jobs.owed(self.task.id)))

    async def _tool(self, act: CallTool) -> Event:
        around = self.around

        def begun() -> None:
            if act.limits.silence_s is not None:
                self._watched[act.call] = act.limits.silence_s
                around.watching()

        try:
            caller = Caller.of(self.task, act.call, self.policies())
            outcome = await around.toolbox.perform(self.task, act, caller, begun)
        except asyncio.CancelledError:
            if act.call not in self._ending and act.call not in self._silent:
                raise
            output = await asyncio.to_thread(around.toolbox.partial, self.task, act)
            return self._cancelled(act, begun=True, output=output)
        now = around.clock.now()
        if isinstance(outcome, Failure):
            return ToolFailed(now, act.call, outcome, around.luck())
        return ToolReturned(now, act.call, outcome)

    async def _look(self, act: TakeCheckpoint) -> Event:
        looker = self.around.looker
        if looker is None:
            return CheckpointFailed(self.around.clock.now(), "this daemon takes no checkpoints")
        try:
            return await looker.look(self.task, act)
        except asyncio.CancelledError:
            if act.call not in self._ending:
                raise
            return self._cancelled(act)

    def _tell(self, failure: Failure) -> None:
        """A failed attempt in the daemon's log; what was decided about it is an event of the task."""
        facts = {
            "dependency": failure.dependency,
            "status": failure.status,
            "code": failure.code or failure.type or failure.transport or failure.ended,
            "hint": failure.hint,
        }
        kind = ("model_failed", *facts.values())
        known = {name: value for name, value in facts.items() if value is not None}
        words, request = failure.message[:300], failure.request_id
        _log.warning("model_failed", kind=kind, task=self.task.id, **known, request=request, words=words)

    async def _wait(self, until: float) -> Event:
        await asyncio.sleep(max(0.0, until - self.around.clock.now()))
        return WaitElapsed(max(until, self.around.clock.now()))

    def _model_moves(self, word: str) -> None:
        in_line = word == IN_LINE
        self.life.in_line = in_line
        if in_line or word == SENT:
            self.life.since = self.around.clock.monotonic()  # the clock of what is waited for begins again
        self._alive()

    def _alive(self, doing: str | None = None) -> None:
        now = self.around.clock.monotonic()
        self.life.moved = now
        if doing is not None and doing != self.life.doing:
            self.life.doing, self.life.since = doing, now

    async def _cut(self) -> None:
        """End what is still under way, without a word in the journal: as after a crash, but with no process left."""
        left = [*self._calls.values(), *self._left_behind]
        for task in left:
            task.cancel()
        if left:
            # One that does not end holds nobody: the task's lease, not its coroutine, says who may write.
            await asyncio.wait(left, timeout=_CUT_S)


def lease_of(task: Task) -> Lease:
    """The lease under which a claimed task is worked on."""
    if task.lease is None:
        raise LeaseLost(f"task {task.id} was claimed without a lease")
    return task.lease
