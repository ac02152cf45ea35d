"""Notify: who is told of what."""

from __future__ import annotations

from typing import Any

import pytest

from harnessd.policy.notify import EventFacts, accepted, body_of, route
from harnessd.policy.values import SecretRef
from tests.policy.written import policy, problems

# A2, A21
OWN = policy(
    "notify",
    """
kind: notify
channels:
  ops: {webhook: {url: {env: OPS_URL}, headers: {authorization: {credential: ops_token}, x-team: web}}}
  pager: {command: [/opt/page/send, agents]}
  feishu:
    webhook:
      url: {credential: feishu_url}
      body: {msg_type: text, content: {text: "{title}\\n{sentence}"}, n: 3, list: ["{event}"]}
      accept: {status: 200, body.code: 0}
rules:
  - {when: {event: [credential_dead, degraded], lasting: 4h}, to: [ops, pager], again_after: 30m}
  - {name: dead, when: {event: [credential_dead, degraded]}, to: [ops]}
  - {for: agent/crawler, to: []}
""",
)


def test_louder_with_time() -> None:
    # R3.4: a dead credential alerts louder with time
    early = route(OWN, EventFacts("credential_dead", dependency="model/primary", lasting=60.0))
    late = route(OWN, EventFacts("credential_dead", dependency="model/primary", lasting=14_400.0))
    assert (early.to, early.again_after_s, early.rule.rule) == (("ops",), 3600.0, "dead")
    assert (late.to, late.again_after_s) == (("ops", "pager"), 1800.0)


def test_everything_else_goes_to_the_log_and_nobody_is_nobody() -> None:
    assert route(OWN, EventFacts("drained")).to == ("log",)
    assert route(OWN, EventFacts("task_stopped", agent="crawler")).to == ()
    assert policy("notify").shape.channels["log"].log == "warning"


def test_bodies_are_filled_in_and_secrets_are_only_names() -> None:
    webhook = OWN.shape.channels["feishu"].webhook
    assert body_of(webhook.body, {"title": "T", "sentence": "S", "event": "e"}) == {
        "msg_type": "text",
        "content": {"text": "T\nS"},
        "n": 3,
        "list": ["e"],
    }
    assert OWN.shape.channels["ops"].webhook.headers == {
        "authorization": SecretRef("credential", "ops_token"),
        "x-team": "web",
    }


@pytest.mark.parametrize(
    ("channel", "status", "body", "delivered"),
    [
        ("ops", 204, None, True),
        ("ops", 302, None, False),
        ("feishu", 200, {"code": 0}, True),
        ("feishu", 200, {"code": 19001, "msg": "bad"}, False),
        ("feishu", 200, None, False),
    ],
)
def test_what_counts_as_delivered(channel: str, status: int, body: Any, delivered: bool) -> None:
    assert accepted(OWN.shape.channels[channel].webhook, status, body) is delivered


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [{to: [osp]}]", 'a.yaml:2:15: no channel "osp": write one of log'),
        ("channels: {x: {}}", "channel x is of 0 sorts"),
        ("channels: {x: {log: info, command: [/bin/x]}}", "channel x is of 2 sorts"),
        ("channels: {x: {command: [send]}}", "send is not an absolute path: write the whole path"),
        ("channels: {X: {log: info}}", '"X" is not a name of a channel'),
        ("channels: {x: {webhook: {url: 'https://hooks.example/secret'}}}", "a secret is never written here"),
        ("channels: {x: {webhook: {url: {env: U}, body: {t: '{nobody}'}}}}", "unknown placeholder {nobody}"),
        ("channels: {x: {webhook: {url: {env: U}, accept: {code: 0}}}}", 'unknown fact "code"'),
        ("channels: {x: {webhook: {url: {env: U}, headers: {'a b': x}}}}", '"a b" is not a name of a header'),
        ("rules: [{when: {event: dead}, to: [log]}]", "unknown word dead"),
        ("rules: [{again_after: 1s}]", "1s is out of bounds: write 1m..30d"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    found = problems(f"kind: notify\n{text}\n")
    assert any(message in line for line in found), found
    assert "hooks.example" not in str(found)
