"""Recovery: path + journal -> a restored run; what a crash left open is settled by the engine, from recorded facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harnessd.domain.effect import Effect
from harnessd.domain.failure import ErrorClass
from harnessd.domain.ports import History, Refused, ToolLimits
from harnessd.domain.record import ChangeTask
from harnessd.domain.task import StopReason, Task, Verb
from harnessd.engine.machine import Run
from harnessd.engine.protocol import CallTool, Event, Resumed, RunBrief, TaskLeased
from harnessd.engine.situation import JournalView

CORRUPT = ErrorClass.STATE_CORRUPT.value
PartialOf = Callable[[Task, CallTool], str]


@dataclass(frozen=True, slots=True)
class Restored:
    """A run, the event it starts with, and the ids of the persons' words it already knows."""

    run: Run
    first: Event
    heard: frozenset[int]


def restore(brief: RunBrief, history: History, partial_of: PartialOf, now: float) -> Restored:
    """The run as it stood at its last durable step."""
    task = history.task
    journal = JournalView(
        effects=history.effects,
        messages=history.messages,
        questions=history.questions,
        changed=history.changed,
        ended_jobs=history.ended_jobs,
        partial={effect.id: partial_of(task, _call(effect)) for effect in history.effects if _cut_off(effect)},
    )
    run = Run.restore(brief, history.path, journal, task.counters)
    first: Event = Resumed(now) if history.path else TaskLeased(now)
    return Restored(run, first, frozenset(message.id for message in history.messages))


def cannot_go_on(task: Task, why: Refused) -> ChangeTask:
    """The end of a task that cannot be taken up as the world is now."""
    corrupt = why.code == CORRUPT
    return ChangeTask(
        verb=Verb.STOP,
        reason=StopReason.INTERNAL_ERROR if corrupt else StopReason.ERROR,
        error_class=CORRUPT if corrupt else None,
        sentence=f"{why.message} {why.hint}".strip(),
        next_steps=(("harnessctl", "logs" if corrupt else "resume", task.id),),
    )


def _cut_off(effect: Effect) -> bool:
    return effect.kind == "tool" and effect.state.open


def _call(effect: Effect) -> CallTool:
    name = effect.name.removeprefix("tool/")
    return CallTool(effect.id, effect.call_id, name, effect.arguments or {}, ToolLimits())
