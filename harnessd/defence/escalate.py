"""Escalation: a rule of its kind that holds goes over the head of the line that has the error."""

from __future__ import annotations

from harnessd.defence.incident import Incident
from harnessd.defence.ladder import climb
from harnessd.defence.steps import fallback, park, probe, question, retry, stop
from harnessd.domain.decision import Decision, Pass


def answer(incident: Incident) -> Decision | Pass:
    """The first step of the rule's ladder that can act; a rule that holds and has none left ends the task."""
    escalated = incident.escalated
    if escalated is None:
        return Pass("escalation", "no rule holds")
    steps = {
        "retry": retry,
        "fallback": fallback,
        "park": park,
        "rollback": lambda it: it.way_back(escalated.to),
        "probe": probe,
        "needs_human": question,
        "stop": stop,
    }
    return climb("escalation", incident, escalated.do, escalated.rule, steps)
