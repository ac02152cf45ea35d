"""Any legal sequence of events, in any order that concurrency allows, with crashes anywhere (R2.2, R3.8, R6.1)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import IllegalEvent
from harnessd.domain.messages import FinishReason, ModelReply, TextBlock
from harnessd.domain.ports import ToolOutcome
from harnessd.domain.record import PersonMessage
from harnessd.domain.session import NodeKind, view
from harnessd.domain.task import Counters, TaskState, Verb
from harnessd.engine.machine import Run
from harnessd.engine.protocol import (
    CallModel,
    CallTool,
    Cancelled,
    Event,
    Finish,
    ModelFailed,
    ModelReplied,
    PersonSaid,
    Resumed,
    RunState,
    StepDown,
    TaskLeased,
    ToolFailed,
    ToolReturned,
    Wait,
    WaitElapsed,
)
from tests.engine.desk import Desk, unpaired
from tests.engine.ledger import stored_counters, through_json
from tests.engine.scenery import (
    BRIEF,
    EFFECTS,
    LIMITS,
    MODEL_FAILURES,
    RULES,
    TOOL_FAILURES,
    calls,
    illegal,
    model_failure,
    policies,
    reply,
    says,
    tool_failure,
)

ANSWERS: dict[str, ModelReply] = {
    "cut off": reply(TextBlock("and th"), finish=FinishReason.LENGTH),
    "done": says("done"),
    "empty": reply(),
    "no words": reply(TextBlock("")),
}
DISTURBANCES = (
    *("killed", "killed", "killed", "killed", "spoken to", "illegal", "limits lowered"),
    *("killed, cancelled meanwhile", "killed, paused meanwhile", "limits raised"),
    *("cancelled", "drain", "pause", "drain, now", "pause, now"),
)

arguments = st.sampled_from([{}, {}, {"a": 1}, {"a": 1}, {"a": 2}, {"a": 3}, None])
wanted = st.tuples(st.sampled_from([*EFFECTS, *EFFECTS, "pay", "look", "nothing"]), arguments)
luck = st.sampled_from([0.0, 0.5, 0.999])


def without_clocks(counters: Counters) -> Counters:
    """The counters but for the task's clocks, which run on while nothing is recorded."""
    return replace(counters, wall_s=0.0, working_s=0.0)


