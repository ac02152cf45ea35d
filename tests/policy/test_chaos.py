"""Chaos: the same seed, the same faults."""

from __future__ import annotations

import pytest

from harnessd.policy.chaos import AttemptFacts, draw
from tests.policy.written import policy, problems

# A25
OWN = policy(
    "chaos",
    "kind: chaos\nseed: 42\nrules:\n"
    '  - {name: busy, for: "model/*", when: {label.chaos: "yes"}, rate: 20%, inject: {status: 529, body: {error: x}}}\n'
    '  - {name: slow, for: "model/*", when: {label.chaos: "yes"}, rate: 50%, inject: {delay: 40s}}\n'
    "  - {for: tool/bash, rate: 100%, inject: {fail: execution_failed}}\n",
)


def drawn(dependency: str, labels: dict[str, str], tasks: int = 2000) -> list[str]:
    found = (draw(OWN, AttemptFacts(dependency, f"t{n}", 1, labels=labels)) for n in range(tasks))
    return [fault.rule.rule for fault in found if fault is not None]


def test_rates_are_kept_and_only_labelled_tasks_are_hit() -> None:
    # R8.1
    rules = drawn("model/primary", {"chaos": "yes"})
    assert 340 < rules.count("busy") < 460
    assert 700 < rules.count("slow") < 900  # half of what the first left
    assert drawn("model/primary", {}) == []
    assert len(drawn("tool/bash", {}, 10)) == 10


def test_the_same_seed_draws_the_same_faults() -> None:
    facts = [AttemptFacts("model/primary", f"t{n}", a, labels={"chaos": "yes"}) for n in range(50) for a in (1, 2)]
    first = [draw(OWN, fact) for fact in facts]
    assert first == [draw(OWN, fact) for fact in facts]
    other = policy("chaos", "kind: chaos\nseed: 43\nrules: [{rate: 20%, inject: {status: 529}}]\n")
    assert [bool(fault) for fault in first] != [bool(draw(other, fact)) for fact in facts]
    fault = next(fault for fault in first if fault is not None and fault.rule.rule == "busy")
    assert (fault.inject.status, fault.inject.body) == (529, {"error": "x"})


def test_nothing_is_shipped() -> None:
    assert draw(policy("chaos"), AttemptFacts("model/primary", "t", 1)) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [{inject: {reset: true}}]", 'the key "rate" is missing'),
        ("rules: [{rate: 5%, inject: {}}]", "0 faults in one entry: write one of status, delay"),
        ("rules: [{rate: 5%, inject: {status: 500, delay: 1s}}]", "2 faults in one entry"),
        ("rules: [{rate: 5%, inject: {delay: 1s, body: x}}]", "headers and body go with status"),
        ("rules: [{rate: 5%, inject: {fail: broken}}]", "unknown word broken"),
        ("rules: [{rate: 5, inject: {reset: true}}]", "5 is not a ratio: 5% or 0.05?"),
        ("rules: [{rate: 5%, inject: {status: 700}}]", "700 is out of bounds: write 100..599"),
        ("rules: [{when: {status: 1}, rate: 5%, inject: {reset: true}}]", 'unknown fact "status"'),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    found = problems(f"kind: chaos\n{text}\n")
    assert any(message in line for line in found), found
