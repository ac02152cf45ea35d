"""Answering: what is decided about a last word that has not the form its agent declares (R3.14)."""

from __future__ import annotations

from harnessd.defence import face
from harnessd.domain.decision import Stop
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.session import NodeKind, user_payload
from harnessd.engine import asking
from harnessd.engine.forms import CUT
from harnessd.engine.protocol import ModelFailed
from harnessd.engine.situation import Situation
from harnessd.engine.tool_calls import results


def judge(s: Situation) -> bool | None:
    """The last word's form. None: it fits. Else what to do was decided: True where the next call follows at once."""
    facts = s.path[-1].payload["facts"]
    if "misfit" not in facts:
        return None
    alias, before = facts["model"], s.counters.misfits
    tally = before.get(alias, 0) + 1
    # Only answers without the form count here: what a service failed at before this answer is over.
    s.count(misfits={**before, alias: tally}, tries=sum(before.values()), tries_of=before)
    s.count(streak={ErrorClass.MALFORMED_OUTPUT.value: sum(before.values())})
    failure = Failure(
        source="model",
        dependency=f"model/{alias}",
        message=f"the answer does not have the wanted form: {facts['misfit']}",
        finish=facts["finish"],
        request_id=facts["request_id"],
        hint=ErrorClass.MALFORMED_OUTPUT,
    )
    it = asking.incident_of_call(s, ModelFailed(s.at, "", failure), alias)
    decision = face(it)
    s.decide(decision)
    results.took(s, decision)
    if not isinstance(decision.remedy, Stop):
        s.append(NodeKind.NOTICE, user_payload(ask_for_form(failure.message, s.brief.wanted)))
    return asking.carry_out(s, it, decision)


def ask_for_form(problem: str, form: str) -> str:
    """What a model is told whose last word has another form: the exact problem, and the form that is wanted."""
    briefly = " Be briefer: it must be whole." if CUT in problem else ""
    return (
        f"Your last answer cannot be taken: {problem}. Answer again with the JSON value alone, "
        f"without words around it.{briefly} It must fit this JSON Schema: {form}"
    )
