"""Ladder: the words of a `do`, walked from the top; the first step that can act is taken, the others say why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harnessd.defence.incident import Incident
from harnessd.domain.decision import Decision, Pass, Remedy

# A step answers with the remedy, or with the reason why it cannot act now.
Step = Callable[[Incident], Remedy | str]


def walk(line: str, incident: Incident, steps: Mapping[str, Step]) -> Decision | Pass:
    """The first step of the class's ladder that this line has and that can act.

    Steps that belong to other lines are passed over; what comes after the taken step is kept as alternatives.
    """
    passed_over: list[str] = []
    for place, word in enumerate(incident.settings.do):
        step = steps.get(word)
        answer = step(incident) if step else f"not this line's ({line})"
        if isinstance(answer, str):
            passed_over.append(f"{word}: {answer}")
            continue
        rest = incident.settings.do[place + 1 :]
        return Decision(
            remedy=answer,
            error_class=incident.error_class.value,
            rule=incident.settings.rule,
            evidence=incident.evidence() | ({"passed_over": passed_over} if passed_over else {}),
            alternatives=tuple(f"then {word}" for word in rest),
        )
    return Pass(line, "; ".join(passed_over) or "the ladder is empty")
