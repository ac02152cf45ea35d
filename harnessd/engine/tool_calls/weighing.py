"""Weighing: a result that is an error is the model's to mend, until a rule says it was mended in vain too often."""

from __future__ import annotations

import re

from harnessd.defence import face
from harnessd.defence.incident import Episode, Tallies, incident_of
from harnessd.domain.decision import NeedsHuman, Rollback, Stop
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.ports import ToolOutcome
from harnessd.engine import recovering, streaks
from harnessd.engine.situation import PendingCall, Situation
from harnessd.engine.tool_calls import results

_NOTE = re.compile(r"\[(exit code|left running|some of the output|The whole).*\]")  # what our tools add


def weigh(s: Situation, call: PendingCall, outcome: ToolOutcome, effect_class: EffectClass) -> None:
    """Look whether a rule of escalation holds for a result that says of itself that it failed.

    What counts is the same call: another command that fails is another question. A correction that did not help is a
    change of the workspace after which it fails with the same words; "no" without a word (a search that finds nothing)
    is an answer.
    """
    if s.ending is not None or s.asking is not None or s.rolling or s.counters.last_turn:
        return
    words = _words(outcome)
    message = words[-1][:300] if words else f"exit code {outcome.exit_code}, and no word"
    failure = Failure("tool", call.name, message, hint=ErrorClass.EXECUTION_FAILED, exit_code=outcome.exit_code)
    times, corrections = streaks.failures_of(s, call), 0 if _says_no(outcome) else streaks.corrections_of(s, call)
    episode = Episode(
        task=s.brief.task,
        tries=times,
        effect_class=effect_class,
        whose=results.whose(s),
        tallies=lambda _: Tallies(times, corrections, streaks.recoveries(s)),
        taken=s.counters.taken,
        way_back=lambda to: recovering.way_back(s, to),
    )
    it = incident_of(failure, episode, s.rules)
    if it.escalated is None:
        return
    decision = face(it)
    if not isinstance(decision.remedy, (Rollback, NeedsHuman, Stop)):
        return  # the call has its result; the other steps are for calls that have none
    s.decide(decision)
    results.took(s, decision)
    match decision.remedy:
        case Rollback():
            recovering.decided(s, decision)
        case NeedsHuman(question):
            s.count(asking=question)
        case Stop(reason):
            s.ending = results.stopped(s, reason, failure, ErrorClass.EXECUTION_FAILED)


def _says_no(outcome: ToolOutcome) -> bool:
    """Exit code 1 with nothing said, or a bare count: how grep, cmp and test answer. Our own notes are no words."""
    return outcome.exit_code == 1 and not any(sign.isalpha() for line in _words(outcome) for sign in line)


def _words(outcome: ToolOutcome) -> list[str]:
    lines = outcome.text.strip().splitlines()
    return [line for line in lines if line.strip() and line != "(no output)" and not _NOTE.fullmatch(line)]
