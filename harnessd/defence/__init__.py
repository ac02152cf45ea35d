"""The four lines of defence in order, and face(): the one escalation chain.

Each line answers "mine, do this" or "not mine, I tried that". Lines 3 and 4 (context repair, session recovery) have
their rooms beside this file and join `LINES` with their machinery.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harnessd.defence import line1_self_heal, line2_contain
from harnessd.defence.endings import stop_reason
from harnessd.defence.incident import Incident
from harnessd.domain.decision import Decision, Pass, Stop
from harnessd.domain.failure import Owner

LINES: tuple[Callable[[Incident], Decision | Pass], ...] = (line1_self_heal.answer, line2_contain.answer)

# The line where the chain starts. The operator (our own bug, a broken invariant) stands behind the last line: no rule
# can turn a program fault into a tool result.
_FIRST_LINE: dict[Owner, int] = {Owner.MODEL: 0, Owner.RUNTIME: 1, Owner.CONTEXT: 1, Owner.SESSION: 1}


def face(incident: Incident) -> Decision:
    """Each line from the owner's upwards; the last word is stop."""
    tried: tuple[Pass, ...] = ()
    for answer in LINES[_FIRST_LINE.get(incident.owner, len(LINES)) :]:
        match answer(incident):
            case Decision() as decision:
                return replace(decision, tried=tried)
            case Pass() as handed_up:
                tried += (handed_up,)
    return Decision(
        remedy=Stop(stop_reason(incident.failure.source, incident.error_class)),
        error_class=incident.error_class.value,
        rule=incident.settings.rule,
        evidence=incident.evidence(),
        tried=tried,
    )
