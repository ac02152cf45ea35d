"""Addresses: which of them a stranger's URL may lead to; names are resolved once and every address is looked at.

A name is text that its owner points wherever he likes, also at 127.0.0.1 or at the cloud's metadata service, and
differently at the next look-up. So what is judged is each address a name has, and what is connected to is one of those.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import httpx

from harnessd.domain.places import Address, Allowed
from harnessd.net.border import TransportError

# RFC 6052: an IPv4 address behind a translator; the packet goes to the embedded one.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_KINDS = (
    ("is_unspecified", "the unspecified address"),
    ("is_loopback", "this machine"),
    ("is_link_local", "a link-local address, where clouds keep their metadata"),
    ("is_multicast", "a multicast address"),
    ("is_private", "a private network"),
    ("is_reserved", "a reserved address"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart by the reader that also sends it, so that no two readings of it can differ."""

    url: httpx.URL
    host: str  # ASCII
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError with a sentence for a URL that is not called."""
        if any(ord(char) <= 0x20 or ord(char) == 0x7F for char in text) or "\\" in text:
            raise ValueError("the address holds a space, a control character or a backslash; write it percent-encoded")
        try:
            url = httpx.URL(text)
            host, port = url.raw_host.decode("ascii"), url.port
        except (httpx.InvalidURL, ValueError, UnicodeError) as error:
            raise ValueError(f"the address is not a URL: {error}") from error
        if url.scheme not in {"http", "https"} or not host:
            raise ValueError("an address must begin with http:// or https:// and name a host")
        if url.userinfo:
            raise ValueError("the address holds a user or a password; send them as a header")
        if "%" in host:
            raise ValueError("the host's name is percent-encoded; write it out")
        if port is not None and not 0 < port < 65536:
            raise ValueError("the address is not a URL: its port must be a number from 1 to 65535")
        return cls(url, host, port or (443 if url.scheme == "https" else 80))


@dataclass(frozen=True, slots=True)
class NotReachable:
    """Why a host is not called, in one sentence."""

    sentence: str


async def resolve(target: Target, allowed: Sequence[Allowed]) -> tuple[Address, ...] | NotReachable:
    """The addresses of a target's host, in the resolver's order, if each of them may be reached.

    Raises TransportError `dns` where the name has none.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise TransportError("dns", f"the host name could not be resolved: {error}") from error
    addresses = tuple(dict.fromkeys(ipaddress.ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found))
    for address in addresses:
        why = forbidden(address)
        if why is not None and not any(one.fits(target.host, address, target.port) for one in allowed):
            return NotReachable(f"{target.host} is {address}, {why}")
    return addresses


def forbidden(address: Address) -> str | None:
    """What makes an address one that the public internet does not have, or None."""
    for inner in _meant(address):
        for test, words in _KINDS:
            if getattr(inner, test):
                return words
        if not inner.is_global:
            return "not a public address"
    return None


def _meant(address: Address) -> tuple[Address, ...]:
    """The addresses a packet to this one goes to: an IPv6 address may carry an IPv4 one."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address in _NAT64:
        # Where a network has only IPv6, every public IPv4 service is found under such an address.
        return (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF),)
    inside = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _COMPATIBLE and int(address) > 1:
        inside.append(ipaddress.IPv4Address(int(address)))
    return (*(one for one in inside if one is not None), address)
