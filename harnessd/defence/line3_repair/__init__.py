"""Line 3, the context boundary repairs: pairing, protocol rules, compaction plan, emergency, token estimate."""

from __future__ import annotations

from harnessd.defence.incident import Incident
from harnessd.defence.ladder import walk
from harnessd.defence.line3_repair.compaction.emergency import compact
from harnessd.defence.steps import fallback, park, question, retry, stop
from harnessd.domain.decision import Decision, Pass, Remedy, Repair
from harnessd.domain.failure import Owner


def answer(incident: Incident) -> Decision | Pass:
    """Mine, if the history is at fault: a smaller view, a legal view; then what the class's ladder says besides."""
    if incident.owner is not Owner.CONTEXT:
        return Pass("line3", "the history is not the error's owner")
    steps = {
        "compact": compact,
        "repair": repair,
        "retry": retry,
        "fallback": fallback,
        "park": park,
        "needs_human": question,
        "stop": stop,
    }
    return walk("line3", incident, steps)


def repair(incident: Incident) -> Remedy | str:
    """A stricter view of the same history, where there is one with other bytes; the same ones are never sent twice."""
    rules = incident.stricter()
    return Repair(rules) if rules else "the view is legal as it stands, and no stricter one differs from it"
