"""Line 4, the session recovers: choose a trusted node; pointer and workspace go back together."""

from __future__ import annotations

from harnessd.defence.endings import stop_reason
from harnessd.defence.incident import Incident
from harnessd.defence.ladder import Step, walk
from harnessd.domain.decision import Decision, NeedsHuman, Nudge, Pass, Stop
from harnessd.domain.failure import Owner


def answer(incident: Incident) -> Decision | Pass:
    """Mine, if the error is the session's own: the model goes in circles. Nudge, roll back, ask a person, or stop."""
    if incident.owner is not Owner.SESSION:
        return Pass("line4", "the session is not the error's owner, and no rule names rollback")
    steps: dict[str, Step] = {
        "nudge": lambda it: Nudge(it.failure.advice),
        "rollback": lambda it: it.way_back("before_loop"),
        "needs_human": lambda it: NeedsHuman(f"The agent goes in circles: {it.failure.message}"),
        "stop": lambda it: Stop(stop_reason(it.failure.source, it.error_class)),
    }
    return walk("line4", incident, steps)
