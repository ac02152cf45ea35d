"""Server-sent events from bytes: one push parser, bounded, the same events however the bytes are cut.

Lines are cut as bytes and decoded whole: no UTF-8 sequence holds a CR or LF, so a character cut between two chunks
needs no care. Bytes that are not UTF-8 are an error, not a replacement character: a silently changed tool argument
would be worse than a repeated call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harnessd.net import TransportError

EVENT_MAX = 8 * 1024 * 1024  # bytes of one event; the largest seen are whole tool calls in one chunk
_BOM = "\ufeff"


class SseError(Exception):
    """The bytes are no event stream: not UTF-8."""


class SseEvent(NamedTuple):
    """One event. `name` is empty when the stream gave none; `data` is never empty."""

    name: str
    data: str


class SseParser:
    """Feed bytes, take events. Comments, ids and events without data (keep-alives) give nothing."""

    def __init__(self, event_max: int = EVENT_MAX) -> None:
        self._event_max = event_max
        self._rest = bytearray()  # of a line whose end has not come
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
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if end:
            self._after_cr = chunk.endswith(b"\r")
            lines = bytes(self._rest) + chunk[:end]
            self._rest = bytearray(chunk[end:])
            yield from self._events(lines)
        else:
            self._rest += chunk
        self._bound(len(self._rest))

    def finish(self) -> Iterator[SseEvent]:
        """The last event, where a server forgot its closing blank line. Raises SseError.

        The standard drops it; but what came whole as a line is whole, and the protocol's own end mark decides whether
        the answer is.
        """
        lines = bytes(self._rest) + b"\n\n"
        self._rest.clear()
        yield from self._events(lines)

    def _events(self, lines: bytes) -> Iterator[SseEvent]:
        """The events of whole lines; those before bytes that are no text still count."""
        try:
            text = lines.decode("utf-8")
        except UnicodeDecodeError as error:
            start = max(lines.rfind(b"\n", 0, error.start), lines.rfind(b"\r", 0, error.start)) + 1
            yield from self._events(lines[:start])
            raise SseError(f"the event stream is not UTF-8: {error}") from error
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if self._first and text:
            self._first = False
            text = text.removeprefix(_BOM)
        for line in text.split("\n")[:-1]:
            if line:
                self._line(line)
            elif self._data:
                event = SseEvent(self._name, self._data[0] if len(self._data) == 1 else "\n".join(self._data))
                self._reset()
                if event.data:
                    yield event
            else:
                self._reset()

    def _reset(self) -> None:
        self._name, self._data, self._size = "", [], 0

    def _bound(self, waiting: int) -> None:
        if self._size + waiting > self._event_max:
            raise TransportError("too_large", f"one event is larger than {self._event_max} bytes")

    def _line(self, line: str) -> None:
        if line.startswith("data:"):
            self._add(line[6:] if line.startswith("data: ") else line[5:])
        elif line.startswith("{"):
            # Some gateways put an error as bare JSON into a stream they had already begun.
            self._add(line)
        elif line == "data":
            self._add("")
        elif line.startswith("event:"):
            self._name = line[6:].removeprefix(" ")
        elif line.startswith("error:"):
            # llama.cpp's server wrote `error: {...}` in place of an event.
            self._name = "error"
            self._add(line[6:].removeprefix(" "))

    def _add(self, data: str) -> None:
        self._data.append(data)
        self._size += len(data) + 1
        self._bound(0)
