"""Fallback: who takes over, and when the first comes back."""

from __future__ import annotations

import pytest

from harnessd.policy.fallback import Link, UsedUp, chain, may_return, next_link
from tests.policy.written import HARNESS, harness, policy, problems, read

OWN = policy(
    "fallback",
    "kind: fallback\n"
    "chains: {model/primary: [model/second, model/local], tool/web_search: [tool/local_kb], "
    "feature/full: [feature/basic]}\n"
    "by_class: {context_overflow: [model/local], refused: [model/second]}\n",
)


def test_a_chain_is_walked_from_the_top() -> None:
    # R3.4
    first = next_link(OWN, "model/primary", "overloaded", (), {})
    assert isinstance(first, Link)
    assert (first.name, first.rule.file, first.rule.line) == ("model/second", "a.yaml", 2)
    second = next_link(OWN, "model/primary", "overloaded", ("model/second",), {})
    assert isinstance(second, Link)
    assert second.name == "model/local"
    assert second.passed == (("model/second", "it failed in this episode"),)


def test_a_link_that_cannot_take_the_request_is_passed_over_with_the_reason() -> None:
    found = next_link(OWN, "model/primary", "network", (), {"model/second": "its breaker is open for 40s"})
    assert isinstance(found, Link)
    assert found.passed == (("model/second", "its breaker is open for 40s"),)
    used_up = next_link(OWN, "model/primary", "network", ("model/primary", "model/local"), {"model/second": "x"})
    assert isinstance(used_up, UsedUp)
    assert len(used_up.passed) == 2


def test_behind_the_last_stand_in_stands_the_first_link_where_it_was_not_asked() -> None:
    # R3.4: it failed for an earlier call, and this one has nobody left.
    tried = ("model/second", "model/local")
    found = next_link(OWN, "model/primary", "network", tried, {})
    assert isinstance(found, Link)
    assert found.name == "model/primary"
    assert isinstance(next_link(OWN, "model/primary", "network", (*tried, "model/primary"), {}), UsedUp)
    unable = {"model/primary": "its breaker is open"}
    assert isinstance(next_link(OWN, "model/primary", "network", tried, unable), UsedUp)
    assert isinstance(next_link(OWN, "model/primary", "context_overflow", tried, {}), UsedUp)


def test_chains_of_their_own_for_overflow_and_refusal() -> None:
    # R3.4
    assert chain(OWN, "model/primary", "context_overflow")[0] == ("model/local",)
    assert chain(OWN, "model/primary", "refused")[0] == ("model/second",)
    assert chain(OWN, "model/second", "refused")[0] == ()  # not itself
    assert chain(OWN, "tool/web_search", "refused")[0] == ("tool/local_kb",)
    assert chain(OWN, "feature/full")[0] == ("feature/basic",)


def test_nothing_is_shipped_but_the_way_back_and_the_words() -> None:
    shipped = policy("fallback")
    assert isinstance(next_link(shipped, "model/primary", "network", (), {}), UsedUp)
    assert not may_return(shipped, 299)
    assert may_return(shipped, 300)
    assert not may_return(policy("fallback", "kind: fallback\nreturn_after: none\n"), 10**9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chains: {model/primary: [model/secnd]}", 'no model "secnd" in harness.yaml: did you mean model/second?'),
        ("chains: {model/primary: [model/primary]}", "model/primary stands in its own chain: remove it"),
        ("chains: {model/primary: [tool/web_search]}", "tool/web_search is not of the same sort as model/primary"),
        ("chains: {primary: [model/second]}", '"primary" is not a full name'),
        ("chains: {model/primry: [model/second]}", 'no model "primry" in harness.yaml'),
        ("chains: {model/primary: [second]}", "second is not a name: write its sort too, as model/second"),
        ("chains: {model/primary: ['model/*']}", "is a pattern: write one concrete name"),
        ("chains: {model/primary: []}", "0 names are out of bounds"),
        ("by_class: {unknown_tool: [model/second]}", 'no class "unknown_tool" of a model'),
        ("by_class: {refused: [tool/bash]}", "tool has no meaning here"),
        ("on: {refused: [model/second]}", 'unknown key "on"'),
        ("say: 'Back {soon}.'", "unknown placeholder {soon}: write one of {model}, {until}, {task}"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    found = problems(f"kind: fallback\n{text}\n")
    assert any(message in line for line in found), found


def test_a_feature_stands_in_for_one_of_its_own_agent_only() -> None:  # R3.4
    strange = HARNESS.replace("basic: {agent: builder", "basic: {agent: crawler")
    chain = "kind: fallback\nchains: {feature/full: [feature/basic]}\n"
    _, found, _ = read(chain, settings=harness(strange))
    (line,) = found
    assert line.startswith("a.yaml:2:25: fallback/default: feature/basic belongs to agent crawler, feature/full to")
    assert line.endswith(": write a feature of agent builder")
    _, found, _ = read(chain)
    assert found == []
