"""A breaker through any history: attempts that end, are cancelled, never come back; restarts; a clock that is set."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harnessd.policy.breaker import BreakerSettings, BreakerState, Outcome, admit, settle, trip
from harnessd.runtime.traffic.breakers import state_from

LIMITS = BreakerSettings(
    consecutive=3,
    failure_rate=0.5,
    window_s=60.0,
    minimum_calls=6,
    slow_over_s=None,
    open_s=60.0,
    open_max_s=300.0,
    probes=2,
    ramp_s=60.0,
    refs={},
)
TRIP_S = 900.0


@dataclass(frozen=True)
class Attempt:
    """Under way. `round`: the probes it belongs to, 0 for none."""

    round: int
    at: float


class AnyHistory(RuleBasedStateMachine):
    """R3.5, c17, c18: half-open never wedges and never floods, whatever happens."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.now, self.under_way = BreakerState(), 1_800_000_000.0, list[Attempt]()
        self.tripped_for_s = 0.0

    @rule(seconds=st.floats(0, 400))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(seconds=st.sampled_from([-86_400.0, -3_600.0, -61.0, 61.0, 86_400.0]))
    def the_clock_is_set(self, seconds: float) -> None:
        self.now += seconds
        # How old an attempt is does not change by it.
        self.under_way = [replace(one, at=one.at + seconds) for one in self.under_way]

    @rule()
    def an_attempt(self) -> None:
        admission = admit(LIMITS, self.state, self.now)
        self.state = admission.state
        if admission.allowed:
            self.under_way.append(Attempt(admission.round or 0, self.now))
        else:
            longest = LIMITS.open_max_s if self.state.tripped_until is None else self.state.tripped_until - self.now
            assert 0 < admission.wait_s <= longest

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 1000), outcome=st.sampled_from(["ok", "failed", "neutral"]))
    def one_ends(self, which: int, outcome: Outcome) -> None:
        one = self.under_way.pop(which % len(self.under_way))
        before = self.state
        self.state = settle(LIMITS, self.state, outcome, self.now, one.round)
        if before.phase == "open" or (before.phase == "half_open" and one.round != before.round):
            assert self.state == before  # it says nothing of how the dependency is now

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 1000))
    def one_never_comes_back(self, which: int) -> None:
        self.under_way.pop(which % len(self.under_way))

    @rule()
    def the_daemon_is_killed(self) -> None:
        self.under_way.clear()
        kept = state_from(asdict(self.state))
        assert kept == self.state  # all of it is kept
        self.state = replace(kept, probing=0)  # as `Breakers.load` does

    @rule()
    def tripped_by_hand(self) -> None:
        self.state = trip(self.state, self.now + TRIP_S, "by a person")

    @invariant()
    def no_more_probes_than_are_let_through(self) -> None:
        if self.state.phase == "half_open":
            probing = [one for one in self.under_way if one.round == self.state.round]
            assert len(probing) + self.state.probes_ok <= LIMITS.probes

    @invariant()
    def it_comes_back(self) -> None:
        """However it stands, after the longest wait good probes close it."""
        state, now = self.state, self.now
        if state.tripped_until is not None:
            now = max(now, state.tripped_until)
        admit_at = admit(LIMITS, state, now)
        state, now = admit_at.state, now + admit_at.wait_s
        if admit_at.allowed:
            state = settle(LIMITS, state, "neutral", now, admit_at.round)
        for _ in range(LIMITS.probes + 1):
            if state.phase == "closed":
                break
            admission = admit(LIMITS, state, now)
            if not admission.allowed:
                assert admission.wait_s <= LIMITS.open_max_s
                now += admission.wait_s
                admission = admit(LIMITS, admission.state, now)
            assert admission.allowed
            state = settle(LIMITS, admission.state, "ok", now, admission.round)
        assert state.phase == "closed"


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = hypothesis_settings(max_examples=150, stateful_step_count=40, deadline=None)
