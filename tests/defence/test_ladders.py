"""Ladders over episodes: escalation first, each step once, links, breakers (R1.1, R1.3, R3.4, R3.5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harnessd.defence import face
from harnessd.defence.incident import Episode, Links, Tallies, Whose, incident_of
from harnessd.defence.ladder import taken
from harnessd.domain.decision import Decision, Fallback, NeedsHuman, Park, Retry, Stop
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.task import StopReason
from tests.defence.test_face import FULL, SHIPPED, tool, under

CHAIN = "kind: fallback\nchains: {model/primary: [model/second, model/third]}\n"


def decided(failure: Failure, rules: Any = SHIPPED, *, tries: int = 1, **episode: Any) -> Decision:
    """What is done about it."""
    return face(incident_of(failure, Episode("t1", tries, **episode), rules))


def linked(*tried: str, **about: Any) -> Links:
    """A chain that starts at the primary."""
    return Links("model/primary", tuple(f"model/{alias}" for alias in tried), **about)


def test_a_rule_that_holds_decides_alone() -> None:  # R1.1
    rules = under("kind: escalation\nrules: [{name: mine, when: {class: overloaded}, do: [probe, park]}]\n")
    decision = decided(FULL, rules)
    assert decision.remedy == Park(60.0)
    assert (decision.rule.kind, decision.rule.rule) == ("escalation", "mine")
    assert decision.evidence["passed_over"] == ["probe: the outcome is known"]
    assert decision.alternatives == ()


def test_a_rule_whose_ladder_is_used_up_ends_the_task() -> None:
    rules = under("kind: escalation\nrules: [{name: mine, when: {class: overloaded}, do: needs_human}]\n")
    first = decided(FULL, rules)
    assert isinstance(first.remedy, NeedsHuman)
    mark = taken(first)
    assert mark == "escalation/mine:needs_human"
    second = decided(FULL, rules, taken={mark: 1})
    assert second.remedy == Stop(StopReason.SERVICE_UNAVAILABLE)
    assert second.rule.rule == "mine"
    assert second.tried[0].why == "needs_human: taken before in this episode"


def test_a_step_named_twice_acts_twice() -> None:
    rules = under(
        "kind: escalation\nrules: [{name: m, when: {class: overloaded}, do: [needs_human, needs_human, stop]}]\n"
    )
    found = [decided(FULL, rules, taken={"escalation/m:needs_human": times}).remedy for times in range(3)]
    assert [type(remedy).__name__ for remedy in found] == ["NeedsHuman", "NeedsHuman", "Stop"]


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("{for: agent/crawler, do: stop}", True),
        ("{for: agent/coder, do: stop}", False),
        ("{when: {label.team: web}, do: stop}", True),
        ("{when: {consecutive: 3}, do: stop}", True),
        ("{when: {consecutive: 4}, do: stop}", False),
        ("{when: {recoveries: 2}, do: stop}", True),
        ("{when: {model: model/primary, class: overloaded}, do: stop}", True),
    ],
)
def test_rules_see_whose_failure_it_is_and_how_often(rule: str, holds: bool) -> None:
    rules = under(f"kind: escalation\nrules: [{rule}]\n")
    whose = Whose("crawler", labels={"team": "web"})
    decision = decided(FULL, rules, whose=whose, tallies=lambda _: Tallies(3, 0, 2))
    assert isinstance(decision.remedy, Stop if holds else Retry)


def test_an_unknown_outcome_of_an_irreversible_act_goes_to_a_person() -> None:  # R3.13
    failure = tool(ErrorClass.OUTCOME_UNKNOWN, effect_begun=True)
    decision = decided(failure, effect_class=EffectClass.IRREVERSIBLE)
    assert isinstance(decision.remedy, NeedsHuman)
    assert decision.rule.rule == "unknown-outcome"


def test_a_link_is_left_after_its_tries_and_not_before() -> None:  # R3.4
    rules = under(CHAIN)
    for here in (1, 2):
        assert isinstance(decided(FULL, rules, tries=here, links=linked("primary", here=here)).remedy, Retry)
    third = decided(FULL, rules, tries=3, links=linked("primary", here=3))
    assert third.remedy == Fallback("model/second")
    assert third.evidence["chain"]["line"] == 2
    last = decided(FULL, rules, tries=6, links=linked("primary", "second", "third", here=3))
    assert isinstance(last.remedy, Retry), "where no link is left, the tries of the class count"


def test_links_that_cannot_are_passed_over_with_their_reasons() -> None:  # R3.4
    links = linked("primary", here=9, unable={"model/second": "its breaker is open"})
    decision = decided(FULL, under(CHAIN), tries=9, links=links)
    assert decision.remedy == Fallback("model/third", (("model/second", "its breaker is open"),))


def test_a_smaller_window_is_no_help_against_an_overflow() -> None:
    failure = replace(FULL, status=400, code="context_length_exceeded", type=None)
    links = linked("primary", here=1, too_small={"model/second": "its window of 10 is not larger"})
    assert decided(failure, under(CHAIN), links=links).remedy == Fallback(
        "model/third", (("model/second", "its window of 10 is not larger"),)
    )


@pytest.mark.parametrize(("hint", "for_s"), [(45.0, 45.0), (None, 1.0), (3_000.0, 3_000.0)])
def test_an_open_breaker_parks_until_its_probe(hint: float | None, for_s: float) -> None:  # R3.5
    failure = Failure("model", "model/primary", "open", code="breaker_open", retry_after_s=hint)
    decision = decided(failure, tries=0, links=linked("primary", here=0), luck=0.5)
    assert decision.remedy == Park(for_s)
    assert decision.evidence["passed_over"][0] == "retry: the breaker of model/primary is open"


def test_nothing_is_handed_on_once_output_was_passed_on() -> None:  # R3.3
    failure = replace(FULL, output_passed=True)
    assert decided(failure, under(CHAIN), tries=9, links=linked("primary", here=9)).remedy == Park(60.0)


def test_the_models_own_ladder_steps_act_once_a_call() -> None:
    rules = under("kind: retry\nmodel: {classes: {auth: {do: [needs_human, park]}}}\n")
    failure = replace(FULL, status=401, type=None, message="invalid api key")
    first = decided(failure, rules)
    assert isinstance(first.remedy, NeedsHuman)
    mark = taken(first)
    assert mark is not None
    assert decided(failure, rules, taken={mark: 1}).remedy == Park(60.0)
