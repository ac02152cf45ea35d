"""Layers: the policies of each layer of defence, and what arithmetic expects of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

RETRIES = 10


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of attempts that fail: for a while (repairable), and for good."""

    repairable: float = 0.33
    lasting: float = 0.08

    @property
    def failing(self) -> float:
        """Of all attempts."""
        return self.repairable + self.lasting


@dataclass(frozen=True, slots=True)
class Layer:
    """One row of the table. `links`: models that a task may be given to, the first one included."""

    name: str
    retries: int
    links: int

    def expected(self, mix: Mix) -> float:
        """1 - unrepairable - repairable x (1 - repair rate), for each link; what one leaves, the next one gets."""
        # Each try meets the same faults anew, so a repeat is worth what a first try is, up to the last one.
        rate = 0.0
        for _ in range(self.retries):
            rate = 1.0 - mix.failing + mix.repairable * rate
        alone = 1.0 - mix.lasting - mix.repairable * (1.0 - rate)
        return 1.0 - (1.0 - alone) ** self.links


LAYERS: Sequence[Layer] = (
    Layer("no harness", 0, 1),
    Layer("repair: retries", RETRIES, 1),
    Layer("and one fallback", RETRIES, 2),
    Layer("and two", RETRIES, 3),
    Layer("and three", RETRIES, 4),
)


def aliases() -> list[str]:
    """The models of the longest chain."""
    return [f"m{number}" for number in range(max(layer.links for layer in LAYERS))]


def policies(layer: Layer, mix: Mix, seed: int) -> str:
    """The policies of a layer; JSON is YAML. Breakers and the retry budget are off: each fault stands alone here."""
    # Drawn one after the other: the second is drawn only where the first did not hit.
    second = mix.repairable / (1.0 - mix.lasting) if mix.lasting < 1 else 0.0
    faults = [
        {"for": "model/*", "rate": _ratio(mix.lasting), "inject": {"fail": "refused"}},
        {"for": "model/*", "rate": _ratio(second), "inject": {"status": 529}},
    ]
    wait = {"retries": layer.retries, "base": "20ms", "cap": "100ms", "switch_after": 100}
    quick = {"do": ["retry", "fallback", "stop"], "switch_after": 100}
    chain = aliases()[1 : layer.links]
    documents = [
        {"kind": "chaos", "seed": seed, "rules": faults},
        {"kind": "retry", "model": {**wait, "classes": {"overloaded": quick}}},
        {"kind": "breaker", "rules": [{"consecutive": "none", "failure_rate": "none"}]},
        {"kind": "limits", "rules": [{"for": "model/*", "retry_share": "none", "concurrency": 64}]},
    ]
    if chain:
        documents.append({"kind": "fallback", "chains": {"model/m0": [f"model/{alias}" for alias in chain]}})
    # The word `none` is no text: quoted it would be refused.
    return "\n---\n".join(json.dumps(document).replace('"none"', "none") for document in documents) + "\n"


def _ratio(share: float) -> str:
    return f"{share * 100:.4f}%"
