"""Credential: the key is read for each call, bound to its origin, and never seen in what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harnessd.domain.failure import Failure
from harnessd.domain.messages import ModelReply
from harnessd.domain.ports import CallClocks, Progress
from harnessd.net import Redactor, secrets_of_url
from harnessd.providers.answer import Reader
from harnessd.providers.endpoint import Endpoint
from harnessd.providers.evidence import Witness
from harnessd.providers.exchange import Exchange


async def attempt(
    endpoint: Endpoint,
    protocol: str,
    url: str,
    headers: Callable[[str], Mapping[str, str]],
    call: tuple[bytes, Reader, CallClocks, Progress],
) -> ModelReply | Failure:
    """Perform one call with the key of this moment. `call`: body, reader, clocks, progress."""
    body, reader, clocks, progress = call
    key, trouble = _read_key(endpoint)
    redactor = Redactor((key, *secrets_of_url(endpoint.base_url)))
    witness = Witness(endpoint.dependency, protocol, redactor, endpoint.window, endpoint.now)
    if trouble:
        return witness.keyless(trouble)
    sent = {"content-type": "application/json", "accept": "text/event-stream"} | dict(headers(key))
    exchange = Exchange(endpoint.clients, url, sent, body, reader, progress, witness)
    return await exchange.perform(clocks)


def _read_key(endpoint: Endpoint) -> tuple[str, str]:
    """The key, and a sentence if it cannot be used."""
    try:
        key = (endpoint.key() or "").strip()
    except OSError as error:
        return "", f"the key of {endpoint.dependency} cannot be read ({error.strerror or error})"
    if not key.isascii() or not key.isprintable():
        # A line break in a header would end it and begin another.
        return key, f"the key of {endpoint.dependency} holds characters that no HTTP header can carry"
    return key, ""
