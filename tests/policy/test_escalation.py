"""Escalation: what goes over the head of the line that has the error."""

from __future__ import annotations

import pytest

from harnessd.policy.escalation import FailureFacts, escalate
from tests.policy.written import policy, problems

SHIPPED = policy("escalation")


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        (FailureFacts("internal_error", ""), "own-bug"),
        (FailureFacts("state_corrupt", ""), "own-bug"),
        # R2.4: after N consecutive invalid calls the error leaves the model
        (FailureFacts("invalid_arguments", "tool/bash", consecutive=2), None),
        (FailureFacts("invalid_arguments", "tool/bash", consecutive=3), "three-strikes"),
        # R3.13
        (FailureFacts("outcome_unknown", "mcp/pay/charge", effect="irreversible"), "unknown-outcome"),
        (FailureFacts("outcome_unknown", "tool/bash", effect="reversible"), None),
        # R5.5
        (FailureFacts("execution_failed", "tool/bash", failed_corrections=3), "poisoned-path"),
        (FailureFacts("execution_failed", "tool/bash", failed_corrections=2), None),
    ],
)
def test_the_shipped_rules(facts: FailureFacts, rule: str | None) -> None:
    found = escalate(SHIPPED, facts)
    assert (found.rule.rule if found else None) == rule


def test_the_first_rule_that_holds_decides() -> None:
    own = policy(
        "escalation",
        "kind: escalation\nrules:\n"
        "  - {when: {class: execution_failed, tool: tool/web_*, consecutive: 2}, do: needs_human}\n"
        "  - {for: agent/crawler, when: {window_used: {above: 90%}, label.team: web}, do: [rollback, stop], "
        "to: start}\n",
    )
    failed = FailureFacts("execution_failed", "tool/web_search", tool="tool/web_search", consecutive=2)
    found = escalate(own, failed)
    assert found is not None
    assert (found.do, found.to, found.rule.line) == (("needs_human",), "last_good", 3)
    crawler = FailureFacts(
        "timeout", "model/second", agent="crawler", labels={"team": "web"}, window_used=0.95, model="model/second"
    )
    found = escalate(own, crawler)
    assert found is not None
    assert (found.do, found.to) == (("rollback", "stop"), "start")


def test_waits_and_recoveries() -> None:
    # R6.1a
    assert (SHIPPED.shape.recoveries, SHIPPED.shape.ask.after, SHIPPED.shape.ask.do) == (3, 604_800, "stop")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [{do: stop, to: start}]", "`to` without rollback in do: remove to"),
        ("rules: [{do: nudge}]", "nudge cannot be done here"),
        ("rules: [{when: {class: broken}, do: stop}]", "unknown word broken"),
        ("rules: [{when: {tool: tool/web_serch}, do: stop}]", 'no tool "web_serch" in harness.yaml'),
        ("rules: [{when: {consecutive: often}, do: stop}]", "often is not a count"),
        ("ask: {do: deny}", "unknown word deny: write one of park, stop"),
        ("recoveries: 0", "0 is out of bounds: write 1..20"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    found = problems(f"kind: escalation\n{text}\n")
    assert any(message in line for line in found), found
