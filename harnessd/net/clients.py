"""Kept HTTP clients: small pools, sharded, one set for each origin; never a client for each request.

The cost of a pool grows with its connections (a hundred in one pool cost twice what they cost in pools of four), and a
new client for each request costs 26 times a kept one. We stand on httpx's transports rather than on its `AsyncClient`:
a model call wants no redirects, cookies, proxies from the environment, default headers or log line with the address,
and a transport has none of them.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import httpx

from harnessd.net.border import TransportError, border
from harnessd.net.bounded import BoundedDecoder
from harnessd.net.clocks import CallTimer

CONNECTIONS_EACH = 4  # connections of one pool: performance.md, section 3
POOLS_MAX = 128  # for each origin; beyond them calls queue inside the pools, under the connect clock
KEEPALIVE_S = 60.0
STREAM_MAX = 64 * 1024 * 1024  # bytes of a streamed answer: 128k tokens of about 500 bytes of events each
_CLOSE_S = 5.0
# httpcore asks for this module at each lock of each request, eight times a call, and Python forgets that it was not
# there: the search of all paths costs more than the rest of the request. An entry None is its word for "not there".
if find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]
# httpcore and httpx log addresses and headers, and an address can hold a key.
_WIRE_LOGS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy", "httpcore.socks")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request. Its repr leaves headers, address and body out: they hold secrets."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)


def origin_of(url: str) -> str:
    """`scheme://host:port` of an address. Raises ValueError with a sentence when it is none that we can call."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("an address must begin with http:// or https:// and name a host")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


async def exchange(
    transport: httpx.AsyncHTTPTransport,
    outgoing: Outgoing,
    timer: CallTimer,
    extensions: Mapping[str, Any] | None = None,
) -> httpx.Response:
    """Send a request; the answer as soon as its headers are there. `timer` is told each step. Raises TransportError."""
    half_open: list[Any] = []  # a connection that is no pool's yet: its secure handshake is under way

    async def trace(event: str, facts: Any) -> None:
        if event == "connection.connect_tcp.started":
            timer.connecting()
        elif event == "connection.connect_tcp.complete":
            half_open.append(facts["return_value"])
        elif event == "http11.send_request_headers.started":
            half_open.clear()
            timer.connected()
        elif event == "http11.send_request_body.complete":
            timer.sent()

    with border():
        request = httpx.Request(
            outgoing.method,
            outgoing.url,
            headers={"user-agent": "harnessd", "accept-encoding": "identity"} | dict(outgoing.headers),
            content=outgoing.body,
            extensions={"trace": trace, **(extensions or {})},
        )
        try:
            return await transport.handle_async_request(request)
        except BaseException:
            # httpcore forgets a connection that is cancelled between TCP and TLS; nobody else can close it.
            for stream in half_open:
                await stream.aclose()
            raise


class Incoming:
    """An answer whose headers have come. `headers` has lower-case names; repeated ones are joined by a comma."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Mapping[str, str] = dict(response.headers.items())

    async def chunks(self, limit: int = STREAM_MAX) -> AsyncGenerator[bytes, None]:
        """The decoded body in pieces, at most `limit` bytes in all. Raises TransportError."""
        decoder = BoundedDecoder(self.headers.get("content-encoding", ""), limit)
        with border():
            async for raw in self._response.aiter_raw():
                for piece in decoder.feed(raw):
                    yield piece
        decoder.finish()


@dataclass(slots=True)
class _Pool:
    transport: httpx.AsyncHTTPTransport
    in_use: int = 0


class Clients:
    """All kept connections of the daemon. Used on one event loop; `aclose` gives everything back."""

    def __init__(self, *, connections_each: int = CONNECTIONS_EACH, pools_max: int = POOLS_MAX) -> None:
        self._connections_each = connections_each
        self._pools_max = pools_max
        self._pools: dict[str, list[_Pool]] = {}
        self._tls: ssl.SSLContext | None = None
        self._closed = False
        self.made = 0  # pools ever made: a measure that none is made for each request
        for name in _WIRE_LOGS:
            logging.getLogger(name).disabled = True

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, timer: CallTimer) -> AsyncIterator[Incoming]:
        """Send a request and give its answer as soon as the headers are there. Raises TransportError.

        Redirects are not followed: a key belongs to the origin it was configured for. Leaving the block before the
        body's end closes the connection; after it, the connection is kept.
        """
        pool = self._pick(origin_of(outgoing.url))
        pool.in_use += 1
        try:
            response = await exchange(pool.transport, outgoing, timer)
            try:
                yield checked(response)
            finally:
                with suppress(httpx.HTTPError):
                    await response.aclose()
        finally:
            pool.in_use -= 1

    async def release(self, url: str) -> None:
        """Close idle pools of an address's origin; calls under way keep theirs."""
        origin = origin_of(url)
        pools = self._pools.pop(origin, [])
        busy = [pool for pool in pools if pool.in_use]
        if busy:
            self._pools[origin] = busy + self._pools.get(origin, [])
        await self._close([pool for pool in pools if not pool.in_use])

    async def aclose(self) -> None:
        """Close every connection."""
        self._closed = True
        pools = [pool for origin in self._pools.values() for pool in origin]
        self._pools.clear()
        await self._close(pools)

    async def _close(self, pools: list[_Pool]) -> None:
        for pool in pools:
            # A peer that no longer answers must not hold up a shutdown.
            with suppress(httpx.HTTPError, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await pool.transport.aclose()

    def _pick(self, origin: str) -> _Pool:
        """The first pool with a free connection, so that the same few stay warm; a new one while there may be more."""
        if self._closed:
            raise TransportError("closed", "the daemon is shutting down")
        pools = self._pools.setdefault(origin, [])
        for pool in pools:
            if pool.in_use < self._connections_each:
                return pool
        if len(pools) >= self._pools_max:
            return min(pools, key=lambda pool: pool.in_use)
        try:
            pools.append(_Pool(self._transport(origin)))
        except OSError as error:
            # Without a descriptor left neither the certificates nor what httpx imports with its first pool can be read.
            raise TransportError("connect", f"no connection can be made: {error.strerror or error}") from error
        self.made += 1
        return pools[-1]

    def _transport(self, origin: str) -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(
            max_connections=self._connections_each,
            max_keepalive_connections=self._connections_each,
            keepalive_expiry=KEEPALIVE_S,
        )
        if origin.startswith("https:") and self._tls is None:
            # One context for all: reading the certificates of the world costs more than a call.
            self._tls = httpx.create_ssl_context(trust_env=False)
            self._tls.load_default_certs()
        verify: ssl.SSLContext | bool = self._tls if self._tls is not None and origin.startswith("https:") else False
        return httpx.AsyncHTTPTransport(verify=verify, trust_env=False, http1=True, http2=False, limits=limits)


def checked(response: httpx.Response) -> Incoming:
    """The answer, unless its framing is ambiguous."""
    if "content-length" in response.headers and "transfer-encoding" in response.headers:
        # RFC 9112 section 6.3: two lengths are an attempt at response splitting. httpx takes it, so the check is ours.
        raise TransportError("protocol", "the answer gives both a Content-Length and a Transfer-Encoding")
    if response.status_code < 200:
        raise TransportError("protocol", f"the answer switches protocols (status {response.status_code})")
    return Incoming(response)
