"""Delivery: an answer, or what a fault makes of it, as steps on the wire."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from harnessd.simulator.answer import Answer, Bill
from harnessd.simulator.faults import NAMED, Fault
from harnessd.simulator.protocols.wire import Headers, Limits, Problem, WireProtocol, sse
from harnessd.simulator.transcript import Transcript
from harnessd.simulator.values import bytes_of, seconds_of


@dataclass(frozen=True, slots=True)
class Send:
    """Bytes of the body."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Gate:
    """Wait until the test lets it through."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing any more, with the connection open."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """The connection ends before the body does: FIN, or RST with `reset`."""

    reset: bool = False


Step = Send | Pause | Gate | Silence | HangUp


@dataclass(frozen=True, slots=True)
class Delivery:
    """One response. `raw`: the steps are all there is, without status line, headers or framing."""

    status: int
    headers: Headers
    steps: Iterable[Step]
    framing: Literal["chunked", "length", "raw"] = "length"
    length: int = 0
    before: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """All that a response is made of."""

    protocol: WireProtocol
    transcript: Transcript
    answer: Answer
    cost: Bill
    limits: Limits
    request_id: str
    key: str | None = None


HTML_502 = (
    "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n"
    "<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
)
# Which named error speaks for a bare status.
NAME_OF_STATUS = {
    400: "invalid_request",
    401: "auth",
    403: "forbidden",
    413: "too_large",
    429: "rate_limited",
    500: "server_error",
    503: "unavailable",
    504: "timeout",
    529: "overloaded",
}


def deliver(exchange: Exchange, fault: Fault | None) -> Delivery:
    """The response to one request, with its fault."""
    if fault is None:
        return with_delay(answered(exchange, exchange.answer, None), exchange.answer)
    whole = replaced(exchange, fault)
    if whole is not None:
        return whole
    delivery = with_delay(answered(exchange, changed(exchange.answer, fault), fault), exchange.answer)
    if fault.kind == "delay_headers":
        forever = fault.value in (True, "forever")
        wait: Step = Silence() if forever else Pause(seconds_of(fault.value, "delay_headers"))
        return replace(delivery, before=(*delivery.before, wait))
    return delivery


def replaced(exchange: Exchange, fault: Fault) -> Delivery | None:
    """What comes in place of an answer, for the faults that leave none."""
    if fault.kind in NAMED or fault.kind in ("status", "html_502"):
        return error_delivery(exchange, fault)
    if fault.kind == "reset" and fault.value is True:
        return Delivery(200, [], (HangUp(reset=True),), "raw")
    if fault.kind == "garbage":
        return garbage(exchange, str(fault.value))
    if fault.kind in ("gzip_bomb", "endless"):
        return flood(exchange, fault)
    return None


def with_delay(delivery: Delivery, answer: Answer) -> Delivery:
    """A model that takes its time before it speaks."""
    return replace(delivery, before=(Pause(answer.delay_s),)) if answer.delay_s else delivery


def applies(fault: Fault, answer: Answer) -> bool:
    """Whether there is anything for the fault to spoil."""
    return bool(answer.calls) or fault.kind not in ("malformed_args", "cut_call", "duplicate_ids")


def changed(answer: Answer, fault: Fault) -> Answer:
    """What the model says wrong."""
    calls = answer.calls
    match fault.kind:
        case "empty_answer":
            return replace(answer, say="", think="", calls=(), finish="stop")
        case "refusal" | "content_filter":
            return replace(answer, say="", think="", calls=(), finish=fault.kind)
        case "done_without_finish":
            return replace(answer, without_finish=True)
        case "malformed_args" | "cut_call" if calls:
            broken = replace(calls[0], raw=calls[0].json[: max(len(calls[0].json) * 2 // 3, 1)])
            finish = "length" if fault.kind == "cut_call" else answer.finish
            rest = () if fault.kind == "cut_call" else calls[1:]
            return replace(answer, calls=(broken, *rest), finish=finish)
        case "duplicate_ids" if calls:
            doubled = calls if len(calls) > 1 else calls * 2
            return replace(answer, calls=tuple(replace(call, id=calls[0].id) for call in doubled))
        case _:
            return answer


def answered(exchange: Exchange, answer: Answer, fault: Fault | None) -> Delivery:
    """A 200 with the answer in the form asked for."""
    protocol, transcript = exchange.protocol, exchange.transcript
    headers = protocol.headers(exchange.request_id, transcript)
    if not transcript.stream:
        body = json.dumps(protocol.whole(answer, transcript, exchange.cost, exchange.request_id)).encode()
        if fault and fault.kind == "error_event":
            return error_delivery(exchange, fault)
        steps = spoiled([body], exchange, fault) if fault else [Send(body)]
        return Delivery(200, [("content-type", "application/json"), *headers], steps, "length", len(body))
    frames = protocol.frames(answer, transcript, exchange.cost, exchange.request_id)
    plain = paced(frames, answer.pace_s)
    steps_out = spoiled(frames, exchange, fault) if fault else plain
    head = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"), *headers]
    return Delivery(200, head, steps_out, "chunked")


def paced(frames: Sequence[bytes], pace_s: float) -> Iterator[Step]:
    """Events one by one."""
    for frame in frames:
        yield Send(frame)
        if pace_s:
            yield Pause(pace_s)


def spoiled(frames: Sequence[bytes], exchange: Exchange, fault: Fault) -> Iterable[Step]:
    """The same events on a bad way."""
    first = frames[: number_of(fault.value)] if fault.kind in ("stall", "reset", "pings_only") else frames
    steps: Iterable[Step] = paced(frames, exchange.answer.pace_s)
    match fault.kind:
        case "stall":
            steps = [*paced(first, 0), Silence()]
        case "reset":
            steps = [*paced(first, 0), HangUp(reset=True)]
        case "cut_after":
            steps = cut(frames, fault)
        case "pings_only":
            steps = pings(first, exchange, fault) if exchange.transcript.stream else [Silence()]
        case "error_event":
            steps = [*paced(frames[: int(fault.options.get("after", 2))], 0), Send(error_frame(exchange, fault))]
        case "slow_drip":
            every = seconds_of("20ms" if fault.value is True else fault.value, "slow_drip")
            steps = dripped(b"".join(frames), int(fault.options.get("bytes", 1)), every)
        case "split":
            steps = dripped(b"".join(frames), number_of(fault.value), 0.0)
        case "unknown_events" if exchange.transcript.stream:
            odd = [sse({"type": "future_event", "detail": {"n": 1}}, "future_event"), b": a comment\n\n"]
            strange = odd if exchange.protocol.name != "openai-chat" else odd[1:]  # chunks there bear no type
            steps = paced(list(itertools.chain.from_iterable([frame, *strange] for frame in frames)), 0)
        case "bad_utf8":
            steps = paced([frame.replace(b'"}', b'\xff\xfe"}', 1) for frame in frames], 0)
        case _:
            pass
    return steps


def number_of(value: Any) -> int:
    """`true` is the first event; a number is that many."""
    return 1 if value is True else int(value)


def cut(frames: Sequence[bytes], fault: Fault) -> list[Step]:
    """The answer up to a number of events or bytes; then the end: clean, close (FIN in mid body) or reset (RST)."""
    if isinstance(fault.value, int):
        sent = b"".join(frames[: number_of(fault.value)])
    else:
        sent = b"".join(frames)[: bytes_of(fault.value, "cut_after")]
    end = fault.options.get("end", "close")
    steps: list[Step] = [Send(sent)] if sent else []
    return steps if end == "clean" else [*steps, HangUp(reset=end == "reset")]


def pings(first: Sequence[bytes], exchange: Exchange, fault: Fault) -> Iterator[Step]:
    """Signs of life without progress, for ever."""
    yield from paced(first, 0)
    every = seconds_of(fault.options.get("every", "100ms"), "every")
    while True:
        yield Pause(every)
        yield Send(exchange.protocol.ping())


def dripped(body: bytes, size: int, every: float) -> Iterator[Step]:
    """Few bytes at a time, across the borders of characters and events."""
    for start in range(0, len(body), size):
        yield Send(body[start : start + size])
        yield Pause(every)


def problem_of(exchange: Exchange, fault: Fault) -> Problem:
    """The service's words for an error, with what the script says otherwise."""
    status = fault.value if fault.kind == "status" else None
    wanted = str(fault.value) if fault.kind == "error_event" and fault.value is not True else "overloaded"
    name = fault.kind if fault.kind in NAMED else NAME_OF_STATUS.get(status or 0, "server_error")
    name = wanted if fault.kind == "error_event" else name
    problem = exchange.protocol.problem(name, exchange.transcript, exchange.limits)
    if status is not None:
        problem = replace(problem, status=int(status))
    words = {key: fault.options[key] for key in ("type", "message", "code") if key in fault.options}
    problem = replace(problem, **words)
    if fault.options.get("echo_key"):
        # A careless proxy prints the key it refused: the client must not pass it on.
        problem = replace(problem, message=f"{problem.message} Key: {exchange.key}")
    return problem


