"""How a run ends or is handed back; every open call gets its one result first."""

from __future__ import annotations

from dataclasses import asdict

from harnessd.defence.endings import next_steps
from harnessd.domain.effect import EffectState
from harnessd.domain.jobs import WAITED_FOR, OwedJob
from harnessd.domain.record import AskPerson, ChangeTask
from harnessd.domain.session import NodeKind, result_payload
from harnessd.domain.task import StopReason, Verb
from harnessd.engine import links
from harnessd.engine.protocol import CancelCalls, Finish, HandBack, RunState
from harnessd.engine.situation import Ending, Situation

_STEPPED_DOWN = {
    "pause": "paused",
    "drain": "drained",
    "storage_full": "storage_full: the disk has no room for the next step; it goes on by itself when there is some",
}
_LONGEST_JOB_S = 30 * 86400.0  # what policy lets a job live at most, where it sets no limit
_JOB_GRACE_S = 30.0
_VERBS = {StopReason.COMPLETED: Verb.COMPLETE, StopReason.ABORTED: Verb.CANCEL}


def end(s: Situation, ending: Ending) -> None:
    """End now if nothing is in flight; else end what is, and then."""
    s.ending = ending
    if s.in_flight:
        if ending.reason is not StopReason.ABORTED:  # a person's wish stands in the task's row
            s.count(ending=asdict(ending))  # a crash meanwhile does not forget it
        s.acts.append(CancelCalls(tuple(s.in_flight)))
        s.state = RunState.CANCELLING
        return
    for call in s.pending:
        why = ending.not_started.rstrip(".")
        text, state = f"{call.use.name} was not started: {why}.", "not_started"
        if call.tries:
            text, state = f"{call.use.name} failed and was not tried again: {why}.", "failed"
        if call.effect is not None:
            text, state = f"{call.use.name} started, outcome unknown: it was cut off by a restart.", "unknown"
            if call.effect.state.open:
                s.settle(call.effect.id, EffectState.UNKNOWN)
        payload = result_payload(call.use.id, text, is_error=True, tool=call.use.name, state=state)
        s.append(NodeKind.TOOL_RESULT, payload)
    s.pending.clear()
    # Whoever resumes the task begins a new episode: what was wrong may have been put right meanwhile.
    links.end_outage(s, answered=False)
    s.count(reserved_usd=0.0, wait_until=None, tries=0, episode_at=None, episode_parked_s=0.0)
    s.count(tries_of={}, asking="", stand_ins={}, probing="", ending={}, rollback={})
    s.person_acts()
    s.records.append(
        ChangeTask(
            verb=_VERBS.get(ending.reason, Verb.STOP),
            reason=ending.reason,
            error_class=ending.error_class,
            sentence=ending.sentence,
            next_steps=ending.next_steps or next_steps(s.brief.task, ending.reason),
        )
    )
    s.acts.append(Finish(ending.reason, ending.sentence))
    s.state = RunState.OVER


def aborted(by: str) -> Ending:
    """A person's wish, never dressed up as a fault."""
    who = f" by {by}" if by else ""
    return Ending(StopReason.ABORTED, f"Cancelled{who}.", not_started="the task was cancelled by a person")


def step_down(s: Situation) -> None:
    """Hand the task back at its step border; open calls stay open and are planned again by whoever goes on."""
    paused = s.step_down is not None and s.step_down.why == "pause"
    why = _STEPPED_DOWN["drain" if s.step_down is None else s.step_down.why]
    # Whoever goes on may do so much later, and the deadline of a call counts no time without a worker.
    s.count(episode_at=None)
    s.records.append(ChangeTask(verb=Verb.PAUSE if paused else Verb.HAND_BACK, why=why))
    _hand_back(s, "paused" if paused else "drained")


def wait_for_jobs(s: Situation, jobs: tuple[OwedJob, ...]) -> None:
    """The model has nothing more to say before its jobs end: the worker is free, and their end wakes the task.

    Each job ends at its life limit at the latest; the time here is for the case that its word got lost.
    """
    if s.step_down is not None:
        step_down(s)
        return
    named = ", ".join(f"{job.id} ({' '.join(job.command.split())[:60]})" for job in jobs[:3])
    named += f" and {len(jobs) - 3} more" * (len(jobs) > 3)
    left_s = [job.left_s for job in jobs if job.left_s is not None]
    until = s.at + (max(left_s) if len(left_s) == len(jobs) else _LONGEST_JOB_S) + _JOB_GRACE_S
    s.doing = ""
    park(s, until, f"waits for its background job{'s' * (len(jobs) > 1)} {named}", WAITED_FOR)


def park(s: Situation, until: float, why: str, dependency: str | None = None) -> None:
    """Give the worker back until a time, or until a dependency is well again."""
    s.records.append(ChangeTask(verb=Verb.PARK, until=until, why=why, dependency=dependency))
    _hand_back(s, "parked")


def ask(s: Situation, question: AskPerson) -> None:
    """Wait for a person, without a worker. A question that already stands is not asked twice.

    While calls are under way nothing is asked: the call stays open and is looked at again at the border.
    """
    if s.in_flight:
        return
    asked = s.questions.get(question.id)
    if asked is None:
        s.records.append(question)
    until = question.until if asked is None else asked.until
    waits_for = "approval" if question.kind == "approval" else "answer"
    s.records.append(
        ChangeTask(verb=Verb.ASK, until=until, why=question.sentence, waits_for=waits_for)  # type: ignore[arg-type]
    )
    _hand_back(s, "waiting")


def wait_for_person_until(s: Situation) -> float | None:
    """When a question counts as unanswered; None where the task waits for a person as long as it takes."""
    ask = s.rules.escalation.shape.ask
    return None if ask.after is None or ask.do == "park" else s.at + ask.after


def unanswered(sentence: str) -> Ending:
    """A person was asked, and nobody came."""
    return Ending(StopReason.UNANSWERED, f"Nobody answered in time: {sentence.rstrip('.')}.")


def _hand_back(s: Situation, why: str) -> None:
    s.acts.append(HandBack(why))
    s.state = RunState.OVER
