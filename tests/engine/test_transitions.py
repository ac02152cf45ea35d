"""TRANSITIONS: every state meets every event; what is missing is refused, and nothing has changed then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harnessd.domain.failure import IllegalEvent
from harnessd.domain.ports import ToolOutcome
from harnessd.domain.record import PersonMessage
from harnessd.domain.task import TASK_TRANSITIONS, TaskState, Verb
from harnessd.domain.workspace import TakenCheckpoint
from harnessd.engine.machine import Run
from harnessd.engine.protocol import (
    TRANSITIONS,
    CallModel,
    Cancelled,
    CheckpointFailed,
    CheckpointTaken,
    Event,
    ModelFailed,
    ModelReplied,
    PauseWithdrawn,
    PersonSaid,
    Resumed,
    RunState,
    StepDown,
    TakeCheckpoint,
    TaskLeased,
    ToolFailed,
    ToolReturned,
    WaitElapsed,
)
from tests.engine.desk import Desk
from tests.engine.scenery import BRIEF, FREE, calls, model_failure, policies, says, tool_failure

EVENTS = (
    *(TaskLeased, Resumed, ModelReplied, ModelFailed, ToolReturned, ToolFailed, WaitElapsed, Cancelled, StepDown),
    PauseWithdrawn,
    PersonSaid,
    CheckpointTaken,
    CheckpointFailed,
)
LOOKS = (CheckpointTaken, CheckpointFailed)


def standing_in(state: RunState, *, tools: bool, looks: bool = False) -> Desk:
    """A run in this state; `tools`: what it is about to lose are tool calls; `looks`: a look at its workspace."""
    desk = Desk(policies(FREE), replace(BRIEF, checkpoints=looks))
    if state is RunState.NEW:
        desk.run = Run.restore(BRIEF)
        return desk
    desk.lease()
    if state is RunState.BACKOFF:
        desk.model_failed(model_failure("overloaded"))
        return desk
    if tools:
        desk.replied(calls(("note", {})) if looks else calls(("look", {}), ("look", {"a": 1})))
    if state is RunState.CANCELLING:
        desk.cancel()
    if state is RunState.OVER:
        desk.cancel()
        while desk.under_way:
            call = min(desk.under_way)
            if isinstance(desk.under_way[call], CallModel):
                desk.model_failed(model_failure("cancelled"))
            elif isinstance(desk.under_way[call], TakeCheckpoint):
                desk.not_looked("cancelled", cancelled=True)
            else:
                desk.failed(tool_failure("look", "cancelled"), call)
    return desk


def event_for(kind: type[Event], desk: Desk) -> Event:
    """An event of this kind that fits what is under way."""
    now, call = desk.now, min(desk.under_way, default="e1")
    made: dict[type[Event], Callable[[], Event]] = {
        TaskLeased: lambda: TaskLeased(now),
        Resumed: lambda: Resumed(now),
        ModelReplied: lambda: ModelReplied(now, call, says("done")),
        ModelFailed: lambda: ModelFailed(now, call, model_failure("overloaded")),
        ToolReturned: lambda: ToolReturned(now, call, ToolOutcome("ok")),
        ToolFailed: lambda: ToolFailed(now, call, tool_failure("look", "failed")),
        WaitElapsed: lambda: WaitElapsed(now),
        Cancelled: lambda: Cancelled(now),
        StepDown: lambda: StepDown(now, "drain"),
        PauseWithdrawn: lambda: PauseWithdrawn(now),
        CheckpointTaken: lambda: CheckpointTaken(now, TakenCheckpoint("aa", 1)),
        CheckpointFailed: lambda: CheckpointFailed(now, "no room"),
        PersonSaid: lambda: PersonSaid(now, PersonMessage(1, "go", now)),
    }
    return made[kind]()


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", RunState)
def test_each_state_meets_each_event(state: RunState, kind: type[Event]) -> None:
    looks = kind in LOOKS
    tools = state is RunState.TOOLS or (state is not RunState.MODEL and (looks or kind in (ToolReturned, ToolFailed)))
    desk = standing_in(state, tools=tools, looks=looks)
    run = desk.run
    assert run.state is state
    event = event_for(kind, desk)
    allowed = TRANSITIONS[state].get(kind)
    before = repr(run)
    if allowed is None:
        with pytest.raises(IllegalEvent, match=kind.__name__):
            run.receive(event, desk.rules)
        assert repr(run) == before
        return
    commands = run.receive(event, desk.rules)
    assert run.state in allowed
    if state is RunState.OVER:
        assert commands == ()
        assert repr(run) == before


def test_the_table_knows_every_state_and_no_other_event() -> None:
    assert set(TRANSITIONS) == set(RunState)
    assert {kind for row in TRANSITIONS.values() for kind in row} == set(EVENTS)
    for row in TRANSITIONS.values():
        for targets in row.values():
            assert targets


def test_nothing_leads_out_of_over() -> None:
    assert {target for targets in TRANSITIONS[RunState.OVER].values() for target in targets} == {RunState.OVER}


@pytest.mark.parametrize("state", [RunState.MODEL, RunState.TOOLS, RunState.CANCELLING])
def test_an_answer_for_what_is_not_under_way_is_refused(state: RunState) -> None:
    desk = standing_in(state, tools=state is not RunState.MODEL)
    before = repr(desk.run)
    for event in (
        ModelReplied(desk.now, "e99", says("?")),
        ModelFailed(desk.now, "e99", model_failure("server")),
        ToolReturned(desk.now, "e99", ToolOutcome("?")),
        ToolFailed(desk.now, "e99", tool_failure("look", "failed")),
    ):
        with pytest.raises(IllegalEvent):
            desk.run.receive(event, desk.rules)
    assert repr(desk.run) == before


@pytest.mark.parametrize("tools", [False, True])
def test_an_answer_of_the_other_kind_is_refused_while_cancelling(tools: bool) -> None:
    desk = standing_in(RunState.CANCELLING, tools=tools)
    before = repr(desk.run)
    call = min(desk.under_way)
    wrong: Event = ModelReplied(desk.now, call, says("?")) if tools else ToolReturned(desk.now, call, ToolOutcome("?"))
    with pytest.raises(IllegalEvent, match="another kind"):
        desk.run.receive(wrong, desk.rules)
    assert repr(desk.run) == before


# --- the task's own table ---------------------------------------------------------------------------------------------


def test_the_task_table_is_closed() -> None:
    assert set(TASK_TRANSITIONS) == set(TaskState)
    reached = {target for moves in TASK_TRANSITIONS.values() for target in moves.values()}
    assert reached == set(TaskState)
    assert {verb for moves in TASK_TRANSITIONS.values() for verb in moves} == set(Verb)


@pytest.mark.parametrize("verb", Verb)
def test_a_verb_leads_to_one_state(verb: Verb) -> None:
    """Stores plan a move by its verb: where it leads must not depend on where it began."""
    assert len({moves[verb] for moves in TASK_TRANSITIONS.values() if verb in moves}) == 1


@pytest.mark.parametrize("state", TaskState)
def test_whoever_holds_no_worker_can_be_queued_or_ended_by_a_person(state: TaskState) -> None:
    moves = TASK_TRANSITIONS[state]
    if state in (TaskState.PARKED, TaskState.WAITING, TaskState.PAUSED):
        assert moves[Verb.RESUME] is TaskState.QUEUED
        assert moves[Verb.CANCEL] is TaskState.STOPPED
    assert (state is TaskState.RUNNING) == (Verb.HAND_BACK in moves), "only a worker hands back"
