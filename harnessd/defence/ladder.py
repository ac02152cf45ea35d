"""Ladder: the words of a `do`, walked from the top; the first step that can act is taken, the others say why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from harnessd.defence.incident import Incident, rule_json
from harnessd.domain.decision import (
    Compact,
    Decision,
    Fallback,
    NeedsHuman,
    Nudge,
    Observe,
    Park,
    Pass,
    Probe,
    Remedy,
    Repair,
    Retry,
    Rollback,
    RuleRef,
    Stop,
)
from harnessd.policy.fallback import Link

# A step answers with the remedy, or with the reason why it cannot act now.
Step = Callable[[Incident], Remedy | str]

_WORDS: Mapping[type[Remedy], str] = {
    Observe: "observe",
    Nudge: "nudge",
    Retry: "retry",
    Fallback: "fallback",
    Compact: "compact",
    Repair: "repair",
    Park: "park",
    Probe: "probe",
    Rollback: "rollback",
    NeedsHuman: "needs_human",
    Stop: "stop",
}
# These act until what they need is used up, `observe` and `stop` end their call; every other step acts once an episode
# for each time it is named.
_AGAIN = frozenset({"retry", "fallback", "compact", "park", "probe", "observe", "stop"})


def climb(
    line: str, incident: Incident, do: Sequence[str], rule: RuleRef, steps: Mapping[str, Step]
) -> Decision | Pass:
    """The first step of a ladder that this line has and that can act.

    Steps that belong to other lines, that were taken before in this episode or that cannot act are passed over, with
    the reason; what comes after the taken step is kept as alternatives.
    """
    passed_over: list[str] = []
    named: Counter[str] = Counter()
    for place, word in enumerate(do):
        named[word] += 1
        answer = _try(line, incident, word, steps, left=named[word] - incident.taken.get(mark(rule, word), 0))
        if isinstance(answer, str):
            passed_over.append(f"{word}: {answer}")
            continue
        return Decision(
            remedy=answer,
            error_class=incident.error_class.value,
            rule=rule,
            evidence=_evidence(incident, answer, passed_over),
            alternatives=(*_passed(incident), *(f"then {word}" for word in do[place + 1 :])),
        )
    return Pass(line, "; ".join(passed_over) or "the ladder is empty")


def walk(line: str, incident: Incident, steps: Mapping[str, Step]) -> Decision | Pass:
    """The class's own ladder."""
    return climb(line, incident, incident.settings.do, incident.settings.rule, steps)


def mark(rule: RuleRef, word: str) -> str:
    """Under which key it is remembered that a ladder's step was taken."""
    return f"{rule.kind}/{rule.rule}:{word}"


def taken(decision: Decision) -> str | None:
    """The key of a decision whose step acts once an episode; None for the others."""
    word = _WORDS[type(decision.remedy)]
    return None if word in _AGAIN else mark(decision.rule, word)


def _try(line: str, incident: Incident, word: str, steps: Mapping[str, Step], *, left: int) -> Remedy | str:
    step = steps.get(word)
    if step is None:
        return f"not this line's ({line})"
    if word not in _AGAIN and left <= 0:
        return "taken before in this episode"
    return step(incident)


def _passed(incident: Incident) -> Iterator[str]:
    """The links that could not take the call, each with the reason: `model/local: no tools`."""
    following = incident.following
    for link, why in following.passed if following is not None else ():
        if link != incident.failure.dependency:
            yield f"{link}: {why}"


def _evidence(incident: Incident, remedy: Remedy, passed_over: list[str]) -> dict[str, object]:
    evidence: dict[str, object] = incident.evidence()
    if passed_over:
        evidence["passed_over"] = passed_over
    if isinstance(remedy, Fallback) and isinstance(incident.following, Link):
        evidence["chain"] = rule_json(incident.following.rule)
    return evidence
