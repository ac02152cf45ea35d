"""Webhook: an alert is one POST of JSON over the kept clients; redirects are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.durable.outbox import Alert, Delivery
from harnessd.domain.ports import CallClocks
from harnessd.domain.wait_hints import retry_after_s
from harnessd.net import CallTimer, Clients, Outgoing, Redactor, TransportError, origin_of, secrets_of_url

TIMEOUT_S = 30.0
_ANSWER_MAX = 64 * 1024
_SAID_MAX = 300


@dataclass(frozen=True, slots=True)
class Webhook:
    """`body` makes the JSON of an alert; `accepts` judges status and JSON of the answer; `secrets` are never said."""

    clients: Clients
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: Callable[[Alert], Any]
    accepts: Callable[[int, Any], bool]
    now: Callable[[], float]
    secrets: tuple[str, ...] = field(default=(), repr=False)
    timeout_s: float = TIMEOUT_S

    async def deliver(self, alert: Alert) -> Delivery:
        """See the port."""
        # Chat services put their key into the path: no part of the address is ever said.
        parts = tuple(part for part in self.url.split("/")[3:] if part)
        redactor = Redactor((*self.secrets, self.url, *parts, *secrets_of_url(self.url)))
        try:
            status, headers, raw = await self._post(alert)
        except TransportError as fault:
            return Delivery(done=False, said=redactor.text(fault.message)[:_SAID_MAX])
        except ValueError as fault:
            # An address that is none, or a header that HTTP cannot carry. Its words may hold the value.
            words = str(fault) if str(fault).startswith("an address must") else "the request cannot be written as HTTP"
            return Delivery(done=False, said=words)
        text = raw.decode(errors="replace")
        answer = _json(text)
        shown = " ".join(redactor.text(text).split())[:_SAID_MAX]
        said = f"status {status}" + (f": {shown}" if shown else "")
        if 300 <= status <= 399:
            return Delivery(done=False, said=f"{said} (a redirect, which is not followed: write the final address)")
        if self.accepts(status, answer):
            return Delivery(done=True, said=said)
        return Delivery(done=False, said=said, retry_after_s=retry_after_s(headers, answer, "", self.now()))

    async def _post(self, alert: Alert) -> tuple[int, Mapping[str, str], bytes]:
        origin_of(self.url)
        document = json.dumps(self.body(alert), ensure_ascii=False, default=str).encode("utf-8", "replace")
        headers = {"content-type": "application/json", "idempotency-key": _header(str(alert["key"]))}
        outgoing = Outgoing("POST", self.url, headers | dict(self.headers), document)
        limit = self.timeout_s
        clocks = CallClocks(min(10.0, limit), limit, limit, limit)
        raw = b""
        async with CallTimer(clocks) as timer, self.clients.open(outgoing, timer) as incoming:
            async for piece in incoming.chunks(_ANSWER_MAX):
                timer.useful()
                raw += piece
        return incoming.status, incoming.headers, raw


def _header(key: str) -> str:
    return "".join(letter if letter.isascii() and letter.isprintable() else "_" for letter in key)[:200]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
