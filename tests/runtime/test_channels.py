"""Channels: what policy says of a channel, with real adapters and the secrets of the moment."""

from __future__ import annotations

import json
from pathlib import Path

from harnessd.domain.durable.outbox import Alert, Notifier
from harnessd.domain.ports import Refused
from harnessd.net import Clients
from harnessd.notify import Apprise, Command, Log, Webhook
from harnessd.runtime.redact import Redactor
from harnessd.runtime.telling.channels import Adapters, Channels, Posting
from tests.loopback import Visit, loopback
from tests.policy.written import policy

NOW = 1_800_000_000.0
# A21
FEISHU = policy(
    "notify",
    """
kind: notify
channels:
  feishu:
    webhook:
      url: {credential: feishu_url}
      headers: {x-token: {env: OPS_TOKEN}, x-team: web}
      body: {msg_type: text, content: {text: "{title}\\n{sentence}\\n{lasting}"}}
      accept: {status: 200, body.code: 0}
  mail: {apprise: {env: APPRISE_URL}}
  pager: {command: [/usr/bin/env]}
rules: [{to: [feishu]}]
""",
)
ALERT: Alert = {
    **dict.fromkeys(("task", "agent", "dependency", "class", "reason", "next"), ""),
    "key": "k",
    "event": "drained",
    "state": "new",
    "title": "Title",
    "sentence": "It {drained}.",
    "revision": 1,
    "at": NOW,
    "count": 1,
    "lasting": 90.0,
    "labels": {},
    "data": {},
}


async def test_a_channel_is_what_policy_says_with_the_secrets_of_this_moment(tmp_path: Path) -> None:
    # A21, A2: templates, `accept`, secrets read at each use and never told
    async def picky(visit: Visit) -> None:
        await visit.answer(200, b'{"code": 0}' if b"new-4711" in visit.head else b'{"code": 9, "msg": "hook-key-0815"}')

    environ = {"XDG_CONFIG_HOME": str(tmp_path), "OPS_TOKEN": "old-token-4711"}
    clients, redactor = Clients(), Redactor()

    def webhook(one: Posting) -> Webhook:
        return Webhook(clients, one.url, one.headers, one.body, one.accepts, lambda: NOW, one.secrets)

    channels = Channels(lambda: FEISHU, Adapters(webhook, Command, Log, Apprise), environ, redactor)
    missing = channels.notifier("feishu")
    assert isinstance(missing, Refused)
    assert missing.code == "refused"
    assert "there is no credential feishu_url" in missing.message
    async with loopback(picky) as server:
        (tmp_path / "harnessd" / "credentials").mkdir(parents=True)
        (tmp_path / "harnessd" / "credentials" / "feishu_url").write_text(f"{server.url}/hook/hook-key-0815\n")
        said = []
        for token in ("old-token-4711", "new-4711-token"):
            environ["OPS_TOKEN"] = token
            notifier = channels.notifier("feishu")
            assert not isinstance(notifier, Refused)
            said.append(await notifier.deliver(ALERT))
        assert [one.done for one in said] == [False, True]
        assert said[0].said == 'status 200: {"code": 9, "msg": "[redacted]"}'
        assert json.loads(server.visits[0].body) == {
            "msg_type": "text",
            "content": {"text": "Title\nIt {drained}.\n1m 30s"},
        }
    for secret in ("hook-key-0815", "old-token-4711", "new-4711-token"):
        assert secret not in redactor.text(f"a line with {secret}.")
    await clients.aclose()


def unused(_: Posting) -> Notifier:
    raise AssertionError("no webhook is asked for")


async def test_a_command_sees_no_secret_of_the_daemon() -> None:
    environ = {"PATH": "/usr/bin:/bin", "OPS_TOKEN": "token-4711", "APPRISE_URL": "json://localhost"}
    adapters = Adapters(unused, Command, Log, Apprise)
    pager = Channels(lambda: FEISHU, adapters, environ, Redactor()).notifier("pager")
    assert isinstance(pager, Command)
    assert (await pager.deliver(ALERT)).said == "exit status 0: PATH=/usr/bin:/bin"
