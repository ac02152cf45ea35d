"""The shell in these tests: records, then keeps the acts under way until the test says how they end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import Failure
from harnessd.domain.messages import ModelReply, ToolResultBlock
from harnessd.domain.ports import ToolOutcome
from harnessd.domain.record import Record
from harnessd.domain.session import Node, NodeKind, assistant_message, blocks_of
from harnessd.domain.task import TaskState, Verb
from harnessd.domain.workspace import TakenCheckpoint
from harnessd.engine.machine import Run
from harnessd.engine.protocol import (
    CallModel,
    CallTool,
    CancelCalls,
    Cancelled,
    CheckpointFailed,
    CheckpointTaken,
    Command,
    Event,
    Finish,
    HandBack,
    ModelFailed,
    ModelReplied,
    PersonSaid,
    Resumed,
    RunBrief,
    RunState,
    StepDown,
    TakeCheckpoint,
    TaskLeased,
    ToolFailed,
    ToolReturned,
    Wait,
    WaitElapsed,
)
from harnessd.policy import TaskPolicies
from tests.engine.ledger import Ledger
from tests.engine.scenery import BRIEF, illegal, policies

ACTS = (CallModel, CallTool, TakeCheckpoint, CancelCalls, Wait, HandBack, Finish)


@dataclass
class Desk:
    """Drives one task, over all its leases and crashes."""

    rules: TaskPolicies = field(default_factory=policies)
    brief: RunBrief = BRIEF
    now: float = 1_000.0
    ledger: Ledger = field(default_factory=Ledger)
    run: Run = field(init=False)
    under_way: dict[str, CallModel | CallTool | TakeCheckpoint] = field(default_factory=dict)
    asked_to_end: set[str] = field(default_factory=set)
    wait: Wait | None = None
    last: HandBack | Finish | None = None
    performed: list[CallTool] = field(default_factory=list)
    requests: list[CallModel] = field(default_factory=list)
    sound: bool = True  # the last event was answered as it should be

    def __post_init__(self) -> None:
        """A queued task; no worker yet."""
        self.run = Run.restore(self.brief)

    # --- leases ---------------------------------------------------------------------------------------------------

    def lease(self, *before: Event) -> tuple[Command, ...]:
        """A worker takes the task and goes on from what was recorded; `before` is heard ahead of the first step."""
        self.ledger.move(Verb.CLAIM)
        self.under_way, self.asked_to_end, self.wait, self.last = {}, set(), None, None
        path = self.ledger.path
        brief = replace(self.brief, recoveries=self.ledger.recoveries)
        self.run = Run.restore(brief, path, self.ledger.journal(), self.ledger.counters)
        for event in before:
            assert self.run.receive(event, self.rules) == ()
        return self.feed(Resumed(self.now) if path else TaskLeased(self.now))

    def crash(self) -> None:
        """kill -9: what was not recorded is gone."""
        assert self.ledger.state is TaskState.RUNNING
        self.ledger.interrupt()

    def crash_and_lease(self) -> tuple[Command, ...]:
        """kill -9, and the next worker."""
        self.crash()
        return self.lease()

    def return_to_work(self, verb: Verb = Verb.RESUME) -> tuple[Command, ...]:
        """A person, or the clock, queues the task again and a worker takes it."""
        self.ledger.move(verb)
        return self.lease()

    # --- events ---------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> tuple[Command, ...]:
        """Record, act: the order is proved on every answer."""
        assert self.last is None
        self.sound = False
        commands = self.run.receive(event, self.rules)
        records: list[Record] = [c for c in commands if not isinstance(c, ACTS)]
        acts = [c for c in commands if isinstance(c, ACTS)]
        assert list(commands) == [*records, *acts], "records come before acts"
        if records:
            self.ledger.commit(records, self.now)
        for place, act in enumerate(acts):
            self._perform(act, is_last=place == len(acts) - 1)
        self._check_state()
        self.sound = True
        return commands

    def _perform(self, act: Command, *, is_last: bool) -> None:
        match act:
            case CallModel():
                assert not self.under_way
                assert self.ledger.effects[act.call].state.open, "the intent is durable before the act"
                assert illegal(act.request.messages) == ""
                self.under_way[act.call] = act
                self.requests.append(act)
            case CallTool():
                self._start(act)
            case TakeCheckpoint():
                assert not self.under_way, "a look at the workspace stands alone"
                self.under_way[act.call] = act
            case CancelCalls(ended):
                assert set(ended) == set(self.under_way)
                self.asked_to_end |= set(ended)
            case Wait():
                assert not self.under_way
                self.wait = act
            case HandBack() | Finish():
                assert is_last
                assert not self.under_way
                self.last = act
            case _:
                raise AssertionError(act)

    def _start(self, act: CallTool) -> None:
        effect = self.ledger.effects[act.call]
        assert effect.state.open, "the intent is durable before the act"
        assert effect.key == act.key
        beside = [self.ledger.effects[call].effect_class for call in self.under_way]
        if beside:
            assert {effect.effect_class, *beside} == {EffectClass.READ_ONLY}, "only readers run side by side"
        self.under_way[act.call] = act
        self.performed.append(act)

    def _check_state(self) -> None:
        over = self.run.state is RunState.OVER
        assert over == (self.last is not None)
        assert over == (self.ledger.state is not TaskState.RUNNING), "the task's row moves with the run's end"
        if over:
            assert not any(effect.state.open for effect in self.ledger.effects.values())
        if isinstance(self.last, Finish):
            assert self.ledger.state.ended
            assert self.ledger.last_move.sentence
            assert self.ledger.last_move.next_steps
        else:
            assert not self.ledger.state.ended

    # --- short forms ----------------------------------------------------------------------------------------------

    @property
    def call(self) -> str:
        """The one call under way."""
        (call,) = self.under_way
        return call

    def stands(self) -> TaskState:
        """The task's state."""
        return self.ledger.state

    def effect_of(self, place: int) -> str:
        """The effect id of the call under way at this place of the reply."""
        return next(call for call, act in self.under_way.items() if getattr(act, "call_id", "").endswith(str(place)))

    def replied(self, answer: ModelReply) -> tuple[Command, ...]:
        """The model answers."""
        call = self.call
        self.under_way.pop(call)
        return self.feed(ModelReplied(self.now, call, answer))

    def model_failed(self, failure: Failure, luck: float = 0.0) -> tuple[Command, ...]:
        """The model's attempt fails."""
        call = self.call
        self.under_way.pop(call)
        return self.feed(ModelFailed(self.now, call, failure, luck))

    def returned(self, text: str = "ok", call: str | None = None, **about: object) -> tuple[Command, ...]:
        """A tool answers."""
        call = call or self.call
        self.under_way.pop(call)
        outcome = ToolOutcome(text, **about)  # type: ignore[arg-type]
        return self.feed(ToolReturned(self.now, call, outcome))

    def failed(self, failure: Failure, call: str | None = None, luck: float = 0.0) -> tuple[Command, ...]:
        """A tool's call fails."""
        call = call or self.call
        self.under_way.pop(call)
        return self.feed(ToolFailed(self.now, call, failure, luck))

    def looked(self, manifest: str, *, changed: int = 1) -> tuple[Command, ...]:
        """The workspace was captured."""
        self.under_way.pop(self.call)
        taken = TakenCheckpoint(manifest, changed, root="/w", uncovered=())
        return self.feed(CheckpointTaken(self.now, taken))

    def not_looked(self, sentence: str, *, cancelled: bool = False) -> tuple[Command, ...]:
        """The workspace could not be captured."""
        self.under_way.pop(self.call)
        return self.feed(CheckpointFailed(self.now, sentence, cancelled))

    def waited(self) -> tuple[Command, ...]:
        """The backoff is over."""
        assert self.wait is not None
        self.now, self.wait = max(self.now, self.wait.until), None
        return self.feed(WaitElapsed(self.now))

    def cancel(self, by: str = "") -> tuple[Command, ...]:
        """A person cancels."""
        return self.feed(Cancelled(self.now, by))

    def step_down(self, why: str = "drain", *, now: bool = False) -> tuple[Command, ...]:
        """Drain or pause."""
        return self.feed(StepDown(self.now, "pause" if why == "pause" else "drain", now))

    def hear(self, text: str) -> tuple[Command, ...]:
        """A person says something."""
        return self.feed(PersonSaid(self.now, self.ledger.say(text, self.now)))

    def results(self) -> list[ToolResultBlock]:
        """All results on the path, in order."""
        return results_of(self.ledger.path)

    def texts(self, kind: NodeKind) -> list[str]:
        """The words of all nodes of a kind on the path."""
        found = [node for node in self.ledger.path if node.kind is kind]
        return [str(getattr(block, "text", "")) for node in found for block in blocks_of(node)]


def results_of(path: Sequence[Node]) -> list[ToolResultBlock]:
    """All results on a path, in order."""
    found = [block for node in path if node.kind is NodeKind.TOOL_RESULT for block in blocks_of(node)]
    return [block for block in found if isinstance(block, ToolResultBlock)]


def unpaired(path: Sequence[Node]) -> list[str]:
    """The calls on a path that have no result, or more than one."""
    wrong: list[str] = []
    wanted: list[str] = []
    given: list[str] = []

    def close() -> None:
        wrong.extend(call for call in {*wanted, *given} if wanted.count(call) != 1 or given.count(call) != 1)

    for node in path:
        if node.kind is NodeKind.ASSISTANT:
            close()
            wanted, given = [call.id for call in assistant_message(node).tool_uses], []
        elif node.kind is NodeKind.TOOL_RESULT:
            given += [block.tool_use_id for block in blocks_of(node) if isinstance(block, ToolResultBlock)]
    close()
    return wrong