class AnyOrder(RuleBasedStateMachine):
    """One task from its first lease to its end, and beyond."""

    def __init__(self) -> None:
        """Nothing happens before `begin`."""
        super().__init__()
        self.desk = Desk()
        self.turn = 0
        self.doubted: Counter[str] = Counter()  # keys of which a person said that the act was not done
        self.known_not_begun: set[str] = set()  # effects whose failure says that nothing began
        self.finished = 0

    @initialize(text=st.sampled_from(RULES), limits=st.sampled_from(LIMITS), looks=st.booleans())
    def begin(self, text: str, limits: dict[str, float], looks: bool) -> None:
        self.text, self.limits = text, limits
        self.desk = Desk(policies(text, **limits), replace(BRIEF, checkpoints=looks))
        self.desk.lease()

    # --- the model ------------------------------------------------------------------------------------------------

    def _model(self) -> bool:
        return any(isinstance(act, CallModel) for act in self.desk.under_way.values())

    @precondition(_model)
    @rule(these=st.lists(wanted, min_size=1, max_size=5), same_ids=st.booleans())
    def asks_for_calls(self, these: list[tuple[str, Any]], same_ids: bool) -> None:
        self.turn += 1
        self.desk.replied(calls(*these, turn="" if same_ids else f"{self.turn}."))

    @precondition(_model)
    @rule(what=st.sampled_from([*ANSWERS, *MODEL_FAILURES]), luck=luck)
    def says_or_fails(self, what: str, luck: float) -> None:
        if what in ANSWERS:
            self.desk.replied(ANSWERS[what])
        else:
            (act,) = self.desk.under_way.values()
            assert isinstance(act, CallModel)
            self.desk.model_failed(model_failure(what, act.request.model), luck)

    # --- tools ----------------------------------------------------------------------------------------------------

    def _tools(self) -> bool:
        return any(isinstance(act, CallTool) for act in self.desk.under_way.values())

    def _one_of(self, place: int) -> str:
        return sorted(self.desk.under_way)[place % len(self.desk.under_way)]

    @precondition(_tools)
    @rule(place=st.integers(0, 4), bad=st.booleans(), job=st.booleans())
    def tool_answers(self, place: int, bad: bool, job: bool) -> None:
        about = {"job": "j1"} if job else {"is_error": bad}
        self.desk.returned("result", self._one_of(place), **about)

    @precondition(_tools)
    @rule(place=st.integers(0, 4), kind=st.sampled_from(TOOL_FAILURES), begun=st.booleans(), luck=luck)
    def tool_fails(self, place: int, kind: str, begun: bool, luck: float) -> None:
        call = self._one_of(place)
        act = self.desk.under_way[call]
        failure = tool_failure(act.tool if isinstance(act, CallTool) else "", kind, begun=begun)
        if not failure.effect_begun:
            self.known_not_begun.add(call)
        self.desk.failed(failure, call, luck)

    @precondition(lambda self: bool(self.desk.asked_to_end & set(self.desk.under_way)))
    @rule(place=st.integers(0, 4), begun=st.booleans())
    def call_ends_as_asked(self, place: int, begun: bool) -> None:
        call = self._one_of(place)
        act = self.desk.under_way[call]
        if isinstance(act, CallTool):
            if not begun:
                self.known_not_begun.add(call)
            self.desk.failed(tool_failure(act.tool, "cancelled", begun=begun), call)
        elif isinstance(act, CallModel):
            self.desk.model_failed(model_failure("cancelled"))
        else:
            self.desk.not_looked("cancelled", cancelled=True)

    @precondition(lambda self: "checkpoint" in self.desk.under_way)
    @rule(manifest=st.sampled_from(["m1", "m2", "m3", ""]))
    def the_workspace_is_looked_at(self, manifest: str) -> None:
        how = self.desk.looked if manifest else self.desk.not_looked
        how(manifest)

    # --- disturbances ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.desk.wait is not None and self.desk.last is None)
    @rule()
    def backoff_ends(self) -> None:
        self.desk.waited()

    @precondition(lambda self: self.desk.last is None)
    @rule(what=st.sampled_from(DISTURBANCES), seconds=st.sampled_from([0.0, 1.0, 90.0, 4000.0]))
    def something_comes_between(self, what: str, seconds: float) -> None:
        desk = self.desk
        desk.now += seconds
        match what:
            case "killed" | "killed, cancelled meanwhile" | "killed, paused meanwhile":
                self._killed(what)
            case "cancelled":
                desk.cancel("eve")
            case "spoken to":
                desk.hear("Mind the gap.")
            case "illegal":
                self._illegal_events_change_nothing()
            case "limits lowered" | "limits raised":
                self._scale_limits(0.5 if what == "limits lowered" else 3)
            case _:
                desk.step_down(what.split(",", maxsplit=1)[0], now=what.endswith("now"))

    def _scale_limits(self, factor: float) -> None:
        self.limits = {name: limit * factor for name, limit in self.limits.items()}
        self.desk.rules = policies(self.text, **self.limits)

    def _killed(self, what: str) -> None:
        desk = self.desk
        waiting = desk.wait.until if desk.run.state is RunState.BACKOFF and desk.wait else None
        desk.crash()
        before: list[Event] = [Cancelled(desk.now, "eve")] if "cancelled" in what else []
        before += [StepDown(desk.now, "pause")] if "paused" in what else []
        commands = desk.lease(*before)
        asks_first = any(event.type == "recovery_stopped" for event in desk.ledger.events)
        if waiting is not None and waiting > desk.now and not before and not asks_first:
            assert commands == (Wait(waiting),), "a run restored in a backoff goes on as the unbroken one"

    def _illegal_events_change_nothing(self) -> None:
        desk, run = self.desk, self.desk.run
        before = (run.state, run.counters, repr(run))
        wrong: list[Event] = [
            TaskLeased(desk.now),
            Resumed(desk.now),
            ModelReplied(desk.now, "e999", says("?")),
            ToolReturned(desk.now, "e999", ToolOutcome("?")),
        ]
        for call, act in desk.under_way.items():
            other: Event = ToolReturned(desk.now, call, ToolOutcome("?"))
            wrong += [ModelReplied(desk.now, call, says("?")) if isinstance(act, CallTool) else other]
        if run.state is not RunState.BACKOFF:
            wrong += [WaitElapsed(desk.now)]
        for event in wrong:
            with pytest.raises(IllegalEvent):
                run.receive(event, desk.rules)
        assert (run.state, run.counters, repr(run)) == before

    # --- while nobody works on it -----------------------------------------------------------------------------------

    def _state(self, *states: TaskState) -> bool:
        return self.desk.last is not None and self.desk.ledger.state in states

    @precondition(lambda self: self._state(TaskState.QUEUED))
    @rule()
    def next_worker(self) -> None:
        self.desk.lease()

    @precondition(lambda self: self._state(TaskState.PARKED, TaskState.WAITING))
    @rule()
    def its_time_comes(self) -> None:
        ledger = self.desk.ledger
        if ledger.until is not None:
            self.desk.now = max(self.desk.now, ledger.until)
            self.desk.return_to_work(Verb.WAKE if ledger.state is TaskState.PARKED else Verb.ANSWER)

    @precondition(lambda self: self._state(TaskState.PARKED, TaskState.WAITING, TaskState.PAUSED, TaskState.STOPPED))
    @rule(raised=st.booleans())
    def person_resumes(self, raised: bool) -> None:
        if raised:
            self._scale_limits(3)
        self.desk.return_to_work()

    @precondition(lambda self: self._state(TaskState.WAITING) and bool(self.desk.ledger.asked))
    @rule(place=st.integers(0, 2), say=st.sampled_from(["", "Be quick."]))
    def person_answers(self, place: int, say: str) -> None:
        question = self.desk.ledger.asked[-1]
        choice = question.choices[place % len(question.choices)]
        if choice == "not-done":
            self.doubted[question.data["key"]] += 1
        self.desk.ledger.answer(question.id, choice, say)
        self.desk.lease()

    @precondition(lambda self: self._state(TaskState.STOPPED, TaskState.COMPLETED))
    @rule()
    def person_retries(self) -> None:
        """A new branch before the failed turn; what was done there stays done."""
        ledger = self.desk.ledger
        turns = [node for node in ledger.path if node.kind is NodeKind.ASSISTANT]
        ledger.pointer = turns[-1].parent if turns else ledger.pointer
        self.desk.return_to_work(Verb.RETRY)

    @invariant()
    def what_comes_late_changes_nothing(self) -> None:
        desk = self.desk
        if desk.last is None:
            return
        message = PersonMessage(99, "late", desk.now)
        late: tuple[Event, ...] = (
            ModelReplied(desk.now, "e1", says("late")),
            ModelFailed(desk.now, "e1", model_failure("server")),
            ToolReturned(desk.now, "e2", ToolOutcome("late")),
            ToolFailed(desk.now, "e2", tool_failure("pay", "failed")),
            *(WaitElapsed(desk.now), Cancelled(desk.now), StepDown(desk.now, "drain"), PersonSaid(desk.now, message)),
        )
        for event in late:
            assert desk.run.receive(event, desk.rules) == ()
        assert desk.run.state is RunState.OVER

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def what_is_recorded_can_be_shown(self) -> None:
        path = self.desk.ledger.path
        if isinstance(self.desk.last, Finish):
            assert unpaired(path) == []
        messages = view(path)
        if messages and not self._open():
            last = messages[-1].role == "assistant"
            assert illegal(messages[:-1] if last else messages) == ""

    def _open(self) -> bool:
        return bool(unpaired(self.desk.ledger.path))

    @invariant()
    def nothing_is_done_twice(self) -> None:
        effects = self.desk.ledger.effects
        for (node, call_id), tries in self._tries().items():
            effect_class = effects[tries[0]].effect_class
            if effect_class is EffectClass.REVERSIBLE:
                assert set(tries[:-1]) <= self.known_not_begun, f"{node}/{call_id} was begun again"
        keys: dict[str, list[str]] = {}
        for act in self.desk.performed:
            effect = effects[act.call]
            if effect.effect_class is EffectClass.IRREVERSIBLE:
                assert effect.key
                keys.setdefault(effect.key, []).append(effect.id)
        for key, acts in keys.items():
            begun = [act for act in acts[:-1] if act not in self.known_not_begun]
            answered = [act for act in begun if (effects[act].result or {}).get("is_error")]
            assert len(begun) - len(answered) <= self.doubted[key], f"{key} was performed again without a person's word"

    def _tries(self) -> dict[tuple[str, str], list[str]]:
        tries: dict[tuple[str, str], list[str]] = {}
        for act in self.desk.performed:
            effect = self.desk.ledger.effects[act.call]
            tries.setdefault((effect.node, effect.call_id), []).append(effect.id)
        return tries

    @invariant()
    def everything_is_counted_once(self) -> None:
        ledger = self.desk.ledger
        assert ledger.counters.turns == sum(node.kind is NodeKind.ASSISTANT for node in ledger.nodes.values())
        assert ledger.counters.tool_calls == len(self._tries())
        assert sum(ledger.counters.calls_of.values()) == ledger.counters.tool_calls

    @invariant()
    def a_restored_run_knows_what_the_unbroken_one_knows(self) -> None:
        ledger, run = self.desk.ledger, self.desk.run
        live = run._s
        if not self.desk.sound or not live.path:
            return
        assert without_clocks(stored_counters(run.counters)) == without_clocks(ledger.counters)
        assert [through_json(dict(node.payload)) for node in live.path] == [node.payload for node in ledger.path]
        restored = Run.restore(live.brief, ledger.path, ledger.journal(), ledger.counters)._s
        assert [(call.use, call.stand_in) for call in restored.pending] == [
            (call.use, call.stand_in) for call in live.pending
        ]

    @invariant()
    def who_answered_is_on_the_node(self) -> None:
        asked = {act.call: act.request.model for act in self.desk.requests}
        assert set(asked.values()) <= {"primary", "second", "third", "long"}
        for node in self.desk.ledger.nodes.values():
            if node.kind is NodeKind.ASSISTANT:
                assert node.payload["facts"]["model"] in asked.values()

    @invariant()
    def what_began_ends_before_it_begins_again(self) -> None:
        events = self.desk.ledger.events
        outages = [event.type for event in events if event.type in ("outage_started", "outage_ended")]
        assert outages == ["outage_started", "outage_ended"][:2] * (len(outages) // 2) + outages[:1] * (
            len(outages) % 2
        )
        assert outages[:1] != ["outage_ended"]
        for dependency in {event.data["dependency"] for event in events if event.type == "recovered"}:
            mine = [event.type for event in events if event.data.get("dependency") == dependency]
            story = [kind for kind in mine if kind in ("degraded", "recovered")]
            assert story[0] == "degraded"
            assert "recovered recovered" not in " ".join(story)

    @invariant()
    def each_warning_is_given_once(self) -> None:
        given = [(e.data["budget"], e.data["level"]) for e in self.desk.ledger.events if e.type == "budget_warning"]
        assert len(given) == len(set(given))

    def teardown(self) -> None:
        """Whatever happened, a task that is left to a willing world comes to its end."""
        desk = self.desk
        if not desk.sound:
            return
        for _ in range(200):
            if isinstance(desk.last, Finish):
                break
            self._help()
        assert isinstance(desk.last, Finish)
        assert unpaired(desk.ledger.path) == []

    def _help(self) -> None:
        desk = self.desk
        if desk.last is not None:
            for question in desk.ledger.asked:
                desk.ledger.answer(question.id, question.choices[0])
            if desk.ledger.state is not TaskState.QUEUED:
                desk.ledger.move(Verb.RESUME)
            desk.lease()
        elif desk.wait is not None and desk.run.state is RunState.BACKOFF:
            desk.waited()
        elif self._model():
            desk.replied(says("done"))
        elif self._tools():
            desk.returned("ok", min(desk.under_way))
        else:
            desk.looked("m1")


TestAnyOrder = AnyOrder.TestCase
