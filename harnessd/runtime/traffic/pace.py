"""Pace: how many calls a service bears now, learnt from its refusals: fewer after each, slowly more while it answers.

A service says "too much" in two ways: with a time to come back, or with nothing at all. Either way a crowd that comes
back together is refused together, so calls to it stand still for a moment and then begin with few at once: the way TCP
finds its rate. The bounds are those declared: one at least, `concurrency` at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from harnessd.domain.failure import ErrorClass

_FIRST_S, _LONGEST_S = 0.5, 32.0  # standing still where nothing is said: the waits of kind retry
_HINT_MAX_S = 60.0  # a longer one is for the tasks to decide on: another link, or parked
_FEWER = 0.5  # of what was under way when it was too much
_CAREFUL = 0.2  # of a normal step, above what was too much last time
_REMEMBERED = 0.8  # of what was too much the time before
_FORGOTTEN_S = 120.0  # limits move; what was too much once is tried again


@dataclass(frozen=True, slots=True)
class Pace:
    """How one service is called. `window`: calls at once, None: nothing was learnt; times are monotonic seconds."""

    window: float | None = None
    too_many: float = 0.0  # under way when it refused, or more
    until: float = 0.0  # nobody goes before
    refused_at: float = 0.0
    still_s: float = 0.0  # stood still since it last answered, in sum
    needed_s: float = 0.0  # how long it took the last time

    def refused(self, running: int, hint_s: float | None, now: float) -> Pace:
        """It was too much. `running` were under way, this one included; those that it refuses with it count once."""
        if now < self.until:
            return replace(self, until=max(self.until, now + min(hint_s or 0.0, _HINT_MAX_S)), refused_at=now)
        window = max(1.0, (running if self.window is None else min(running, self.window)) * _FEWER)
        if hint_s:
            wait_s = min(hint_s, _HINT_MAX_S)
        else:
            wait_s = min(max(_FIRST_S, self.still_s, self.needed_s * _FEWER), _LONGEST_S)
        too_many = max(1.0, running - 1.0, self.too_many * _REMEMBERED)  # one refusal may be chance
        return replace(
            self, window=window, too_many=too_many, until=now + wait_s, refused_at=now, still_s=self.still_s + wait_s
        )

    def answered(self, most: int | None, now: float) -> Pace:
        """It did its work: a little more may be under way. At `most`, or after a while, nothing is held back."""
        if self.window is None or now < self.until:
            return self  # sent before it was too much
        known = now - self.refused_at < _FORGOTTEN_S
        if not known and (most is None or self.window >= most):
            return Pace()
        step = _CAREFUL if known and self.window + 1.0 > self.too_many else 1.0
        window = self.window + step / self.window
        if most is not None:
            window = min(window, float(most))
        needed_s = self.still_s or self.needed_s
        return replace(self, window=window, still_s=0.0, needed_s=needed_s)


@dataclass(slots=True)
class Paces:
    """Of all services that ever refused."""

    _all: dict[str, Pace] = field(default_factory=dict)

    def learn(
        self,
        name: str,
        error_class: ErrorClass | None,
        running: int,
        most: int | None,
        hint_s: float | None,
        now: float,
    ) -> None:
        """What a call that ends says. Errors that say nothing of the load change nothing."""
        found = self._all.get(name)
        if error_class is ErrorClass.RATE_LIMITED or (error_class is ErrorClass.OVERLOADED and hint_s):
            # Overload without a time to come back is the service's own: how many we are is not its reason.
            self._all[name] = (found or Pace()).refused(running, hint_s, now)
        elif error_class is None and found is not None:
            after = found.answered(most, now)
            if after.window is None:
                del self._all[name]
            else:
                self._all[name] = after

    def held_s(self, name: str, running: int, now: float) -> float | None:
        """None: one more may go. Else seconds until somebody may, 0 where that depends on those under way."""
        found = self._all.get(name)
        if found is None or found.window is None:
            return None
        if now < found.until:
            return found.until - now
        return 0.0 if running >= int(found.window) else None
