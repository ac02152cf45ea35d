"""Endpoint: one model alias of harness.yaml as a provider needs it, and the address and key of one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from harnessd.net import Clients, origin_of

AZURE = ("azure.com", "azure-api.net")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model lives and what is known of it.

    Attributes:
        alias: the model's name in harness.yaml; the dependency is `model/ALIAS`.
        base_url: as an operator copies it from the service's documentation, with or without `/v1`.
        model: the service's own name of the model.
        key: read at each call, so that a new credential needs no restart; None or empty: no key is sent.
        clients: the daemon's kept connections.
        window: tokens of the context window; 0 = unknown.
        max_output: the most tokens of an answer; 0 = as the request says.
        now: seconds since the Unix epoch, for wait hints that name a time of day.
    """

    alias: str
    base_url: str = field(repr=False)
    model: str
    key: Callable[[], str | None] = field(repr=False)
    clients: Clients = field(repr=False)
    window: int
    max_output: int
    now: Callable[[], float] = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse an address that no call can reach. Raises ValueError with a sentence."""
        origin_of(self.base_url)

    @property
    def dependency(self) -> str:
        """The name in policies."""
        return f"model/{self.alias}"

    @property
    def host(self) -> str:
        """The host alone, lower-case."""
        return (urlsplit(self.base_url).hostname or "").lower()

    def is_at(self, *domains: str) -> bool:
        """Whether the host is one of these domains or lies under one."""
        return any(self.host == domain or self.host.endswith(f".{domain}") for domain in domains)

    @property
    def path(self) -> str:
        """The path of the base address, without a slash at its end."""
        return urlsplit(self.base_url).path.rstrip("/")

    def address(self, path: str) -> str:
        """The URL of a path at this origin; a query of the base address stays (Azure's version, some gateways' key)."""
        return urlunsplit(urlsplit(self.base_url)._replace(path=path, fragment=""))

    def bearer(self, key: str) -> dict[str, str]:
        """The header that carries a key to OpenAI and what speaks like it; none without a key."""
        if not key:
            return {}
        return {"api-key": key} if self.is_at(*AZURE) else {"authorization": f"Bearer {key}"}

    def output_limit(self, asked: int) -> int:
        """The request's limit, or the model's where that is lower."""
        return min(asked, self.max_output) if self.max_output else asked