def error_frame(exchange: Exchange, fault: Fault) -> bytes:
    """An error inside a stream that began with 200."""
    return exchange.protocol.error_frame(problem_of(exchange, fault), exchange.request_id)


def error_delivery(exchange: Exchange, fault: Fault) -> Delivery:
    """An error status with headers and body."""
    headers = [(str(key).lower(), str(value)) for key, value in dict(fault.options.get("headers") or {}).items()]
    if "retry_after" in fault.options:
        headers.append(("retry-after", str(fault.options["retry_after"])))
    body = fault.options.get("body")
    html = fault.kind == "html_502" or (fault.kind == "status" and fault.value == 502 and body is None)
    problem = problem_of(exchange, fault)
    if html:
        return plain(502, "text/html", HTML_502, headers)
    if body is None:
        body = exchange.protocol.error_body(problem, exchange.request_id)
    headers += exchange.protocol.headers(exchange.request_id, exchange.transcript)
    if isinstance(body, str):
        return plain(problem.status, "text/plain", body, headers)
    return plain(problem.status, "application/json", json.dumps(body), headers)


def plain(status: int, kind: str, text: str, headers: Headers | None = None) -> Delivery:
    """A whole body in one piece."""
    body = text.encode()
    named = {name for name, _ in headers or []}
    own = [] if "content-type" in named else [("content-type", kind)]
    return Delivery(status, [*own, *(headers or [])], (Send(body),), "length", len(body))


