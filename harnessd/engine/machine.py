"""The machine: Run.receive(event, policies) -> commands; Run.restore(path, journal, counters)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from harnessd.domain.decision import Decision, NeedsHuman
from harnessd.domain.effect import EffectState
from harnessd.domain.failure import ErrorClass, IllegalEvent
from harnessd.domain.jobs import OwedJob
from harnessd.domain.record import FreezeSystem
from harnessd.domain.session import Node, NodeKind, user_payload
from harnessd.domain.task import Counters, StopReason
from harnessd.engine import answering, asking, ending, recovering, roles, streaks
from harnessd.engine.protocol import (
    TRANSITIONS,
    CancelCalls,
    Cancelled,
    CheckpointFailed,
    CheckpointTaken,
    Command,
    Event,
    ModelFailed,
    ModelReplied,
    PauseWithdrawn,
    PersonSaid,
    Resumed,
    RunBrief,
    RunState,
    StepDown,
    TaskLeased,
    ToolFailed,
    ToolReturned,
    Wait,
    WaitElapsed,
)
from harnessd.engine.situation import Ending, JournalView, Situation, situation_of
from harnessd.engine.tool_calls import background, calling, checkpointing
from harnessd.policy import TaskPolicies


@dataclass(slots=True)
class Run:
    """One lease's work on a task. Holds no clock, no loop, no file; everything it knows came in by events."""

    _s: Situation

    @classmethod
    def restore(
        cls,
        brief: RunBrief,
        path: tuple[Node, ...] = (),
        journal: JournalView | None = None,
        counters: Counters | None = None,
    ) -> Run:
        """The run at its last durable step; go on with `receive(Resumed)`, or with TaskLeased if it never ran."""
        s = situation_of(brief, path, journal or JournalView(), counters or Counters())
        # Calls that are open were asked for under the roles that the model knew of then.
        s.brief = roles.worn(brief, roles.told(s) if s.pending else s.counters.roles)
        return cls(s)

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self._s.state

    @property
    def counters(self) -> Counters:
        """What the task has used."""
        return self._s.counters

    @property
    def acting(self) -> str:
        """The agent that stands in for the task's own; empty where none does."""
        return self._s.brief.acting

    @property
    def doing(self) -> str:
        """One line for people on what is under way."""
        return self._s.doing

    def receive(self, event: Event, policies: TaskPolicies) -> tuple[Command, ...]:
        """Answer an event with commands, records first.

        Raises IllegalEvent where TRANSITIONS has no entry; the run is then as it was.
        """
        s = self._s
        allowed = TRANSITIONS[s.state].get(type(event))
        if allowed is None:
            raise IllegalEvent(f"{type(event).__name__} in state {s.state.value}")
        if s.state is RunState.OVER:
            return ()
        if isinstance(event, (ModelReplied, ModelFailed, ToolReturned, ToolFailed)):
            self._expect(event)
        s.policies = policies
        s.pass_time(event.at)
        self._handle(event)
        if s.state not in allowed:
            raise IllegalEvent(f"{type(event).__name__} led to {s.state.value}, which the table does not allow")
        return s.take_commands()

    def _expect(self, event: ModelReplied | ModelFailed | ToolReturned | ToolFailed) -> None:
        in_flight = self._s.in_flight
        if event.call not in in_flight:
            raise IllegalEvent(f"{type(event).__name__} for {event.call}, which is not in flight")
        if isinstance(event, (ModelReplied, ModelFailed)) != (in_flight[event.call] is None):
            raise IllegalEvent(f"{type(event).__name__} for {event.call}, which is another kind of call")

    def _handle(self, event: Event) -> None:
        s = self._s
        match event:
            case TaskLeased() | Resumed():
                self._begin()
            case ModelReplied():
                # An answer alone is no way past the interruption: it may ask for the same deadly call again.
                del s.in_flight[event.call]
                last_word = asking.replied(s, event)
                self._go_on(last_word=last_word, jobs=event.jobs)
            case ModelFailed():
                self._model_failed(event)
            case ToolReturned() | ToolFailed():
                s.count(recoveries_seen=s.brief.recoveries)
                calling.came_back(s, event)
                self._border()
            case CheckpointTaken() | CheckpointFailed():
                checkpointing.came_back(s, event)
                self._border()
            case WaitElapsed():
                self._go_on()
            case Cancelled(_, by):
                self._cancel(by)
            case StepDown() | PauseWithdrawn():
                self._step_down(event)
            case PersonSaid():
                self._hear(event)
            case _ as never:
                assert_never(never)

    def _hear(self, event: PersonSaid) -> None:
        s = self._s
        s.mail.append(event.message)
        s.ended_jobs |= event.ended_jobs
        if s.state is not RunState.NEW:
            background.settle(s)

    def _begin(self) -> None:
        s = self._s
        if not s.path:
            s.records.append(FreezeSystem(s.brief.system))
            s.append(NodeKind.USER, user_payload(s.brief.prompt))
        for effect in list(s.effects.values()):
            if effect.kind == "model" and effect.state.open:
                # Sent or not, nobody can say: the reservation counts as spent (I8), and the call is made again.
                spent = float((effect.arguments or {}).get("reserved_usd", 0.0))
                s.settle(effect.id, EffectState.UNKNOWN, message="interrupted by a restart")
                s.count(cost_usd=s.counters.cost_usd + spent, reserved_usd=0.0)
        background.settle(s)
        if s.ending is None:
            calling.take_up(s)
            self._hear_answer()
            self._mind_recoveries()
        until = s.counters.wait_until
        if until is not None and until > s.at and s.ending is None and s.step_down is None:
            s.acts.append(Wait(until))
            s.state = RunState.BACKOFF
            return
        self._go_on()

    def _hear_answer(self) -> None:
        """The answer to a question about the task as a whole, at the node where it stands.

        It becomes a node, as every word of a person does: the head moves on, and the answer is not heard twice.
        """
        s = self._s
        question = s.questions.get(asking.question_id(s))
        if question is None:
            return
        if question.choice is None:
            unanswered = question.until is not None and question.until <= s.at
            # To queue the task again without a word is an answer too.
            heard = "did not answer in time" if unanswered else "sent the task on without a word"
            s.append(NodeKind.NOTICE, user_payload(f"A person was asked how to go on, and {heard}."))
            if unanswered:
                s.ending = ending.unanswered(question.sentence)
            s.count(recoveries_seen=s.brief.recoveries)
            return
        said = f" They say: {question.say}" if question.say else ""
        interrupted = streaks.recoveries(s) > s.rules.escalation.shape.recoveries
        s.append(NodeKind.NOTICE, user_payload(f"A person was asked how to go on, and chose {question.choice}.{said}"))
        s.person_acts()
        s.count(tries=0, tries_of={}, episode_at=None, episode_parked_s=0.0)
        if question.choice == "stop" and interrupted:  # the cause is no wish of theirs
            words = f"{question.sentence} A person let it end there. {question.say}"
            s.ending = Ending(StopReason.INTERRUPTED, words.strip(), error_class=ErrorClass.HANG.value)
        elif question.choice == "stop":
            s.ending = Ending(StopReason.ABORTED, f"A person stopped it. {question.say}".strip())
        elif question.choice == "rollback":
            recovering.chosen(s, said)

    def _mind_recoveries(self) -> None:
        """After too many recoveries of one interruption a person is asked before anything runs again (R6.1a)."""
        s = self._s
        times, limit = streaks.recoveries(s), s.rules.escalation.shape.recoveries
        if times <= limit or s.ending is not None:
            return
        sentence = f"The task was interrupted {times} times at the same step, and was not taken up again by itself."
        s.say("recovery_stopped", times=times, limit=limit, sentence=sentence)
        rule = s.rules.escalation.ref("recoveries")
        remedy, about = NeedsHuman(sentence), {"recoveries": times, "limit": limit}
        s.decide(Decision(remedy, ErrorClass.HANG.value, rule, evidence=about))
        s.count(asking=sentence)

    def _model_failed(self, event: ModelFailed) -> None:
        s = self._s
        del s.in_flight[event.call]
        if event.failure.cancelled or s.ending is not None:
            s.settle(event.call, EffectState.FAILED, message=event.failure.message[:500])
            asking.spend(s, event.failure.usage, asking.alias_of(s, event.call))
            self._go_on()
        else:
            self._decided(further=asking.failed(s, event))

    def _decided(self, *, further: bool) -> None:
        """What a decision about a model call led to: the next call at once, a wait, or an end."""
        s = self._s
        if further:
            self._go_on()
        elif s.state is RunState.BACKOFF and s.step_down is not None:
            # The worker is wanted back: whoever goes on waits out the rest.
            s.acts.clear()
            ending.step_down(s)

    def _border(self) -> None:
        """After a tool call: others of its group may still be under way."""
        if self._s.state is RunState.OVER or self._s.in_flight:
            return
        self._go_on()

    def _go_on(self, *, last_word: bool = False, jobs: tuple[OwedJob, ...] = ()) -> None:
        """Nothing is in flight: end, hand back, start the next calls, or begin the next turn."""
        s = self._s
        if s.ending is not None:
            ending.end(s, s.ending)
        elif checkpointing.after(s):
            pass
        elif s.rolling:
            recovering.begin(s)
        elif last_word and jobs and not s.counters.last_turn:
            ending.wait_for_jobs(s, jobs)
        elif last_word:
            self._complete()
        elif s.step_down is not None and s.asking is None:
            ending.step_down(s)
        elif s.asking is None and s.pending and calling.advance(s):
            pass
        elif s.state is not RunState.OVER:
            self._at_border()

    def _at_border(self) -> None:
        """Nothing can be started: end, ask a person, or begin the next turn."""
        s = self._s
        if s.ending is not None:
            ending.end(s, s.ending)
        elif s.asking is not None:
            asking.ask_person(s, s.asking)
        else:
            asking.turn(s)

    def _complete(self) -> None:
        s = self._s
        if s.counters.last_turn:
            asking.end_last_turn(s)
            return
        further = answering.judge(s)
        if further is None:
            ending.end(s, Ending(StopReason.COMPLETED, asking.last_words(s)))
        else:
            self._decided(further=further)

    def _cancel(self, by: str) -> None:
        s = self._s
        if s.state is RunState.NEW:
            s.ending = ending.aborted(by)
        elif s.state is not RunState.CANCELLING:
            ending.end(s, ending.aborted(by))

    def _step_down(self, event: StepDown | PauseWithdrawn) -> None:
        s = self._s
        if isinstance(event, PauseWithdrawn):
            if s.step_down is not None and s.step_down.why == "pause":
                s.step_down = None
            return
        s.step_down = event
        if s.state is RunState.BACKOFF:
            ending.step_down(s)
        elif event.now and s.in_flight:
            s.acts.append(CancelCalls(tuple(s.in_flight)))
