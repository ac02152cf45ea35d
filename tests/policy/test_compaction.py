"""Compaction: the effective window and its tiers."""

from __future__ import annotations

import pytest

from harnessd.policy.compaction import effective_window, gained_enough, overhead_too_large, standing
from tests.policy.written import policy, problems

SHIPPED = policy("compaction")


def test_the_effective_window_keeps_back_what_the_summary_needs() -> None:
    # R4.1
    assert effective_window(SHIPPED, 200_000, 8192) == 191_808
    assert effective_window(SHIPPED, 200_000, 64_000) == 180_000
    assert effective_window(SHIPPED, 100, 8192) == 1


@pytest.mark.parametrize(
    ("size", "tier"),
    [(0, "none"), (69_999, "none"), (70_000, "compact"), (90_000, "warn"), (98_000, "block"), (300_000, "block")],
)
def test_tiers(size: int, tier: str) -> None:
    # R4.2
    found = standing(
        policy("compaction", "kind: compaction\nreserve: 0\nsummary: {max_tokens: 500}\n"), size, 100_000, 1
    )
    assert found.tier == tier
    assert found.rule.rule == ("tiers.compact" if tier == "none" else f"tiers.{tier}")


def test_gains_and_overhead() -> None:
    # R4.2, c04
    assert gained_enough(SHIPPED, 100_000, 90_000)
    assert not gained_enough(SHIPPED, 118_000, 117_600)
    assert not gained_enough(SHIPPED, 0, 0)
    assert overhead_too_large(SHIPPED, 70_000, 108_192, 8192)
    assert not overhead_too_large(SHIPPED, 69_000, 108_192, 8192)


def test_the_summary() -> None:
    # R4.5
    assert SHIPPED.shape.summary.sections == ("goal", "progress", "decisions", "files", "next_steps")
    own = policy("compaction", "kind: compaction\nsummary: {model: model/second}\ndo: stop\n")
    assert own.shape.summary.model.text == "model/second"
    assert own.shape.do == ("stop",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiers: {compact: 95%}", "a.yaml:2:18: tiers.compact 95% is above warn 90%: write compact <= warn <= block"),
        ("tiers: {warn: 99%}", "tiers.warn 99% is above block 98%"),
        ("reserve: 2k", "summary.max_tokens 4k is above reserve 2k"),
        ("summary: {sections: [goal]}", "progress, decisions, files, next_steps must be in the list"),
        ("summary: {model: model/secnd}", 'no model "secnd" in harness.yaml'),
        ("summary: {model: second}", "second is not a name"),
        ("do: park", "park cannot be done here"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    found = problems(f"kind: compaction\n{text}\n")
    assert any(message in line for line in found), found
