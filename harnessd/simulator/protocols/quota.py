"""Quotas: what a service lets through: requests and tokens in a span of time, requests at once; the rest gets a 429."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from harnessd.simulator.protocols.wire import Problem
from harnessd.simulator.values import count_of, one_of_keys, seconds_of

KEYS = ("requests", "tokens", "per", "at_once", "retry_after")


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one model; None: no such limit. `hint`: a refusal says how long to wait."""

    requests: int | None = None
    tokens: int | None = None
    per_s: float = 60.0
    at_once: int | None = None
    hint: bool = True


def read_quota(raw: Any, where: str) -> Quota:
    """`{requests, tokens, per, at_once, retry_after}`. Raises ScriptError."""
    one_of_keys(raw, KEYS, where)
    counts = {key: count_of(raw[key], f"{where}.{key}") for key in ("requests", "tokens", "at_once") if key in raw}
    return Quota(
        per_s=seconds_of(raw.get("per", "60s"), f"{where}.per"), hint=raw.get("retry_after") is not False, **counts
    )


@dataclass(slots=True)
class _Used:
    began: float
    requests: int = 0
    tokens: int = 0
    at_once: int = 0


@dataclass(slots=True)
class Quotas:
    """What each model's quota has left: spans begin one after the other, as fixed windows do."""

    clock: Callable[[], float]
    _used: dict[str, _Used] = field(default_factory=dict)

    def enter(self, model: str, quota: Quota, tokens: int, words: Problem) -> Problem | None:
        """The refusal, in the service's words for it; None: the request is let through and counts."""
        now = self.clock()
        used = self._used.setdefault(model, _Used(now))
        spans = int((now - used.began) / quota.per_s)
        if spans:
            used.began, used.requests, used.tokens = used.began + spans * quota.per_s, 0, 0
        if quota.at_once is not None and used.at_once >= quota.at_once:
            return words
        full = quota.requests is not None and used.requests + 1 > quota.requests
        full |= quota.tokens is not None and used.tokens > 0 and used.tokens + tokens > quota.tokens
        if full:
            left_s = math.ceil(used.began + quota.per_s - now)
            more = (("retry-after", str(left_s)),) if quota.hint else ()
            return replace(words, headers=(*words.headers, *more))
        used.requests, used.tokens, used.at_once = used.requests + 1, used.tokens + tokens, used.at_once + 1
        return None

    def leave(self, model: str) -> None:
        """A request that was let through is over."""
        self._used[model].at_once -= 1
