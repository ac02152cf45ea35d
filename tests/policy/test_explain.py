"""Explain and schema: the reference and the editors' schemas come from the shapes that check."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from harnessd.config.files import builtin_folder
from harnessd.config.load import builtin_policies
from harnessd.config.strict_yaml import parse
from harnessd.policy.assembly.kinds import ALL_KINDS, KINDS
from harnessd.policy.language.freeform import Json
from harnessd.policy.reference.explain import Key, explain, keys
from harnessd.policy.reference.schema import any_kind, schema

SHIPPED = builtin_policies().policies


def one(path: str) -> Key:
    found = explain(path, SHIPPED)
    assert not isinstance(found, str), found
    assert len(found) == 1, [key.asked for key in found]
    return found[0]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_key_has_type_meaning_and_default(kind: str) -> None:
    # R7.3
    found = keys(kind, SHIPPED[kind, "default"])
    assert found
    for key in found:
        assert key.meaning.endswith((".", "...")), key
        assert key.type, key
        assert key.default, key


@pytest.mark.parametrize(
    ("path", "type_", "default", "bounds"),
    [
        # the two paths that policies.md promises, and one of each sort
        ("retry.model.classes.rate_limited.retries", "count", "10 (the group's)", "0..100"),
        ("tools.rules.timeout.life", "duration or none", "2h", "1s..30d"),
        ("budget.limits.cost_usd", "amount in USD or none", "5.00", "0..100000"),
        ("budget.warn_at", "list of ratio", "[70%, 90%]", "0..5 values of 1%..99.9%, rising"),
        ("escalation.ask.do", "word", "stop", "stop park"),
        ("limits.rules.concurrency", "count or none", '8 for "model/*"', "1..10k"),
        ("notify.channels.ops.webhook.url", "secret", "required", ""),
        ("loop.do", "do", "[nudge, rollback, needs_human]", "nudge rollback needs_human stop"),
        (
            "fallback.chains.model/primary",
            "name",
            "none",
            "model/ALIAS, tool/NAME, mcp/SERVER, feature/NAME, agent/NAME",
        ),
    ],
)
def test_single_keys(path: str, type_: str, default: str, bounds: str) -> None:
    key = one(path)
    assert (key.type, key.default, key.bounds) == (type_, default, bounds)


def test_whole_kinds_and_wrong_paths() -> None:
    everything = explain("", SHIPPED)
    assert not isinstance(everything, str)
    assert {key.kind for key in everything} == set(ALL_KINDS)
    below = explain("retry.model", SHIPPED)
    assert not isinstance(below, str)
    assert all(key.asked.startswith("retry.model.") for key in below)
    assert explain("retry.modl", SHIPPED) == 'no key "modl" in retry: did you mean "retry.model"?'
    assert explain("retri", SHIPPED) == 'no kind "retri": did you mean "retry"?'


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("budget.warn", '"budget.warn_at" or "budget.warning"'),
        ("budget.tool_calls", '"budget.limits.tool_calls"'),
        ("budget.limits.tool", '"budget.limits.tool_calls"'),
        ("retry.rate_limited", '"retry.model.classes.rate_limited" or "retry.tool.classes.rate_limited"'),
        ("retry.model.classes.rate_limitd.retries", '"retry.model.classes.rate_limited.retries"'),
        ("tools.timeout", '"tools.rules.timeout"'),
        ("notify.webhook", '"notify.channels.NAME.webhook"'),
    ],
)
def test_a_wrong_path_names_every_key_that_it_may_mean(path: str, meant: str) -> None:
    said = explain(path, SHIPPED)
    assert isinstance(said, str)
    assert said.endswith(f": did you mean {meant}?")


@pytest.mark.parametrize("path", ["loop.x", "retry.retries", "limits.tokens", "budget.zzz"])
def test_a_wrong_path_that_may_mean_anything_names_nothing(path: str) -> None:
    assert "did you mean" not in str(explain(path, SHIPPED))


def test_the_schemas_accept_what_is_shipped() -> None:
    # R7.3
    validator = jsonschema_rs.validator_for(any_kind())
    seen = set()
    for path in sorted(builtin_folder().glob("*.yaml")):
        for document in parse(path.read_bytes(), path.name).documents:
            data = Json().read(document)
            seen.add(data["kind"])
            assert [error.message for error in validator.iter_errors(data)] == []
    assert seen == set(KINDS)


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("budget", {"kind": "budget", "limits": {"tool_cals": 3}}),
        ("budget", {"kind": "budget", "limits": {"wall_time": 300}}),
        ("retry", {"kind": "retry", "model": {"classes": {"auth": {"do": "fallbak"}}}}),
        ("limits", {"kind": "limits", "rules": [{"concurrency": 3}]}),
        ("limits", {"kind": "limits", "name": "web"}),
        ("tools", {"kind": "tools", "rules": [{"when": {"comand": "x"}}]}),
        ("notify", {"kind": "notify", "channels": {"x": {"webhook": {"url": "https://x"}}}}),
    ],
)
def test_the_schemas_refuse_what_the_daemon_refuses(kind: str, document: dict[str, object]) -> None:
    assert not jsonschema_rs.validator_for(schema(kind)).is_valid(document)
    assert not jsonschema_rs.validator_for(any_kind()).is_valid(document)


def test_the_schemas_are_json() -> None:
    assert json.loads(json.dumps(any_kind())) == any_kind()
