"""Strangers: requests to addresses that an agent chose, each on a connection of its own to an address that was checked.

Connections are not kept: a kept one is found by its address alone, and would be lent to the next name that has the same
address, with the first name's certificate. A tool call is rare beside model calls, and its connection costs little.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import httpx

from harnessd.domain.places import Address, Allowed
from harnessd.net.addresses import NotReachable, Target, resolve
from harnessd.net.border import TransportError
from harnessd.net.clients import Incoming, Outgoing, checked, exchange
from harnessd.net.clocks import CallTimer

# Nothing was sent: another address of the same name may be tried.
NOT_CONNECTED = frozenset({"connect_timeout", "pool_timeout", "dns", "tls", "refused", "unreachable"})
_CLOSE_S = 5.0


class Strangers:
    """The way out for tools. `allowed` is what may be reached beside the public internet."""

    def __init__(self, allowed: Sequence[Allowed] = ()) -> None:
        self._allowed = tuple(allowed)
        self._tls: ssl.SSLContext | None = None

    async def look_up(self, target: Target) -> tuple[Address, ...] | NotReachable:
        """The addresses of a target, every one of them checked. Raises TransportError."""
        return await resolve(target, self._allowed)

    @asynccontextmanager
    async def open(
        self, target: Target, addresses: Sequence[Address], outgoing: Outgoing, timer: CallTimer
    ) -> AsyncIterator[Incoming]:
        """Send one request to the first of the checked addresses that takes a connection. Raises TransportError.

        Redirects are not followed: the next hop is a new address, to be checked by the caller.
        """
        transport, response = await self._connected(target, addresses, outgoing, timer)
        try:
            yield checked(response)
        finally:
            # A peer that no longer answers must not hold up the task.
            with suppress(httpx.HTTPError, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await response.aclose()
                    await transport.aclose()

    async def _connected(
        self, target: Target, addresses: Sequence[Address], outgoing: Outgoing, timer: CallTimer
    ) -> tuple[httpx.AsyncHTTPTransport, httpx.Response]:
        error = TransportError("dns", f"{target.host} has no address")
        # The receiver shall see the name it is known by, though the connection goes to the address that was checked.
        named = {"host": target.url.netloc.decode("ascii"), **outgoing.headers}
        for address in addresses:
            transport = httpx.AsyncHTTPTransport(verify=self._verify(target), trust_env=False, http1=True, http2=False)
            pinned = target.url.copy_with(host=str(address))
            there = replace(outgoing, url=str(pinned), headers=named)
            try:
                return transport, await exchange(transport, there, timer, {"sni_hostname": target.host})
            except TransportError as failed:
                await transport.aclose()
                if failed.word not in NOT_CONNECTED:
                    raise
                error = failed
            except BaseException:
                await transport.aclose()
                raise
        raise error

    def _verify(self, target: Target) -> ssl.SSLContext | bool:
        if target.url.scheme != "https":
            return False
        if self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=False)
            self._tls.load_default_certs()
        return self._tls
