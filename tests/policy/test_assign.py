"""Assign: who has the last word on a task's policies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.policy import TaskFacts
from harnessd.policy.assign import share_of
from tests.policy.written import policies, problems

NAMED = """\
kind: budget
name: long
limits: {tool_calls: 150}
---
kind: budget
name: short
limits: {tool_calls: 15}
---
kind: tools
name: web
---
kind: retry
name: strict
model: {retries: 4}
"""
RULES = """\
kind: assign
rules:
  - {name: web, when: {label.team: web}, use: {budget: short, tools: web}}
  - {name: builders, for: agent/builder, use: {budget: long}}
  - {name: canary, when: {share: 10%}, use: {retry: strict}}
"""


def test_the_last_word() -> None:
    # policies.md: submit --policy, first assign rule that names the kind, the agent's, default
    made = policies(NAMED, RULES)
    builder = TaskFacts("t", "builder", labels={"team": "web"})
    found = made.for_task(builder, {"budget": "long"}, {"retry": "interactive"}, {})
    assert found.chosen["budget"] == ("short", "assign rule web")
    assert found.chosen["tools"] == ("web", "assign rule web")
    assert found.chosen["retry"] == ("interactive", "named for this task")
    assert found.chosen["loop"] == ("default", "nobody names another")
    assert (found.budget.name, found.budget.shape.limits.tool_calls, found.revision) == ("short", 15, 7)
    assert made.for_task(TaskFacts("t", "nightly"), {"budget": "long"}, {}, {}).chosen["budget"] == (
        "long",
        "agent nightly",
    )


def test_a_named_policy_that_is_gone_gives_way_to_the_next() -> None:
    # R7.2: when things vanish
    found = policies(NAMED, RULES).for_task(TaskFacts("t", "builder"), {}, {"budget": "gone"}, {"tool_calls": 20})
    assert found.chosen["budget"] == ("long", "assign rule builders")
    assert found.missing == ("budget/gone (named for this task) is gone",)
    assert found.budget.shape.limits.tool_calls == 20  # of this task alone, applied last


def test_a_canary_says_its_share() -> None:
    task = next(f"t{n}" for n in range(1000) if share_of(f"t{n}") < 0.1)
    found = policies(NAMED, RULES).for_task(TaskFacts(task, "crawler"), {}, {}, {})
    assert found.chosen["retry"] == ("strict", f"assign rule canary, this task {share_of(task):.2f} < 10%")


@given(st.text(min_size=1, max_size=12))
def test_a_share_is_fixed_and_contained_in_any_larger_one(task: str) -> None:
    place = share_of(task)
    assert 0 <= place < 1
    assert place == share_of(task)


def test_shares_are_near_their_part_of_all_tasks() -> None:
    inside = sum(share_of(f"8k{n}") < 0.1 for n in range(20_000))
    assert 1800 < inside < 2200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [{when: {share: 10%}}]", 'the key "use" is missing'),
        ("rules: [{use: {}}]", "the rule names no policy: write use: {KIND: NAME}"),
        ("rules: [{use: {budget: lng}}]", 'no budget policy "lng"'),
        ("rules: [{use: {limits: default}}]", 'unknown key "limits"'),
        (
            "rules: [{when: {agent: biulder}, use: {budget: default}}]",
            'no agent "biulder" in harness.yaml: did you mean',
        ),
        ("rules: [{for: model/primary, use: {budget: default}}]", "model has no meaning here"),
        ("rules: [{when: {message: x}, use: {budget: default}}]", 'unknown fact "message"'),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    assert any(message in line for line in problems(f"kind: assign\n{text}\n"))
