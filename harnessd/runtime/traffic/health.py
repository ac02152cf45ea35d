"""Health: what was measured of a model lately, in memory: the median time to the first event, and its breaker."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from statistics import median

_SAMPLES = 16
_FRESH_S = 900.0  # an old measurement says nothing about now


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of a model. `median_first_event_s`: None without fresh measurements; `open_for_s`: 0 = closed."""

    median_first_event_s: float | None = None
    open_for_s: float = 0.0
    may_retry: bool = True  # the retry budget (limits.retry_share) has room


class FirstEvents:
    """Times from sent to the first useful event, by model; an attempt that ended without one counts as its length."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=_SAMPLES))

    def add(self, name: str, at: float, took_s: float) -> None:
        """One measurement; `at` is monotonic."""
        self._seen[name].append((at, took_s))

    def median_s(self, name: str, now: float) -> float | None:
        """The median of the fresh ones."""
        fresh = [took_s for at, took_s in self._seen.get(name, ()) if now - at <= _FRESH_S]
        return median(fresh) if fresh else None
