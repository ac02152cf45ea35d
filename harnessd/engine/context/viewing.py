"""Viewing: what a model is shown, legal for it; each repair is told once; a stricter view where a service refuses."""

from __future__ import annotations

from harnessd.defence.line3_repair.carrying import as_sent
from harnessd.defence.line3_repair.compaction.standing import standing
from harnessd.defence.line3_repair.known import EffectOf
from harnessd.defence.line3_repair.stricter import rules_to_try
from harnessd.defence.line3_repair.transcript import receiver
from harnessd.defence.line3_repair.view import Finding, View, view_of
from harnessd.domain.effect import Effect
from harnessd.domain.events import EventType
from harnessd.domain.messages import Message
from harnessd.domain.record import RecordEvent
from harnessd.engine import roles
from harnessd.engine.context.measuring import note
from harnessd.engine.protocol import ModelFacts
from harnessd.engine.situation import Situation

# Repairs that are remembered as told; the oldest are forgotten first, and would be told again.
_TOLD_MAX = 500


def view(s: Situation, model: ModelFacts) -> tuple[Message, ...]:
    """The messages of the next request; what had to be repaired for it becomes an event, once (R4.7)."""
    to = receiver(model.protocol, _rules(s, model.alias))
    found = s.views.view(standing(roles.shown(s)), to, model.service_model, _effects(s), s.at)
    _tell(s, found.findings)
    return found.messages


def stricter(s: Situation, model: ModelFacts, message: str) -> tuple[str, ...]:
    """The rules of a view with other bytes than the one that the service refused; empty where there is none."""
    used, plain = _rules(s, model.alias), receiver(model.protocol)
    sent = as_sent(_view(s, model, used).messages, plain, model.service_model)
    for rules in rules_to_try(model.protocol, message, used):
        if as_sent(_view(s, model, rules).messages, plain, model.service_model) != sent:
            return rules
    return ()


def use(s: Situation, alias: str, rules: tuple[str, ...]) -> None:
    """From now on this model's views keep these rules: what it refused once it would refuse at every turn."""
    note(s, stricter={**s.counters.context.get("stricter", {}), alias: list(rules)})


def _rules(s: Situation, alias: str) -> tuple[str, ...]:
    return tuple(s.counters.context.get("stricter", {}).get(alias, ()))


def _view(s: Situation, model: ModelFacts, rules: tuple[str, ...]) -> View:
    nodes, to = standing(roles.shown(s)), receiver(model.protocol, rules)
    return view_of(nodes, to, model.service_model, _effects(s), s.at)


def _effects(s: Situation) -> EffectOf:
    """The newest row of the journal for a call; asked only for calls whose result is lost."""

    def newest(node: str, call: str) -> Effect | None:
        rows = [e for e in s.effects.values() if e.kind == "tool" and (e.node, e.call_id) == (node, call)]
        return rows[-1] if rows else None

    return newest


def _tell(s: Situation, findings: tuple[Finding, ...]) -> None:
    known: list[str] = list(s.counters.context.get("repaired", ()))
    fresh = [finding for finding in findings if finding.mark not in known]
    for finding in fresh:
        if finding.mark in known:
            continue
        known.append(finding.mark)
        data = {"code": finding.code, "index": finding.index, "sentence": finding.sentence}
        s.records.append(RecordEvent(EventType.CONTEXT_REPAIRED.value, data, finding.node or s.head))
    if fresh:
        note(s, repaired=known[-_TOLD_MAX:])
