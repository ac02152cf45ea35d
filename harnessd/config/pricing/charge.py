"""Charge: by which price each model of harness.yaml is charged, and where that price comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from harnessd.config.pricing.listed import listed


class Priced(Protocol):
    """A price as harness.yaml gives it."""

    @property
    def input(self) -> float: ...
    @property
    def output(self) -> float: ...
    @property
    def cache_read(self) -> float | None: ...
    @property
    def cache_write(self) -> float | None: ...


class Model(Protocol):
    """A model of harness.yaml."""

    @property
    def model(self) -> str: ...
    @property
    def base_url(self) -> str: ...
    @property
    def window(self) -> int: ...
    @property
    def prices(self) -> Priced | None: ...


@dataclass(frozen=True, slots=True)
class Charge:
    """USD per million tokens. `source`: own = harness.yaml, listed = the extra `prices`, dearest = another model's.

    `unknown`: nobody names a price above nothing that could stand in; what such a model costs is not known, and a cost
    limit refuses the configuration.
    """

    source: Literal["own", "listed", "dearest", "unknown"]
    input: float | None = None
    output: float | None = None
    cache_read: float | None = None
    cache_write: float | None = None
    by: str = ""

    @property
    def known(self) -> bool:
        """The price is the model's own, or a listed one."""
        return self.source in ("own", "listed")


def charges(models: Mapping[str, Model]) -> dict[str, Charge]:
    """Each model's charge, by alias. An unknown price counts as the dearest that any model has, never as nothing."""
    found = {alias: _own(model) for alias, model in models.items()}
    known = {alias: charge for alias, charge in found.items() if charge is not None}
    stand_in = _dearest(known)
    return {alias: charge if charge is not None else stand_in for alias, charge in found.items()}


def _own(model: Model) -> Charge | None:
    price = model.prices
    if price is not None:
        return Charge("own", price.input, price.output, price.cache_read, price.cache_write, by="harness.yaml")
    on_list = listed(model.model, model.base_url, model.window)
    if on_list is None:
        return None
    prices = (on_list.input, on_list.output, on_list.cache_read, on_list.cache_write)
    return Charge("listed", *prices, by=on_list.by)


def _dearest(known: Mapping[str, Charge]) -> Charge:
    """The dearest of each sort of token: one model's input may be dear, another's output."""
    dearest = max(known, key=lambda alias: (known[alias].output or 0.0, known[alias].input or 0.0), default="")
    output = max((charge.output or 0.0 for charge in known.values()), default=0.0)
    if not output:
        return Charge("unknown")
    given = max(charge.input or 0.0 for charge in known.values())
    # Cached tokens count as plain input where the price has no word on them, and nothing of an unknown one is cheap.
    return Charge("dearest", given, output, None, max(c.cache_write or given for c in known.values()), by=dearest)
