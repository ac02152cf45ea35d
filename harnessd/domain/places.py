"""Places: where in a network something may be reached."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Self

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Allowed:
    """One place beside the public internet that may be reached: a network or a host name, on one port or on all."""

    place: Network | str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """`10.0.0.0/8`, `127.0.0.1:8080`, `[::1]:80`, `git.internal`. Raises ValueError with a sentence."""
        host, port = _split_port(text.strip())
        try:
            return cls(ipaddress.ip_network(host), port)
        except ValueError:
            if "/" in host or ":" in host or not host.strip("."):
                raise ValueError(f"{text!r} is neither a network (10.0.0.0/8), an address nor a host name") from None
        return cls(host.lower().rstrip("."), port)

    def fits(self, host: str, address: Address, port: int) -> bool:
        """Whether this address, found under this name, is meant."""
        if self.port not in (None, port):
            return False
        if isinstance(self.place, str):
            return host.lower().rstrip(".") == self.place
        return address.version == self.place.version and address in self.place


def _split_port(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or rest[:1] not in ("", ":"):
            raise ValueError(f"{text!r} is no address: an IPv6 address with a port is written [::1]:80")
        port = rest[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        return text, None
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r}: the port must be a number from 1 to 65535")
    return host, int(port) if port else None
