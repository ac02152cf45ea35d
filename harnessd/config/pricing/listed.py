"""Listed prices: the tables of the extra `prices` (genai-prices), as they lie in the installed package; no network."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Listed:
    """USD per million tokens of one model; `by` says whose list, for people."""

    input: float
    output: float
    cache_read: float | None
    cache_write: float | None
    by: str


@lru_cache(maxsize=512)
def listed(model: str, base_url: str, window: int) -> Listed | None:
    """The list's price of a model at an address; None where it is not on it, or the extra is not installed.

    The address tells whose price it is. One that no list knows may be a proxy or a machine of one's own: then the
    model's name alone is looked up. Some services charge long requests more, all tokens of them: the dearest price
    that a request within `window` can meet is the one that counts.
    """
    tables, version = _tables()
    if tables is None:
        return None
    snapshot = tables.get_snapshot()
    found = None
    for address in (base_url, None):
        try:
            found = snapshot.find_provider_model(model, None, None, address)
            break
        except LookupError:
            continue
    if found is None:
        return None
    provider, facts = found
    price = facts.get_prices(datetime.now(UTC))
    given, received = (_most(getattr(price, name, None), window) for name in ("input_mtok", "output_mtok"))
    if given is None or received is None:
        return None
    read, write = (_most(getattr(price, name, None), window) for name in ("cache_read_mtok", "cache_write_mtok"))
    return Listed(given, received, read, write, f"genai-prices {version}: {provider.id}/{facts.id}")


def _tables() -> tuple[ModuleType | None, str]:
    try:
        package = importlib.import_module("genai_prices")
        return importlib.import_module("genai_prices.data_snapshot"), str(package.__version__)
    except ImportError:
        return None, ""


def _most(price: Any, window: int) -> float | None:
    """The dearest of a price's tiers that begins within the window."""
    if price is None:
        return None
    tiers = [tier.price for tier in getattr(price, "tiers", ()) if tier.start < window]
    return float(max([getattr(price, "base", price), *tiers]))