def document(status: int, body: Mapping[str, Any], headers: Headers | None = None) -> Delivery:
    """A JSON document."""
    return plain(status, "application/json", json.dumps(body, ensure_ascii=False), headers)


def garbage(exchange: Exchange, kind: str) -> Delivery:
    """What no client should meet: no HTTP, two lengths, half a JSON, a header without end."""
    json_type = [("content-type", "application/json")]
    stream_type = [("content-type", "text/event-stream")]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    match kind:
        case "lengths":
            both = head + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
            return Delivery(200, [], (Send(both), HangUp()), "raw")
        case "header":
            return Delivery(200, [], (Send(head + b"x-long: " + b"a" * 400_000 + b"\r\n\r\n"), HangUp()), "raw")
        case "json":
            return Delivery(200, json_type, (Send(b'{"id": "msg_1", "content": [{"type": '),), "chunked")
        case "utf8":
            return Delivery(200, json_type, (Send(b'{"content": "\xff\xfe\x80"}'),), "chunked")
        case "sse":
            frame = exchange.protocol.frames(exchange.answer, exchange.transcript, exchange.cost, "req")[0]
            return Delivery(200, stream_type, (Send(frame), Send(b"data: {broken\n\n")), "chunked")
        case _:
            return Delivery(
                200, [], (Send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not HTTP\r\n\r\n"), HangUp()), "raw"
            )


def flood(exchange: Exchange, fault: Fault) -> Delivery:
    """A small answer that unpacks to hundreds of megabytes, or one that never ends."""
    kind = "text/event-stream" if exchange.transcript.stream else "application/json"
    headers: Headers = [("content-type", kind)]
    opening = b"data: {" if exchange.transcript.stream else b"{"
    if fault.kind == "endless":
        return Delivery(200, headers, endless(opening), "chunked")
    size = bytes_of(fault.options.get("size", "300MiB"), "size")
    return Delivery(200, [*headers, ("content-encoding", "gzip")], bomb(opening, size), "chunked")


def endless(opening: bytes) -> Iterator[Step]:
    """Blanks without end; the client's own limit must stop it."""
    yield Send(opening)
    while True:
        yield Send(b" " * 65536)


def bomb(opening: bytes, size: int) -> Iterator[Step]:
    """Blanks, packed about a thousandfold."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    yield Send(packer.compress(opening))
    block = b" " * (1 << 20)
    for _ in range(size >> 20):
        packed = packer.compress(block)
        if packed:
            yield Send(packed)
    yield Send(packer.flush())
