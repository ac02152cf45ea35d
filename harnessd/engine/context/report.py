"""Report: what fills the window of a task, for people: the same figures by which the engine decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.domain.session import Node
from harnessd.domain.task import Counters
from harnessd.engine import links, roles
from harnessd.engine.context import diagnosing, measuring
from harnessd.engine.protocol import RunBrief
from harnessd.engine.situation import JournalView, Situation, situation_of
from harnessd.policy import TaskPolicies

_LARGEST = 8
_KINDS: Mapping[str, str] = {
    "system": "system prompt and tools",
    "notes": "notes of earlier turns",
    "request": "words of people",
    "answer": "answers of the model",
    "result": "results of tools",
    "notice": "notices of harnessd",
}


def report(brief: RunBrief, path: Sequence[Node], counters: Counters, policies: TaskPolicies) -> dict[str, Any]:
    """Window, tiers, what fills it by kind and by its largest parts, and the last compaction. Sizes in tokens."""
    s = situation_of(brief, tuple(path), JournalView(), counters)
    s.brief, s.policies = roles.worn(brief, counters.roles), policies
    alias = counters.link or s.brief.model.alias
    model = links.models(s).get(alias, s.brief.model)
    where, shape = measuring.where(s, model), policies.compaction.shape
    size, known = measuring.size(s, model.alias), counters.context
    tiers = {
        name: {"part": part, "tokens": int(part * where.window)}
        for name, part in (("compact", shape.tiers.compact), ("warn", shape.tiers.warn), ("block", shape.tiers.block))
    }
    return {
        "model": model.alias,
        "window": model.window,
        "window_found": measuring.window(s, model),
        "effective": where.window,
        "tokens": size,
        "used": round(where.used, 4),
        "tier": where.tier,
        "counted": measuring.counted(s, model.alias),
        "fixed": round(measuring.overhead(s) * measuring.ratio(s, model.alias)),
        "tiers": tiers,
        "rule": _rule(policies),
        **_filled(s, model.alias, size),
        "compactions": _compactions(known, shape.failures),
    }


def _filled(s: Situation, alias: str, size: int) -> dict[str, Any]:
    """By kind, and the largest parts. Scaled so that the parts are the whole."""
    rows = diagnosing.parts(s)
    factor = size / max(1, sum(part.tokens for part in rows))
    kinds: dict[str, list[int]] = {}
    for part in rows:
        kinds.setdefault(part.kind, []).append(part.tokens)
    by_kind = [
        {"kind": kind, "what": _KINDS[kind], "parts": len(kinds[kind]), "tokens": round(sum(kinds[kind]) * factor)}
        for kind in _KINDS
        if kind in kinds
    ]
    largest = sorted(rows, key=lambda part: -part.tokens)[:_LARGEST]
    shown = [{"node": part.node or None, "what": part.name, "tokens": round(part.tokens * factor)} for part in largest]
    return {"by_kind": by_kind, "largest": shown, "ratio": measuring.ratio(s, alias)}


def _compactions(known: Mapping[str, Any], failures_max: int) -> dict[str, Any]:
    last = dict(known.get("last", {})) or None
    if last is not None and "gain" not in last and last.get("before"):
        last["gain"] = round(1 - last["after"] / last["before"], 4)
    return {
        "made": known.get("made", 0),
        "last": last,
        "failures": known.get("failures", 0),
        "failures_max": failures_max,
        "breaker": "open" if known.get("open") else "closed",
        "why": known.get("open"),
        "under_way": "making" in known,
    }


def _rule(policies: TaskPolicies) -> dict[str, Any]:
    rule = policies.compaction.ref("tiers", "compact")
    return {"kind": rule.kind, "name": rule.name, "rule": rule.rule, "file": rule.file, "line": rule.line}
