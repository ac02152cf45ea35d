"""Server-sent events from bytes: one push parser, bounded, the same events however the bytes are cut.

Lines are split as bytes and decoded whole: no UTF-8 sequence holds a CR or LF, so a character cut between two chunks
needs no care. Bytes that are not UTF-8 are an error, not a replacement character: a silently changed tool argument
would be worse than a repeated call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harnessd.net import TransportError

EVENT_MAX = 8 * 1024 * 1024  # bytes of one event; the largest seen are whole tool calls in one chunk
_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseError(Exception):
    """The bytes are no event stream: not UTF-8."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. `name` is empty when the stream gave none; `data` is never empty."""

    name: str
    data: str


class SseParser:
    """Feed bytes, take events. Comments, ids and events without data (keep-alives) give nothing."""

    def __init__(self, event_max: int = EVENT_MAX) -> None:
        self._event_max = event_max
        self._rest = bytearray()
        self._first = True
        self._after_cr = False
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        """Events that became whole with these bytes. Raises SseError, and TransportError for an event without end."""
        if self._after_cr and chunk:
            # The CR ended its line already; the LF of the same CRLF came in the next chunk.
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return
        # A long line that comes in small chunks is searched once, not once for each chunk.
        start = len(self._rest)
        self._rest += chunk
        self._after_cr = self._rest.endswith(b"\r")
        done = 0
        for end in _LINE_END.finditer(self._rest, start):
            line = bytes(self._rest[done : end.start()])
            done = end.end()
            event = self._line(line)
            if event is not None:
                yield event
        del self._rest[:done]
        self._bound(len(self._rest))

    def finish(self) -> Iterator[SseEvent]:
        """The last event, where a server forgot its closing blank line. Raises SseError.

        The standard drops it; but what came whole as a line is whole, and the protocol's own end mark decides whether
        the answer is.
        """
        for line in (bytes(self._rest), b""):
            event = self._line(line)
            if event is not None:
                yield event
        self._rest.clear()

    def _bound(self, waiting: int) -> None:
        if self._size + waiting > self._event_max:
            raise TransportError("too_large", f"one event is larger than {self._event_max} bytes")

    def _line(self, raw: bytes) -> SseEvent | None:
        if self._first:
            self._first = False
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if not raw:
            return self._dispatch()
        if raw.startswith(b":"):
            return None
        self._size += len(raw)
        self._bound(0)
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SseError(f"the event stream is not UTF-8: {error}") from error
        self._field(line)
        return None

    def _field(self, line: str) -> None:
        if line.startswith("{"):
            # Some gateways put an error as bare JSON into a stream they had already begun.
            self._data.append(line)
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name == "error":
            # llama.cpp's server wrote `error: {...}` in place of an event.
            self._name = "error"
            self._data.append(value)

    def _dispatch(self) -> SseEvent | None:
        name, data = self._name, "\n".join(self._data)
        self._name, self._data, self._size = "", [], 0
        return SseEvent(name, data) if data else None
