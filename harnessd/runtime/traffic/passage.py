"""Passage: the way of each call through limits and its breaker; nothing is attempted that they do not let through."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import cast

from harnessd.domain.durable.breaker_store import BreakerStore, Transition
from harnessd.domain.events import EventType
from harnessd.domain.failure import ErrorClass, Failure, Source
from harnessd.domain.ports import CallClocks, Clock
from harnessd.policy import PolicySet
from harnessd.policy.breaker import NOT_ITS_FAULT
from harnessd.policy.language.names import ANYTHING
from harnessd.policy.retry import RetryPolicy, classify
from harnessd.runtime.traffic.breakers import Breakers, Permit, Shut
from harnessd.runtime.traffic.caller import Caller
from harnessd.runtime.traffic.chaos import Chaos
from harnessd.runtime.traffic.day_costs import DayCosts, until_midnight_s
from harnessd.runtime.traffic.desk import MINUTE_S, Ask, Ceiling, Desk, Place
from harnessd.runtime.traffic.health import FirstEvents, Health

BREAKER_OPEN = "breaker_open"
DAY_LIMIT_REACHED = "day_limit_reached"


@dataclass(frozen=True, slots=True)
class Pass:
    """A call that was let through; given back exactly once, by `left` or `cancelled`."""

    name: str
    source: Source
    caller: Caller
    place: Place
    permit: Permit | None
    started: float  # monotonic


class Traffic:
    """Limits, breakers, the day's costs and health of a daemon, as one thing that a call passes."""

    def __init__(
        self,
        policies: Callable[[], PolicySet],
        clock: Clock,
        store: BreakerStore,
        *,
        local_tools: Collection[str] = (),
        minute_s: float = MINUTE_S,
        chaos: Chaos | None = None,
    ) -> None:
        """`local_tools` depend on nobody but this machine: a breaker guards them only where a rule names them."""
        self._policies, self._clock = policies, clock
        self._local = frozenset(f"tool/{name}" for name in local_tools)
        self.chaos = chaos
        self._movers: list[Callable[[str], None]] = []
        self.days = DayCosts(store, clock)
        self.breakers = Breakers(policies, clock, store, self._moved)
        self.desk = Desk(policies, clock, self.days, self.breakers.ramp, minute_s)
        self.first_events = FirstEvents()

    async def load(self) -> None:
        """Take up what a restart must not forget."""
        await self.breakers.load()
        await self.days.load()

    def on_move(self, hears: Callable[[str], None]) -> None:
        """Have the name of each breaker told that changes its phase."""
        self._movers.append(hears)

    def changed(self) -> None:
        """Other policies are in force: those in line are judged by them."""
        self.desk.look()

    # --- a call ------------------------------------------------------------------------------------------------------

    async def enter(
        self, name: str, caller: Caller, *, source: Source = "model", tokens: int = 0, cost_usd: float = 0.0
    ) -> Pass | Failure:
        """Wait in line for a dependency; a Failure where its breaker is open or the day's money is used up."""
        names = (name, *caller.names) if source == "model" else (name,)
        guarded = self._guarded(name)

        def refusal() -> Failure | None:
            shut = self.breakers.shut(name) if guarded else None
            return breaker_open(source, shut) if shut is not None else None

        place = await self.desk.enter(Ask(names, tokens, cost_usd, caller.attempt > 1, refusal))
        if isinstance(place, Failure):
            return place
        if isinstance(place, Ceiling):
            return await self._used_up(place, source)
        permit = self.breakers.admit(name) if guarded else None
        if isinstance(permit, Shut):
            # Somebody else became the probe between the place and this line.
            await self.desk.leave(place, 0, 0.0)
            return breaker_open(source, permit)
        passed = Pass(name, source, caller, place, permit, self._clock.monotonic())
        try:
            await self.days.write(place.held)
        except BaseException:
            await self.cancelled(passed)
            raise
        return passed

    async def left(self, passed: Pass, failure: Failure | None, tokens: int = 0, cost_usd: float = 0.0) -> None:
        """The call is over: its outcome tells breaker and pace, what it used counts against the limits."""
        if failure is not None and failure.cancelled:
            if passed.permit is not None:
                self.breakers.give_back(passed.permit)
        else:
            error_class = None if failure is None else self.class_of(failure, passed.caller)
            if passed.permit is not None:
                elapsed_s = self._clock.monotonic() - passed.started
                self.breakers.settle(passed.permit, error_class, elapsed_s, _said(error_class, failure))
            if passed.source == "model":
                self.desk.learn(passed.place, error_class, None if failure is None else failure.retry_after_s)
        await self.desk.leave(passed.place, tokens, cost_usd)

    async def cancelled(self, passed: Pass) -> None:
        """The call was cut off before it could say anything."""
        if passed.permit is not None:
            self.breakers.give_back(passed.permit)
        await self.desk.leave(passed.place, 0, 0.0)

    def class_of(self, failure: Failure, caller: Caller) -> ErrorClass | None:
        """What kind of failure it is, by the task's own rules; None where the answer was complete."""
        if caller.policies is not None:
            retry = caller.policies.retry
        else:
            retry = cast("RetryPolicy", self._policies().policies["retry", "default"])
        return classify(retry, failure).error_class

    # --- looking -----------------------------------------------------------------------------------------------------

    def clocks(self, name: str) -> CallClocks:
        """The clocks of one attempt (kind limits, `timeout`)."""
        limits = self.desk.settings(name)
        return CallClocks(limits.connect_s, limits.first_event_s, limits.idle_s, limits.call_s)

    def health(self, alias: str) -> Health:
        """What is known of a model now (R3.16)."""
        name = f"model/{alias}"
        shut = self.breakers.shut(name)
        return Health(
            median_first_event_s=self.first_events.median_s(name, self._clock.monotonic()),
            open_for_s=shut.wait_s if shut is not None else 0.0,
            may_retry=self.desk.may_retry((name, "daemon")),
        )

    @property
    def counts_tokens(self) -> bool:
        """Whether any limit counts tokens."""
        return any(rule.tokens_per_minute is not None for rule in self._policies().limits.shape.rules)

    def concerns(self, name: str) -> bool:
        """Whether anything is declared about a tool at all: most are called without a detour."""
        return self._guarded(name) or bool(self.desk.settings(name).refs)

    def _guarded(self, name: str) -> bool:
        if name not in self._local:
            return True
        rules = self._policies().breaker.shape.rules
        return any(rule.for_ != ANYTHING and rule.fits((name,), lambda _: None) for rule in rules)

    def _moved(self, name: str) -> None:
        self.desk.look()
        for hears in self._movers:
            hears(name)

    async def _used_up(self, ceiling: Ceiling, source: Source) -> Failure:
        held, now = ceiling.held, self._clock.now()
        left_s = until_midnight_s(now)
        rule = {"kind": held.rule.kind, "name": held.rule.name, "rule": held.rule.rule}
        rule |= {"file": held.rule.file, "line": str(held.rule.line)}
        data = {"dependency": ceiling.name, "sentence": held.sentence, "until": now + left_s, "rule": rule}
        told = Transition(EventType.CEILING_REACHED.value, data, held.rule.revision)
        await self.days.tell_ceiling(ceiling.name, self.desk.settings(ceiling.name).cost_usd_per_day or 0.0, told)
        return Failure(
            source=source,
            dependency=ceiling.name,
            message=f"{held.sentence}; it goes on at 00:00 UTC",
            code=DAY_LIMIT_REACHED,
            retry_after_s=left_s,
            body={"do": list(held.do), "limit": ceiling.name, "rule": rule},
            hint=ErrorClass.QUOTA_EXHAUSTED,
        )


def breaker_open(source: Source, shut: Shut) -> Failure:
    """The answer without an attempt."""
    return Failure(
        source=source,
        dependency=shut.name,
        message=shut.sentence,
        code=BREAKER_OPEN,
        retry_after_s=shut.wait_s,
        hint=ErrorClass.UNAVAILABLE if source == "tool" else None,
        advice="Go on without it, or try something else." if source == "tool" else "",
    )


def _said(error_class: ErrorClass | None, failure: Failure | None) -> str:
    """A failure in few words, for the breaker's reason: `overloaded (529)`."""
    if failure is None or error_class is None or error_class in NOT_ITS_FAULT:
        return ""
    detail = failure.status or failure.transport or failure.code
    return f"{error_class.value} ({detail})" if detail else error_class.value
