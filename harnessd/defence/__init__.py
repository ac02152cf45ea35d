"""The four lines of defence in order, and face(): the one escalation chain.

Each line answers "mine, do this" or "not mine, I tried that".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harnessd.defence import escalate, line1_self_heal, line2_contain, line3_repair, line4_recover
from harnessd.defence.endings import stop_reason
from harnessd.defence.incident import Incident
from harnessd.domain.decision import Decision, Pass, RuleRef, Stop
from harnessd.domain.failure import Owner

Line = Callable[[Incident], Decision | Pass]

LINES: tuple[Line, ...] = (line1_self_heal.answer, line2_contain.answer, line3_repair.answer, line4_recover.answer)

# The line where the chain starts. The operator (our own bug, a broken invariant) stands behind the last line and behind
# escalation too: no rule can turn a program fault into a tool result.
_FIRST_LINE: dict[Owner, Line] = {
    Owner.MODEL: line1_self_heal.answer,
    Owner.RUNTIME: line2_contain.answer,
    Owner.CONTEXT: line3_repair.answer,
    Owner.SESSION: line4_recover.answer,
}


def face(incident: Incident) -> Decision:
    """An escalation rule that holds decides; else each line from the owner's upwards; the last word is stop."""
    tried: tuple[Pass, ...] = ()
    for answer in _chain(incident):
        match answer(incident):
            case Decision() as decision:
                return replace(decision, tried=tried)
            case Pass() as handed_up:
                tried += (handed_up,)
    return Decision(
        remedy=Stop(stop_reason(incident.failure.source, incident.error_class)),
        error_class=incident.error_class.value,
        rule=_last_rule(incident),
        evidence=incident.evidence(),
        tried=tried,
    )


def _chain(incident: Incident) -> tuple[Line, ...]:
    first = _FIRST_LINE.get(incident.owner)
    if first is None:
        return ()
    if incident.escalated is not None:
        return (escalate.answer,)
    return LINES[LINES.index(first) :]


def _last_rule(incident: Incident) -> RuleRef:
    if incident.escalated is not None and incident.owner is not Owner.OPERATOR:
        return incident.escalated.rule
    return incident.settings.rule
