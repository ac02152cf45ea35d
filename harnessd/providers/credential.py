"""Credential: the key is read for each call, bound to its origin, and never seen in what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from harnessd.domain.failure import Failure
from harnessd.domain.messages import ModelReply
from harnessd.domain.ports import CallClocks, Progress
from harnessd.domain.tokens import estimate_tokens
from harnessd.net import Redactor, secrets_of_url
from harnessd.providers.answer import Reader
from harnessd.providers.endpoint import Endpoint
from harnessd.providers.evidence import Witness
from harnessd.providers.exchange import Exchange
from harnessd.providers.wire import load

_SIZE_MATTERS = frozenset({200, 400, 413, 422, 500})


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
    result = await exchange.perform(clocks)
    return _sized(result, body, endpoint.window) if isinstance(result, Failure) else result


def _sized(failure: Failure, body: bytes, window: int) -> Failure:
    """With the size of the request, roughly, where the service did not tell it and a request could be too large."""
    if failure.window_used is not None or not window or failure.status not in _SIZE_MATTERS or failure.transport:
        return failure
    return replace(failure, window_used=estimate_tokens(load(body.decode())) / window)


def _read_key(endpoint: Endpoint) -> tuple[str, str]:
    """The key, and a sentence if it cannot be used."""
    try:
        key = (endpoint.key() or "").strip()
    except OSError as error:
        # Whose key it is stands in the failure already.
        return "", str(error.strerror or error).removeprefix(f"{endpoint.dependency.replace('/', ' ')}: ")
    if not key.isascii() or not key.isprintable():
        # A line break in a header would end it and begin another.
        return key, f"the key of {endpoint.dependency} holds characters that no HTTP header can carry"
    return key, ""
