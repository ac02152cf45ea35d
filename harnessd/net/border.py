"""The border: foreign exceptions are mapped here, by one table, to the transport words of `Failure`."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx


class TransportError(Exception):
    """No whole HTTP answer.

    Attributes:
        word: `connect_timeout` `read_timeout` `write_timeout` `pool_timeout` `reset` `closed` `dns` `tls` `refused`
            `unreachable` `protocol` `decoding` `too_large`.
        message: one sentence, not yet redacted.
    """

    def __init__(self, word: str, message: str) -> None:
        super().__init__(f"{word}: {message}")
        self.word = word
        self.message = message


# The first entry that fits decides: the exception itself or anything that caused it. httpx wraps what httpcore wraps
# what anyio wraps; the fact (refused? no such name? certificate?) is only in the innermost exception.
_CAUSES: tuple[tuple[type[BaseException], str, str], ...] = (
    (ssl.SSLError, "tls", "the secure connection could not be made"),
    (socket.gaierror, "dns", "the host name could not be resolved"),
    (ConnectionRefusedError, "refused", "the connection was refused"),
    (ConnectionResetError, "reset", "the connection was reset"),
    (BrokenPipeError, "reset", "the connection was reset"),
)
_ERRORS: tuple[tuple[type[BaseException], str, str], ...] = (
    (httpx.ConnectTimeout, "connect_timeout", "not connected in time"),
    (httpx.ReadTimeout, "read_timeout", "no answer in time"),
    (httpx.WriteTimeout, "write_timeout", "the request was not taken in time"),
    (httpx.PoolTimeout, "pool_timeout", "no free connection in time"),
    (httpx.ConnectError, "unreachable", "the host cannot be reached"),
    (httpx.ReadError, "reset", "the connection broke"),
    (httpx.WriteError, "reset", "the connection broke"),
    (httpx.CloseError, "closed", "the connection was closed"),
    (httpx.DecodingError, "decoding", "the answer cannot be decoded"),
    (httpx.RemoteProtocolError, "protocol", "the answer is not HTTP"),
    (httpx.LocalProtocolError, "protocol", "the request cannot be sent as HTTP"),
    (httpx.ProxyError, "protocol", "a proxy failed"),
    (httpx.UnsupportedProtocol, "protocol", "the address is neither http nor https"),
    (httpx.InvalidURL, "protocol", "the address is not a URL"),
    (httpx.HTTPError, "protocol", "the exchange failed"),
    (httpx.StreamError, "protocol", "the exchange failed"),
)
# h11 has one exception for a peer that talks nonsense and for one that hangs up; only the words tell.
_HUNG_UP = ("peer closed connection", "server disconnected", "connection closed")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and all that led to it, groups opened."""
    todo, seen = [error], set[int]()
    while todo:
        current = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        todo += [cause for cause in (current.__cause__, current.__context__) if cause is not None]
        if isinstance(current, BaseExceptionGroup):
            todo += current.exceptions


def translate(error: BaseException) -> TransportError | None:
    """Our word for a foreign exception, or None if it is none of the wire's."""
    if not isinstance(error, tuple(kind for kind, _, _ in _ERRORS)):
        return None
    words = str(error).strip()
    if isinstance(error, httpx.RemoteProtocolError) and words.lower().startswith(_HUNG_UP):
        return TransportError("closed", words)
    chain = tuple(_chain(error))
    for kind, word, sentence in _CAUSES:
        for cause in chain:
            if isinstance(cause, kind):
                return TransportError(word, f"{sentence}: {cause}")
    for kind, word, sentence in _ERRORS:
        if isinstance(error, kind):
            return TransportError(word, f"{sentence}: {words}" if words else sentence)
    return None  # pragma: no cover - the first test and the table hold the same types


@contextmanager
def border() -> Iterator[None]:
    """Let no foreign exception of the wire leave: what comes out is a `TransportError`."""
    try:
        yield
    except Exception as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error
