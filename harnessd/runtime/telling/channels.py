"""Channels: what policy says of a channel, made ready to deliver with the secrets of this moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from harnessd.config.environment import resolve_secret
from harnessd.domain.durable.outbox import Alert, Notifier
from harnessd.domain.ports import Refused
from harnessd.policy.notify import NotifyPolicy, Webhook, accepted, body_of
from harnessd.policy.values import SecretRef
from harnessd.runtime import telemetry
from harnessd.runtime.redact import Redactor
from harnessd.runtime.telling.words import placeholders

_log = telemetry.log("notify")
# A command needs to find programs and its own home; every other variable of ours may hold a key.
_PASSED = ("PATH", "HOME", "LANG")


@dataclass(frozen=True, slots=True)
class Posting:
    """A webhook made ready."""

    url: str
    headers: Mapping[str, str]
    body: Callable[[Alert], Any]
    accepts: Callable[[int, Any], bool]
    secrets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Adapters:
    """How each sort of channel is made; filled in by the composition root."""

    webhook: Callable[[Posting], Notifier]
    command: Callable[[Sequence[str], Mapping[str, str]], Notifier]
    log: Callable[[Callable[[str, str, Mapping[str, Any]], None], str], Notifier]
    apprise: Callable[[str], Notifier]


class _Unset(Exception):  # noqa: N818 - a way out of reading several secrets
    """A secret cannot be had; the words never hold a value."""


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of the policy in force."""

    policy: Callable[[], NotifyPolicy]
    adapters: Adapters
    environ: Mapping[str, str]
    redactor: Redactor

    def notifier(self, name: str) -> Notifier | Refused:
        """A channel made ready. Refused: `not_found`, or `refused` where a secret cannot be had now."""
        channel = self.policy().shape.channels.get(name)
        if channel is None:
            known = ", ".join(self.policy().shape.channels)
            return Refused("not_found", f"There is no channel {name}", f"There are: {known}.")
        try:
            if channel.webhook is not None:
                return self.adapters.webhook(self._posting(name, channel.webhook))
            if channel.apprise is not None:
                return self.adapters.apprise(self._secret(name, channel.apprise))
        except _Unset as unset:
            return Refused("refused", str(unset))
        if channel.command is not None:
            passed = {key: self.environ[key] for key in _PASSED if key in self.environ}
            return self.adapters.command(channel.command, passed)
        return self.adapters.log(_write_line, channel.log or "warning")

    def _posting(self, name: str, webhook: Webhook) -> Posting:
        url = self._secret(name, webhook.url)
        for part in urlsplit(url).path.split("/"):
            self.redactor.learn(part)  # chat services put their key into the path
        headers = {}
        secrets = [url]
        for header, value in webhook.headers.items():
            if isinstance(value, SecretRef):
                secrets.append(self._secret(name, value))
                headers[header] = secrets[-1]
            else:
                headers[header] = value
        template = webhook.body

        def body(alert: Alert) -> Any:
            return dict(alert) if template is None else body_of(template, placeholders(alert))

        return Posting(url, headers, body, lambda status, answer: accepted(webhook, status, answer), tuple(secrets))

    def _secret(self, channel: str, secret: SecretRef) -> str:
        found = resolve_secret(secret, self.environ, f"channel {channel}")
        if found.value is None:
            raise _Unset(f"{found.sentence}; {found.remedy}")
        self.redactor.learn(found.value)
        return found.value


def _write_line(level: str, event: str, facts: Mapping[str, Any]) -> None:
    getattr(_log, level)(event, **facts)
