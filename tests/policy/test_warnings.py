"""Warnings: allowed, but hardly meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.policy.assembly.warnings import covers
from harnessd.policy.language.names import make_name
from harnessd.policy.language.source import Place
from tests.policy.written import HARNESS, harness, read


def warnings(*files: str, text: str = HARNESS) -> list[str]:
    made, problems, found = read(*files, settings=harness(text))
    assert made is not None, problems
    return found


def test_what_is_shipped_warns_of_nothing() -> None:
    assert warnings() == []


NEVER_REACHED = {
    "classes": """\
kind: retry
rules:
  - {name: a, for: "model/*", class: network}
  - {name: b, for: model/primary, when: {status: 500}, class: timeout}
""",
    "equal conditions": """\
kind: retry
rules:
  - {name: a, when: {status: 418}, class: timeout}
  - {name: b, when: {status: 418}, class: network}
""",
    "permissions": """\
kind: tools
permissions:
  - {name: a, for: "tool/*", do: allow}
  - {name: b, for: tool/bash, do: ask}
""",
    "settings": """\
kind: breaker
rules:
  - {name: a, for: "model/*", probes: 2, open: 1m}
  - {name: b, for: model/local, probes: 3}
""",
    "kinds": """\
kind: assign
rules:
  - {name: a, use: {retry: interactive}}
  - {name: b, when: {agent: builder}, use: {retry: default}}
""",
}


@pytest.mark.parametrize("title", NEVER_REACHED)
def test_entries_that_are_never_reached_name_both_lines(title: str) -> None:
    assert warnings(NEVER_REACHED[title]) == [
        "a.yaml:4:5: b is never reached: a (a.yaml:3) fits before it: put it above, or remove it"
    ]


@pytest.mark.parametrize(
    "file",
    [
        "kind: retry\nrules: [{for: model/primary, class: network}, {for: 'model/*', class: timeout}]\n",
        "kind: retry\nrules: [{unless: {status: 4xx}, class: network}, {class: timeout}]\n",
        "kind: retry\nrules: [{class: auth}, {for: tool/bash, class: unavailable}]\n",  # tools have no auth
        "kind: tools\npermissions: [{do: allow}, {for: tool/bash, do: deny}]\n",  # a deny wins anywhere
        "kind: breaker\nrules: [{for: 'model/*', probes: 2}, {for: model/local, probes: 3, open: 2m}]\n",
        "kind: tools\nrules: [{timeout: {after: 1m}}, {for: tool/bash, timeout: {after: 2m, life: 1h}}]\n",
        "kind: assign\nrules: [{use: {retry: interactive}}, {use: {retry: default, budget: default}}]\n",
        "kind: retry\nrules: [{name: a, enabled: false, class: network}, {class: timeout}]\n",
    ],
)
def test_entries_that_can_be_reached_are_left_alone(file: str) -> None:
    assert warnings(file) == []


def test_a_policy_that_nobody_uses() -> None:
    file = "kind: budget\nname: long\n---\nkind: budget\nname: base\n---\nkind: budget\nname: over\nextends: base\n"
    found = warnings(
        file, text=HARNESS.replace("builder: {model: primary}", "builder: {model: primary, policies: {budget: over}}")
    )
    assert found == [
        "a.yaml:1:1: budget/long is used by no agent and no rule of assign: it can still be named: submit --policy"
    ]


def test_a_limit_that_cuts_another_short_names_both_lines() -> None:
    # A5: the smaller wins
    found = warnings("kind: tools\nrules: [{for: tool/bash, timeout: {life: 5h}}]\n")
    assert len(found) == 1
    assert found[0].startswith("a.yaml:2:42: timeout.life 5h is above wall_time 2h (builtin budget.yaml:")
    assert found[0].endswith("the smaller wins: raise wall_time, or leave it so")
    short = warnings("kind: budget\nlimits: {wall_time: 10m}\n")
    assert [line.split(" is above")[0] for line in short] == [
        "a.yaml:2:21: model.deadline 30m",
        "a.yaml:2:21: timeout.life 2h",
    ]
    together = (
        "kind: tools\nname: night\nrules: [{for: tool/bash, timeout: {life: 5h}}]\n---\nkind: budget\nname: night\n"
        "limits: {wall_time: 6h}\n---\nkind: assign\n"
        "rules: [{when: {agent: nightly}, use: {tools: night, budget: night}}]\n"
    )
    assert warnings(together) == []


@given(st.text("ab/*", min_size=1, max_size=6), st.text("ab/*", min_size=1, max_size=6), st.text("ab/", max_size=8))
def test_covering_is_sound(first: str, second: str, thing: str) -> None:
    one, two = make_name(first, Place("f")), make_name(second, Place("f"))
    if covers((one,), (two,)) and two.fits(thing):
        assert one.fits(thing) or first == "*"
