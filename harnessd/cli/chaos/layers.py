"""Layers: what each layer of defence adds, its policies, and what arithmetic expects of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harnessd.cli.chaos.mix import REQUESTS, Mix

PRIMARY, FALLBACKS = "primary", ("second", "third", "fourth")
_RETRIES = 10
_PASSING = ("timeout", "network", "rate_limited", "overloaded", "server_error", "stream_interrupted")
# Waits are a hundredth of those that are shipped: what is measured is who repairs what, not how patient one is.
_WAITS: Mapping[str, Any] = {"base": "5ms", "cap": "320ms", "switch_after": 4}


@dataclass(frozen=True, slots=True)
class Layer:
    """One row of the table: all that the rows before it have, and `adds`."""

    name: str
    adds: str
    retries: int = _RETRIES
    links: int = 1 + len(FALLBACKS)
    view: bool = True
    rollback: bool = True

    def answered(self, mix: Mix, place: int) -> float:
        """Availability of one request: 1 - unrepairable - repairable x (1 - repair rate), link after link.

        `place` counts the requests of a task from 0.
        """
        lost = (0.0 if self.retries else mix.passing_at(place)) + (0.0 if self.view else mix.view_at(place))
        found = 0.0
        for _ in range(self.links):
            found = 1.0 - mix.lasting - lost + mix.lasting * found
        return found

    def done(self, mix: Mix) -> float:
        """Availability of a task, all of whose requests must be answered."""
        whole = 1.0 if self.rollback else 1.0 - mix.rough
        for place in range(REQUESTS):
            whole *= self.answered(mix, place)
        return whole

    def expected(self, mix: Mix) -> float:
        """Availability of requests: of those that are begun, the share that is answered."""
        begun = answered = 0.0
        reached = 1.0
        for place in range(REQUESTS):
            begun += reached
            reached *= self.answered(mix, place)
            answered += reached
        return answered / begun


LAYERS: Sequence[Layer] = (
    Layer("no harness", "each fault ends its task", retries=0, links=1, view=False, rollback=False),
    Layer("retry", "the same again, after a wait", links=1, view=False, rollback=False),
    Layer("+ fallback, breaker", "three models at a second endpoint", view=False, rollback=False),
    Layer("+ repair", "a smaller view of the history where the service refuses the whole", rollback=False),
    Layer("+ rollback", "back to a trusted point where a path is poisoned"),
)


def policies(layer: Layer) -> str:
    """The policies of a layer; JSON is YAML. What a layer does not have is switched off by policy, nothing else."""
    first = ["retry"] if layer.retries else []
    further = ["fallback"] if layer.links > 1 else []
    ladder = [*first, *further, "stop"]
    classes = {name: {"do": ladder} for name in _PASSING}
    classes |= {name: {"do": [*further, "stop"]} for name in ("quota_exhausted", "auth", "refused")}
    classes |= {
        "malformed_output": {"do": ladder},
        "context_overflow": {"do": ["compact", "stop"] if layer.view else ["stop"]},
        "invalid_request": {"do": ["repair", "stop"] if layer.view else ["stop"]},
    }
    breaker = {"open": "1s", "open_max": "2s", "ramp": "1s"}
    if layer.links == 1:
        breaker |= {"consecutive": "none", "failure_rate": "none"}
    limits = {"for": "model/*", "concurrency": 64, "retry_share": "60%"}
    documents: list[dict[str, Any]] = [
        {"kind": "retry", "model": {"retries": layer.retries, **_WAITS, "classes": classes}},
        {"kind": "breaker", "rules": [breaker]},
        {"kind": "limits", "rules": [limits]},
        # The tasks are short: what is older than the newest turn may go.
        {"kind": "compaction", "keep_turns": 1, "squeeze_over": "1KiB", "summary": {"max_tokens": 500}},
        # Nobody is there to approve.
        {"kind": "tools", "permissions": [{"for": "tool/http_request", "do": "allow"}]},
    ]
    if layer.links > 1:
        chain = [f"model/{alias}" for alias in FALLBACKS[: layer.links - 1]]
        documents.append({"kind": "fallback", "chains": {f"model/{PRIMARY}": chain}})
    if not layer.rollback:
        documents.append({"kind": "escalation", "rules": [{"when": {"failed_corrections": 3}, "do": "stop"}]})
        documents.append({"kind": "loop", "do": ["stop"]})
    # The word `none` is no text: quoted it would be refused.
    return "\n---\n".join(json.dumps(document).replace('"none"', "none") for document in documents) + "\n"
