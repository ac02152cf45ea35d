"""Limits: per name, per minute, per day; who waits and who parks."""

from __future__ import annotations

import pytest

from harnessd.policy.limits import Load, admit, settings
from tests.policy.written import policy, problems

OWN = policy(
    "limits",
    "kind: limits\nrules:\n"
    "  - {for: agent/crawler, cost_usd_per_day: 10, do: [fallback, park], note: INC-311}\n"
    '  - {name: batch, for: "label/batch=*", concurrency: 20}\n'
    "  - {for: model/local, timeout: {first_event: 5m}, requests_per_minute: 30, tokens_per_minute: 1k}\n"
    "  - {for: daemon, concurrency: 50}\n",
)


def test_each_leaf_comes_from_the_first_entry_that_states_it() -> None:
    # R3.15, A3, A20
    local = settings(OWN, "model/local")
    assert (local.concurrency, local.first_event_s, local.idle_s, local.call_s) == (8, 300, 55, 600)
    assert (local.refs["timeout.first_event"].line, local.refs["concurrency"].rule) == (5, "models")
    assert settings(OWN, "label/batch=port-7").concurrency == 20
    assert settings(OWN, "label/other=x").concurrency is None
    assert settings(OWN, "daemon").concurrency == 50
    assert settings(OWN, "tool/bash").concurrency is None
    crawler = settings(OWN, "agent/crawler")
    assert (crawler.cost_usd_per_day, crawler.do) == (10, ("fallback", "park"))
    assert (settings(OWN, "agent/builder").cost_usd_per_day, settings(OWN, "agent/builder").do) == (50, ("park",))


@pytest.mark.parametrize(
    ("name", "load", "more", "held"),
    [
        ("model/local", Load(running=7), {}, None),
        ("model/local", Load(running=8), {}, "concurrency"),
        ("model/local", Load(requests_in_minute=29), {}, None),
        ("model/local", Load(requests_in_minute=30), {}, "requests_per_minute"),
        ("model/local", Load(tokens_in_minute=900), {"tokens": 100}, None),
        ("model/local", Load(tokens_in_minute=900), {"tokens": 101}, "tokens_per_minute"),
        ("model/local", Load(), {"tokens": 5000}, None),  # larger than a whole minute: waiting would not help it
        ("agent/crawler", Load(cost_usd_today=9.5), {"cost_usd": 0.5}, None),
        ("agent/crawler", Load(cost_usd_today=9.5), {"cost_usd": 0.6}, "cost_usd_per_day"),
        # R3.16: retries may be a part of a minute's calls; ten are always free
        ("model/primary", Load(requests_in_minute=12, retries_in_minute=9), {"retry": True}, None),
        ("model/primary", Load(requests_in_minute=40, retries_in_minute=10), {"retry": True}, "retry_share"),
        ("model/primary", Load(requests_in_minute=60, retries_in_minute=10), {"retry": True}, None),
        ("model/primary", Load(requests_in_minute=40, retries_in_minute=30), {}, None),
    ],
)
def test_who_passes(name: str, load: Load, more: dict[str, float], held: str | None) -> None:
    found = admit(settings(OWN, name), load, **more)  # type: ignore[arg-type]
    assert (found.limit if found else None) == held


def test_the_days_money_names_its_ladder_and_line() -> None:
    held = admit(settings(OWN, "agent/crawler"), Load(cost_usd_today=10), cost_usd=0.01)
    assert held is not None
    assert held.sentence == "10.00 of 10.00 USD a day used by agent/crawler"
    assert (held.do, held.rule.line) == (("fallback", "park"), 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('rules: [{for: "*", concurrency: 4}]', 'for "*" would cap models, agents and daemon alike: write "model/*"'),
        ("rules: [{concurrency: 4}]", 'the key "for" is missing'),
        ("rules: [{for: model/primary, timeout: {idle: 2h}}]", "2h is out of bounds: write 1s..1h"),
        ("rules: [{for: model/primary, timeout: {idle: 5m, call: 1m}}]", "timeout.idle 5m is above call 1m"),
        ("rules: [{for: model/primary, do: retry}]", "retry cannot be done here: write one of park, fallback"),
        ("rules: [{for: label/team, concurrency: 1}]", "label/team names no value: write label/KEY=VALUE"),
        ("rules: [{for: agent/craler, concurrency: 1}]", 'no agent "craler" in harness.yaml: did you mean'),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    found = problems(f"kind: limits\n{text}\n")
    assert any(message in line for line in found), found
