"""Four clocks of one model call: connect, first useful event, idle between useful events, the whole call.

They are our own, over one `asyncio` timer: a byte timeout of an HTTP client starts anew with each comment line, so a
server that only sends pings would keep a call alive for ever.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from types import TracebackType
from typing import Self

from harnessd.domain.ports import CallClocks
from harnessd.net.border import TransportError

_GRAIN_S = 0.02


class Phase(Enum):
    """What a call is waiting for: transport word and sentence when it waits too long."""

    POOL = ("pool_timeout", "no free connection")
    CONNECT = ("connect_timeout", "not connected")
    SEND = ("write_timeout", "the request was not taken")
    FIRST = ("read_timeout", "no useful event")
    STREAM = ("read_timeout", "no further useful event")
    TAIL = ("read_timeout", "the connection was not given back")


class CallTimer:
    """The clocks of one attempt, as an async context manager.

    On expiry it cancels what runs inside and raises TransportError with the word of the phase. A cancellation from
    outside passes through untouched.
    """

    def __init__(self, clocks: CallClocks) -> None:
        self._clocks = clocks
        self._timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._end = 0.0
        self._limit_s = clocks.connect_s
        self._armed_at = 0.0
        self.phase = Phase.POOL

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._end = self._loop.time() + self._clocks.call_s
        self._arm(Phase.POOL, self._clocks.connect_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError as expired:
            if not self._timeout.expired():
                raise
            raise self._expiry() from expired

    def connecting(self) -> None:
        """A connection is being made; it shares the time of the wait for a free one."""
        self.phase = Phase.CONNECT

    def connected(self) -> None:
        """A connection is there and the request goes out."""
        self._arm(Phase.SEND, self._clocks.first_event_s)

    def sent(self) -> None:
        """The whole request is out; it shares its time with the wait for the first useful event."""
        self.phase = Phase.FIRST

    def useful(self) -> None:
        """Something came that brings the answer on."""
        # Events come by the thousand, and a timer costs as much as reading one. So the timer is set again at most every
        # few milliseconds, and as much later: it may be that late, and is never early.
        now = self._loop.time()
        if self.phase is not Phase.STREAM or now - self._armed_at > _GRAIN_S:
            self._armed_at = now
            self._arm(Phase.STREAM, self._clocks.idle_s, _GRAIN_S)

    def tail(self, limit_s: float) -> None:
        """The answer is whole; what follows may take this long and no longer. A tail is never prolonged."""
        if self.phase is Phase.TAIL:
            self.narrow(limit_s)
        else:
            self._arm(Phase.TAIL, limit_s)

    def narrow(self, limit_s: float) -> None:
        """Lower what is left to at most `limit_s`, without changing the phase."""
        when = self._timeout.when()
        if when is None or self._loop.time() + limit_s < when:
            self._arm(self.phase, limit_s)

    def _arm(self, phase: Phase, limit_s: float, slack_s: float = 0.0) -> None:
        self.phase, self._limit_s = phase, limit_s
        # A timer that has fired is past changing; its cancellation is already on the way.
        if not self._timeout.expired():
            self._timeout.reschedule(min(self._loop.time() + limit_s + slack_s, self._end))

    def _expiry(self) -> TransportError:
        word, sentence = self.phase.value
        if self._loop.time() >= self._end:
            return TransportError(word, f"{sentence}: the whole call may take {self._clocks.call_s:g} s")
        return TransportError(word, f"{sentence} within {self._limit_s:g} s")
