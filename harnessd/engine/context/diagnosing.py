"""Diagnosing: what fills the window, and what person and model are told where nothing more can be taken out (R4.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harnessd.defence.incident import CONTEXT_FULL
from harnessd.defence.line3_repair.compaction import emergency
from harnessd.domain.failure import Failure
from harnessd.domain.session import NodeKind, user_payload
from harnessd.engine.context import measuring
from harnessd.engine.context.measuring import note
from harnessd.engine.protocol import ModelFacts
from harnessd.engine.situation import Situation
from harnessd.policy import compaction as compaction_policy

WARNING = (
    "[harnessd] The context window is {used:.0%} full, and making the history smaller did not help enough. Finish what "
    "is under way with short answers and small outputs, and keep notes of what matters in files."
)


def mostly_fixed(s: Situation, model: ModelFacts, where: compaction_policy.Standing) -> bool:
    """System prompt and tools alone reach the first tier: that is told once, and not compacted for ever (R4.2)."""
    whole, fixed = measuring.window(s, model), measuring.scene(s, model).overhead
    if not compaction_policy.overhead_too_large(s.rules.compaction, fixed, whole, whole - where.window):
        return False
    if not s.counters.context.get("fixed"):
        note(s, fixed=True)
        sentence = (
            f"System prompt and tools alone take {fixed:,} of {where.window:,} tokens of model/{model.alias}: "
            "no compaction helps against that. Use fewer tools, a shorter system prompt or a larger window."
        )
        _say(s, "overhead", sentence, where)
    return True


def told(s: Situation, model: ModelFacts, where: compaction_policy.Standing) -> bool:
    """Above the second tier after a compaction: person and model are told, once (R4.2)."""
    if where.tier == "warn" and s.counters.context.get("told") is None:
        note(s, told="warn")
        sentence = f"The window of model/{model.alias} is {where.used:.0%} full after all that could be taken out."
        _say(s, "warn", sentence, where)
        s.append(NodeKind.NOTICE, user_payload(WARNING.format(used=where.used)) | {"facts": {"context": "warn"}})
    return True


def _say(s: Situation, level: str, sentence: str, where: compaction_policy.Standing) -> None:
    look = [["harnessctl", "context", s.brief.task]]
    about = {"sentence": sentence, "window_used": round(where.used, 3), "next_steps": look}
    s.say("budget_warning", budget="context", level=level, **about)


def full(s: Situation, model: ModelFacts, where: compaction_policy.Standing) -> Failure:
    """No request fits any more: none is sent, and the ladder of an overflow decides (R4.2)."""
    largest = diagnosis(s, model.alias)
    said = s.counters.context.get("said")  # the service's own words, where it was the one to say so
    message = f"{where.used:.0%} of {where.window:,} usable tokens are taken by what must be kept: {largest}"
    return Failure(
        source="model",
        dependency=f"model/{model.alias}",
        message=message if said is None else f"{said}, and nothing more can be taken out. Largest: {largest}",
        code=CONTEXT_FULL,
        window_used=round(where.used, 3),
    )


def diagnosis(s: Situation, alias: str) -> str:
    """The biggest parts of the next request, in words."""
    factor = measuring.ratio(s, alias)
    rows = [
        (f"{part.name} at {part.node}" if part.node else part.name, round(part.tokens * factor)) for part in parts(s)
    ]
    return emergency.largest(rows, measuring.size(s, alias))


def diagnosed(s: Situation, failure: Failure) -> Failure:
    """The service's words with what fills the window behind them, for the person who reads how it ended."""
    if failure.code == CONTEXT_FULL:
        return failure
    said = " ".join(failure.message.split()).rstrip(".")[:140]
    return replace(failure, message=f"{said}. Largest: {diagnosis(s, failure.dependency.removeprefix('model/'))}")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the next request, in our own estimate."""

    kind: str
    name: str
    node: str
    tokens: int


_PARTS = {
    NodeKind.COMPACTION: ("notes", "notes of earlier turns"),
    NodeKind.USER: ("request", "words of a person"),
    NodeKind.NOTICE: ("notice", "notice"),
    NodeKind.ASSISTANT: ("answer", "answer"),
}


def parts(s: Situation) -> list[Part]:
    """What the next request is made of: fixed parts first, then each node that stands."""
    rows = [Part("system", "system prompt and tools", "", measuring.overhead(s))]
    for node in measuring.shown(s):
        kind, name = _PARTS.get(
            node.kind, ("result", f"result of {node.payload.get('facts', {}).get('tool', 'a tool')}")
        )
        rows.append(Part(kind, name, node.id, measuring.raw_of(s, node)))
    return rows
