"""Apprise: an alert goes to any service that apprise knows; the extra `notify`."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.durable.outbox import Alert, Delivery

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Apprise:
    """`address` holds the account's secret and is never said."""

    address: str = field(repr=False)
    timeout_s: float = TIMEOUT_S

    async def deliver(self, alert: Alert) -> Delivery:
        """See the port."""
        text = "\n".join(str(alert[name]) for name in ("sentence", "next") if alert.get(name))
        try:
            # It loads hundreds of modules at its first use: in a thread, or the daemon would stand still meanwhile.
            target = await asyncio.to_thread(self._target)
            if target is None:
                return Delivery(done=False, said="the address is none that apprise understands")
            async with asyncio.timeout(self.timeout_s):
                done = await target.async_notify(body=text or str(alert["title"]), title=str(alert["title"]))
        except ImportError:
            return Delivery(done=False, said='apprise is not installed: install "harnessd[notify]"')
        except TimeoutError:
            return Delivery(done=False, said=f"apprise did not end within {self.timeout_s:g} s")
        except Exception as fault:  # noqa: BLE001 - a third party's plug-in: whatever it raises is a try that failed
            return Delivery(done=False, said=f"apprise failed: {type(fault).__name__}")
        # True, or a result object that is true: older versions gave the one, newer ones the other.
        return Delivery(done=bool(done), said="apprise delivered it" if done else "apprise could not deliver it")

    def _target(self) -> Any:
        import apprise  # noqa: PLC0415 - an extra: who does not use it pays neither for its load nor its memory

        logging.getLogger("apprise").disabled = True  # it logs addresses
        target = apprise.Apprise()
        return target if target.add(self.address) else None
