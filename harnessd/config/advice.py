"""Advice: what a configuration may leave out but hardly means to: prices, and, when asked, secrets that are not set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from harnessd.config.environment import resolve_secret
from harnessd.config.pricing.charge import charges
from harnessd.config.settings import Settings
from harnessd.policy import PolicySet, Problem
from harnessd.policy.language.source import MapNode, Place, find
from harnessd.policy.values import SecretRef


def settings_warnings(settings: Settings, tree: MapNode) -> Iterator[Problem]:
    """Models without a price: charged as the dearest declared one, never as free."""
    for name, charge in charges(settings.models).items():
        if not charge.known:
            models = find(tree, ("models",))
            place = models.keys_at.get(name, tree.place) if isinstance(models, MapNode) else tree.place
            remedy = "write prices: {input: 3, output: 15}, or prices: free"
            what = f"it is charged as the dearest declared one ({charge.by}: {charge.input} and {charge.output} USD)"
            if charge.source == "unknown":
                what = "no price is there to charge it by, its cost is shown as 0"
            yield Problem.at(place, f"model {name} has no price: {what}", remedy)


def unset_secrets(settings: Settings, policies: PolicySet, environ: Mapping[str, str], file: str) -> Iterator[Problem]:
    """Secrets that cannot be read now (`policy check --env`); their values are never looked at further."""
    for owner, secret in _secrets(settings, policies):
        resolved = resolve_secret(secret, environ, owner)
        if resolved.value is None:
            yield Problem.at(Place(file), resolved.sentence, resolved.remedy)


def _secrets(settings: Settings, policies: PolicySet) -> Iterator[tuple[str, SecretRef]]:
    if isinstance(settings.store.url, SecretRef):
        yield "store", settings.store.url
    for name, model in settings.models.items():
        if model.key is not None:
            yield f"model {name}", model.key
    for name, channel in policies.notify.shape.channels.items():
        for secret in _inside(channel):
            yield f"channel {name}", secret


def _inside(value: Any) -> Iterator[SecretRef]:
    if isinstance(value, SecretRef):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _inside(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _inside(item)
