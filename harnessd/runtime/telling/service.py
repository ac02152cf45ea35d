"""Service of telling: ledger, teller and courier as one part of the daemon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from harnessd.domain.ports import Clock, Refused, Store
from harnessd.policy import PolicySet
from harnessd.runtime.redact import Redactor
from harnessd.runtime.telling.channels import Adapters, Channels
from harnessd.runtime.telling.courier import Courier
from harnessd.runtime.telling.ledger import Ledger
from harnessd.runtime.telling.teller import Teller
from harnessd.runtime.telling.words import alert_of


class Telling:
    """Tells people what policy says they shall hear of."""

    def __init__(  # noqa: PLR0913 - each is a different part of the daemon
        self,
        store: Store,
        policies: Callable[[], PolicySet],
        clock: Clock,
        adapters: Adapters,
        *,
        environ: Mapping[str, str],
        redactor: Redactor,
        lasts: Callable[[str], bool],
    ) -> None:
        """`lasts`: whether what a lasting event said of the policies is still so."""
        self._policies, self._clock = policies, clock
        channels = Channels(lambda: policies().notify, adapters, environ, redactor)
        self._courier = Courier(store, channels.notifier, clock, redactor.value, revision=lambda: policies().revision)
        ledger = Ledger(lambda: policies().notify, lasts, self._courier.down, redactor.value)
        self._teller = Teller(store, ledger, clock, self._courier.wake)

    @property
    def work(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """What runs beside the workers, each until cancelled."""
        return self._teller.run, self._courier.run

    def rules_changed(self) -> None:
        """Other policies are in force."""
        self._teller.rules_changed()
        self._courier.rules_changed()

    async def test(self, channel: str, by: str) -> Mapping[str, Any] | Refused:
        """One message to a channel, now and once: `{channel, delivered, said}`."""
        now = self._clock.now()
        words = f"Sent by harnessctl notify test, by {by}. Nothing happened."
        facts = {
            **dict.fromkeys(("task", "agent", "dependency", "class", "reason", "workspace"), ""),
            "event": "test",
            "seq": 0,
            "at": now,
            "labels": {},
            "priority": None,
            "revision": self._policies().revision,
            "data": {"channel": channel, "sentence": words},
        }
        done = await self._courier.try_once(channel, alert_of(f"test|{channel}|@{now:.3f}", "new", facts, 1, 0.0))
        if isinstance(done, Refused):
            return Refused(done.code, done.message.rstrip(".") + ".", done.hint)
        return {"channel": channel, "delivered": done.done, "said": done.said}
