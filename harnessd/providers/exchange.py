"""Exchange: one HTTP request of one model call, from sending to a reply or a Failure; no retry, no judgement."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from harnessd.domain.failure import Failure
from harnessd.domain.messages import ModelReply
from harnessd.domain.ports import CallClocks, Progress
from harnessd.net import CallTimer, Clients, Incoming, Outgoing, TransportError
from harnessd.providers.answer import Reader, StreamError, conclude
from harnessd.providers.evidence import Witness
from harnessd.providers.sse import SseError, SseEvent, SseParser
from harnessd.providers.wire import load

WHOLE_MAX = 32 * 1024 * 1024  # bytes of an answer that comes as one JSON body
ERROR_BODY_MAX = 256 * 1024  # bytes of an error's body; what follows is not read
ERROR_BODY_S = 2.0  # the status is known: its words are worth this long a wait
TAIL_S = 0.25  # for the end of the body after the answer's end: a read-out connection is kept, another is closed
SETTLED_S = 5.0  # for what may still follow a finish reason: the usage
HEAD_MAX = 4096
# Lines as event streams have them: where nothing else came, a stream ended early; a page in its place is none.
_EVENT_LINE = rb"(?:(?:data|event|id|retry)?:[^\r\n]*)?"
_EVENT_LINES = re.compile(rb"(?:" + _EVENT_LINE + rb"[\r\n])*" + _EVENT_LINE)


@dataclass(slots=True)
class Seen:
    """What had come when a call ended, however it ended."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)  # of an error status
    events: int = 0
    streaming: bool = False

    @property
    def refused(self) -> bool:
        return self.status is not None and not 200 <= self.status < 300

    @property
    def of_events(self) -> bool:
        """The answer is an event stream by its header and by its bytes, whatever came of it."""
        named = self.headers.get("content-type", "").lower().startswith("text/event-stream")
        return named and _EVENT_LINES.fullmatch(self.body) is not None


@dataclass(frozen=True, slots=True)
class Ending:
    """What a call amounts to when it ended, by what had come until then."""

    reader: Reader
    witness: Witness
    seen: Seen

    def conclusion(self) -> ModelReply | Failure:
        """The end of an answer that nothing interrupted."""
        seen, status = self.seen, self.seen.status or 0
        if seen.refused:
            return self.witness.refusal(status, seen.headers, bytes(seen.body))
        if self.reader.whole:
            return conclude(self.reader.answer(), self.witness, status, seen.headers)
        if seen.streaming and not seen.events and not seen.of_events:
            return self._nonsense("the answer holds no event of the protocol")
        return self.witness.cut(status, seen.headers, seen.events)

    def after(self, error: Exception) -> ModelReply | Failure:
        """The end of an answer that an error interrupted; what came whole before it counts."""
        seen = self.seen
        if seen.refused or self.reader.whole:
            return self.conclusion()
        match error:
            case TransportError():
                return self.witness.transport(error, seen.status, seen.headers, begun=seen.streaming)
            case StreamError(body=body):
                return self.witness.stream_error(seen.status or 0, seen.headers, body)
            case _:
                return self._nonsense(str(error))

    def _nonsense(self, sentence: str) -> Failure:
        seen = self.seen
        head = bytes(seen.body[:HEAD_MAX]).decode("utf-8", "replace")
        return self.witness.nonsense(seen.status or 0, seen.headers, (sentence, head), begun=seen.events > 0)


def read_whole(reader: Reader, raw: bytes) -> None:
    """An answer that came as one JSON body. Raises StreamError, ValueError."""
    try:
        body = load(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"the answer is not UTF-8 ({error})") from error
    except ValueError as error:
        raise ValueError("the answer is not JSON") from error
    if not isinstance(body, dict):
        raise ValueError("the answer is no JSON object")  # noqa: TRY004 - the value is wrong, not our type
    reader.read_whole(body)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call: where to, what, and how the protocol's answer is read."""

    clients: Clients = field(repr=False)
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    reader: Reader
    progress: Progress
    witness: Witness

    async def perform(self, clocks: CallClocks) -> ModelReply | Failure:
        """Send and read. Cancelling closes the connection."""
        result = await self._attempt(clocks)
        if isinstance(result, Failure) and self.reader.usage.total:
            return replace(result, usage=self.reader.usage)
        return result

    async def _attempt(self, clocks: CallClocks) -> ModelReply | Failure:
        seen = Seen()
        ending = Ending(self.reader, self.witness, seen)
        outgoing = Outgoing("POST", self.url, self.headers, self.body)
        try:
            async with CallTimer(clocks) as timer, self.clients.open(outgoing, timer) as incoming:
                seen.status, seen.headers = incoming.status, incoming.headers
                if seen.refused:
                    await self._read_error(incoming, timer, seen)
                elif is_json(incoming.headers):
                    await self._read_whole(incoming, timer, seen)
                else:
                    await self._read_stream(incoming, timer, seen)
        except (TransportError, StreamError, ValueError, SseError) as error:
            return ending.after(error)
        return ending.conclusion()

    async def _read_error(self, incoming: Incoming, timer: CallTimer, seen: Seen) -> None:
        timer.narrow(ERROR_BODY_S)
        async with aclosing(incoming.chunks(ERROR_BODY_MAX)) as chunks:
            async for chunk in chunks:
                seen.body += chunk

    async def _read_whole(self, incoming: Incoming, timer: CallTimer, seen: Seen) -> None:
        """Some servers answer a request for a stream with one JSON body."""
        # A body in one piece has no events: its arrival as a whole is the one useful event after its headers.
        timer.useful()
        async with aclosing(incoming.chunks(WHOLE_MAX)) as chunks:
            async for chunk in chunks:
                seen.body += chunk
        read_whole(self.reader, bytes(seen.body))

    async def _read_stream(self, incoming: Incoming, timer: CallTimer, seen: Seen) -> None:
        seen.streaming = True
        async with aclosing(self._events(incoming, seen)) as events:
            async for event in events:
                # After the answer's end only the end of the body is read, so that the connection can be kept.
                if not self.reader.settled:
                    self._take(event, timer, seen)

    async def _events(self, incoming: Incoming, seen: Seen) -> AsyncGenerator[SseEvent, None]:
        parser = SseParser()
        async with aclosing(incoming.chunks()) as chunks:
            async for chunk in chunks:
                if len(seen.body) < HEAD_MAX:
                    seen.body += chunk[:HEAD_MAX]
                for event in parser.feed(chunk):
                    yield event
        for event in parser.finish():
            yield event

    def _take(self, event: SseEvent, timer: CallTimer, seen: Seen) -> None:
        word = self.reader.read(event)
        if self.reader.settled:
            timer.tail(TAIL_S)
        elif self.reader.whole:
            timer.tail(SETTLED_S)
        elif word is not None:
            timer.useful()
        if word is not None:
            seen.events += 1
        if word:
            self.progress(word)


def is_json(headers: Mapping[str, str]) -> bool:
    """Whether an answer says that it is one JSON document."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind in {"application/json", "text/json"} or kind.endswith("+json")
