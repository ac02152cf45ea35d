"""Log: an alert becomes a line of the daemon's own log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harnessd.domain.durable.outbox import Alert, Delivery

_LEFT_OUT = ("key", "event", "data")  # the line has the event as its name; the data are in the event itself


@dataclass(frozen=True, slots=True)
class Log:
    """`write` takes the level, the event's word and the facts of the line."""

    write: Callable[[str, str, Mapping[str, Any]], None]
    level: str = "warning"

    async def deliver(self, alert: Alert) -> Delivery:
        """See the port."""
        facts = {name: value for name, value in alert.items() if name not in _LEFT_OUT and value not in ("", None, {})}
        self.write(self.level, str(alert["event"]), facts)
        return Delivery(done=True, said=f"written to the log, {self.level}")
