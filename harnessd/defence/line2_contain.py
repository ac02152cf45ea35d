"""Line 2, the runtime contains: retry with backoff, another link, park through an outage, or leave it to the model."""

from __future__ import annotations

from harnessd.defence.incident import Incident
from harnessd.defence.ladder import walk
from harnessd.defence.steps import fallback, park, probe, question, retry, stop
from harnessd.domain.decision import Decision, Observe, Pass, Remedy


def answer(incident: Incident) -> Decision | Pass:
    """Mine, if a step of the class's ladder can act: retry, fallback, park, observe, ask a person, stop."""
    steps = {
        "retry": retry,
        "fallback": fallback,
        "park": park,
        "observe": _observe,
        "probe": probe,
        "needs_human": question,
        "stop": stop,
    }
    return walk("line2", incident, steps)


def _observe(incident: Incident) -> Remedy | str:
    return Observe() if incident.failure.source == "tool" else "a failed model call has no result to show"
