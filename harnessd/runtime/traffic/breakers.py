"""Breakers at work: one for each dependency, judged by pure rules, kept in the store, told of when they move."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from harnessd.domain.durable.breaker_store import BreakerStore, StoredBreaker, Transition
from harnessd.domain.events import EventType
from harnessd.domain.failure import ErrorClass
from harnessd.domain.ports import Clock
from harnessd.policy import PolicySet
from harnessd.policy import breaker as rules
from harnessd.policy.breaker import BreakerSettings, BreakerState
from harnessd.policy.budget import shown_duration

SAVE_COUNTS_S = 1.0  # counts are written at most so often; a transition at once


@dataclass(slots=True)
class Breaker:
    """One breaker. `since`: when its phase began (Unix epoch); `failed_probes`: in a row."""

    name: str
    state: BreakerState = BreakerState()  # noqa: RUF009 - frozen
    since: float = 0.0
    failed_probes: int = 0

    @property
    def word(self) -> str:
        """The phase for people."""
        if self.state.tripped_until is not None:
            return "tripped"
        return "half-open" if self.state.phase == "half_open" else self.state.phase


@dataclass(frozen=True, slots=True)
class Permit:
    """An attempt may be made; settled or given back exactly once. `round`: of which it is a probe; 0: it is none."""

    name: str
    round: int = 0


@dataclass(frozen=True, slots=True)
class Shut:
    """No attempt now; the time left in seconds, and why."""

    name: str
    wait_s: float
    why: str

    @property
    def sentence(self) -> str:
        """For people and models."""
        left = shown_duration(max(1.0, math.ceil(self.wait_s)))
        return f"the breaker of {self.name} is open for {left} more" + (f": {self.why}" if self.why else "")


class Breakers:
    """All breakers of a daemon. Nothing here waits but `keep`, which writes what changed."""

    def __init__(
        self,
        policies: Callable[[], PolicySet],
        clock: Clock,
        store: BreakerStore,
        moved: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`moved` is called with the name of a breaker whose phase changed."""
        self._policies, self._clock, self._store, self._moved = policies, clock, store, moved
        self._all: dict[str, Breaker] = {}
        self._dirty: set[str] = set()
        self._transitions: list[Transition] = []
        self._bell = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._settings: dict[str, BreakerSettings] = {}
        self._settings_of: PolicySet | None = None

    async def load(self) -> None:
        """Take up what was kept before a restart. What a lost daemon was probing comes to nothing."""
        for stored in await self._store.breakers():
            state = state_from(stored.state)
            if state is not None:
                failed = int(stored.state.get("failed_probes", 0))
                self._all[stored.name] = Breaker(stored.name, replace(state, probing=0), stored.since, failed)

    async def keep(self) -> None:
        """Write what changed, until cancelled."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write what is not yet written."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        names, self._dirty = self._dirty, set()
        transitions, self._transitions = self._transitions, []
        now = self._clock.now()
        await self._store.save_breakers([_stored(self._all[name]) for name in sorted(names)], now, transitions)

    # --- around an attempt -------------------------------------------------------------------------------------------

    def shut(self, name: str) -> Shut | None:
        """Whether an attempt would be turned away now; no attempt is let through by it."""
        breaker = self._all.get(name)
        if breaker is None:
            return None
        admission = rules.admit(self.settings(name), breaker.state, self._clock.now())
        if admission.allowed:
            return None
        self._move(breaker, admission.state)  # its moments, where the clock was set back
        return Shut(name, admission.wait_s, breaker.state.why)

    def admit(self, name: str) -> Permit | Shut:
        """Let an attempt through, as a probe where the breaker is half-open."""
        breaker = self._breaker(name)
        admission = rules.admit(self.settings(name), breaker.state, self._clock.now())
        self._move(breaker, admission.state)
        if not admission.allowed:
            return Shut(name, admission.wait_s, breaker.state.why)
        return Permit(name, admission.round or 0)

    def settle(self, permit: Permit, error_class: ErrorClass | None, elapsed_s: float, said: str = "") -> None:
        """What an attempt that was admitted says of its dependency; `said` is a failure in few words."""
        limits = self.settings(permit.name)
        outcome = rules.outcome_of(limits, error_class, elapsed_s)
        words = said or (f"slower than {shown_duration(limits.slow_over_s or 0)}" if outcome == "failed" else "")
        self._settle(permit, outcome, words)

    def give_back(self, permit: Permit) -> None:
        """The attempt was cancelled before it could say anything: counted neither way."""
        self._settle(permit, "neutral", "")

    def _settle(self, permit: Permit, outcome: rules.Outcome, words: str) -> None:
        breaker = self._breaker(permit.name)
        after = rules.settle(self.settings(permit.name), breaker.state, outcome, self._clock.now(), permit.round)
        if after.phase == "open" and breaker.state.phase != "open" and words:
            after = replace(after, why=f"{after.why}, last: {words}")
        self._move(breaker, after)

    # --- by hand -----------------------------------------------------------------------------------------------------

    def trip(self, name: str, for_s: float, by: str, note: str) -> Breaker:
        """Open it by hand for a time."""
        breaker = self._breaker(name)
        why = f"by {by}" + (f': "{note}"' if note else "")
        self._move(breaker, rules.trip(breaker.state, self._clock.now() + for_s, why))
        return breaker

    def reset(self, name: str, by: str) -> Breaker:
        """Close it by hand; load comes back over the ramp, as after a probe."""
        breaker = self._breaker(name)
        if breaker.state.phase != "closed":
            round_ = breaker.state.round
            self._move(breaker, BreakerState(closed_at=self._clock.now(), why=f"by {by}", round=round_))
        else:
            self._move(breaker, replace(breaker.state, consecutive=0, window=()))
        return breaker

    # --- looking -----------------------------------------------------------------------------------------------------

    def settings(self, name: str) -> BreakerSettings:
        """The settings of a name under the policies in force."""
        policies = self._policies()
        if policies is not self._settings_of:
            self._settings, self._settings_of = {}, policies
        found = self._settings.get(name)
        if found is None:
            found = self._settings[name] = rules.settings(policies.breaker, name)
        return found

    def all(self) -> Iterable[Breaker]:
        """Every breaker that ever saw an attempt, by name."""
        return [self._all[name] for name in sorted(self._all)]

    def find(self, name: str) -> Breaker | None:
        """One breaker, if it ever saw an attempt."""
        return self._all.get(name)

    def ramp(self, name: str, limit: int) -> tuple[int, float | None]:
        """How many calls are admitted at once now, and the seconds until one more is (None: no more to come)."""
        breaker = self._all.get(name)
        if breaker is None or breaker.state.closed_at is None:
            return limit, None
        settings, now = self.settings(name), self._clock.now()
        admitted = rules.admitted_concurrency(settings, breaker.state, limit, now)
        if admitted >= limit:
            return limit, None
        next_at = breaker.state.closed_at + settings.ramp_s * admitted / max(1, limit - 1)
        return admitted, max(0.01, next_at - now)

    def row(self, breaker: Breaker) -> dict[str, Any]:
        """A breaker for people: `{name, state, since, why, next}` and counts."""
        shut, state = self.shut(breaker.name), breaker.state
        calls = sum(ok + failed for _, ok, failed in state.window)
        row = {
            "name": breaker.name,
            "state": breaker.word,
            "since": breaker.since or None,
            "why": state.why if breaker.word != "closed" else "",
            "next": self._next(breaker, shut),
            "consecutive": state.consecutive,
            "calls": calls,
            "failed": sum(failed for _, _, failed in state.window),
            "open_for_s": round(shut.wait_s, 1) if shut is not None else 0.0,
        }
        refs = self.settings(breaker.name).refs
        ref = refs.get("consecutive") or next(iter(refs.values()), None)
        return row | {"rule": f"{ref.kind}/{ref.name} {ref.rule} {ref.file}:{ref.line}" if ref is not None else ""}

    def _next(self, breaker: Breaker, shut: Shut | None) -> str:
        tried = f", {breaker.failed_probes} failed" if breaker.failed_probes else ""
        if shut is not None:
            return f"probe in {shown_duration(max(1.0, math.ceil(shut.wait_s)))}{tried}"
        if breaker.state.phase != "closed":
            return f"probe with the next call{tried}"
        _, more_s = self.ramp(breaker.name, 100)
        return "load comes back gradually" if more_s is not None else ""

    # --- moves -------------------------------------------------------------------------------------------------------

    def _breaker(self, name: str) -> Breaker:
        found = self._all.get(name)
        if found is None:
            found = self._all[name] = Breaker(name, since=self._clock.now())
        return found

    def _move(self, breaker: Breaker, state: BreakerState) -> None:
        before, breaker.state = breaker.state, state
        if state == before:
            return
        self._dirty.add(breaker.name)
        if (before.phase, before.tripped_until) == (state.phase, state.tripped_until):
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(SAVE_COUNTS_S, self._bell.set)
            return
        if state.phase == "open" and state.tripped_until is None:
            breaker.failed_probes += before.phase == "half_open"
        elif state.phase == "closed":
            breaker.failed_probes = 0
        # An outage is one state for people: a failed probe does not begin it anew.
        if (before.phase == "closed") != (state.phase == "closed") or before.tripped_until != state.tripped_until:
            breaker.since = self._clock.now()
        self._tell(breaker, before)
        self._bell.set()
        self._moved(breaker.name)

    def _tell(self, breaker: Breaker, before: BreakerState) -> None:
        state = breaker.state
        if state.phase == "half_open":
            return
        data: dict[str, Any] = {"dependency": breaker.name, "why": state.why}
        if state.phase == "closed":
            data |= {"why": state.why or "a probe succeeded", "open_since": before.opened_at or None}
            self._transitions.append(self._transition(EventType.BREAKER_CLOSED, data))
            return
        until = state.tripped_until if state.tripped_until is not None else state.opened_at + state.open_s
        data |= {"until": until, "probes_failed": breaker.failed_probes}
        self._transitions.append(self._transition(EventType.BREAKER_OPENED, data))

    def _transition(self, type_: EventType, data: dict[str, Any]) -> Transition:
        return Transition(type_.value, data, self._policies().revision)


def _stored(breaker: Breaker) -> StoredBreaker:
    state = asdict(breaker.state) | {"failed_probes": breaker.failed_probes}
    return StoredBreaker(breaker.name, state, breaker.since)


def state_from(stored: Any) -> BreakerState | None:
    """The state behind its stored form; None for one that this version cannot read: the breaker begins anew."""
    try:
        known = {name: stored[name] for name in BreakerState.__dataclass_fields__ if name in stored}
        known["window"] = tuple((int(bucket), int(ok), int(failed)) for bucket, ok, failed in known.get("window", ()))
        state = BreakerState(**known)
    except (TypeError, ValueError):
        return None
    return state if state.phase in ("closed", "open", "half_open") else None
