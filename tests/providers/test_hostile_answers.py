"""Hostile answers: more than sixty, each over every protocol: a failure with its facts, in time, in bounded memory."""

from __future__ import annotations

import asyncio
import gc
import gzip
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harnessd.domain.failure import Failure
from harnessd.domain.messages import Message, ModelReply, ModelRequest, TextBlock
from harnessd.domain.ports import CallClocks
from harnessd.net import Clients
from harnessd.providers import PROTOCOLS, Endpoint
from tests.loopback import Visit, loopback

Script = Callable[[Visit], Awaitable[None]]

CLOCKS = CallClocks(connect_s=2, first_event_s=1, idle_s=0.5, call_s=2)
LATE_S = 30.0  # a busy machine; an answer without an end would take for ever
MOST_BYTES = 32 << 20
KEY = "canary-key-0123456789"
OK = b"HTTP/1.1 200 OK\r\n"
SSE = OK + b"Content-Type: text/event-stream\r\n"
DEEP = b"[" * 50_000


def sends(*pieces: bytes) -> Script:
    """Say it and hang up."""

    async def script(visit: Visit) -> None:
        for piece in pieces:
            await visit.send(piece)
        visit.close()
        raise ConnectionError

    return script


def forever(first: bytes, piece: bytes, every_s: float = 0.0) -> Script:
    """Begin, then go on without an end."""

    async def script(visit: Visit) -> None:
        await visit.send(first)
        while True:
            await visit.send(piece)
            await asyncio.sleep(every_s)

    return script


def silent(first: bytes = b"") -> Script:
    """Begin, then nothing more."""

    async def script(visit: Visit) -> None:
        await visit.send(first)
        await visit.hung_up()
        raise ConnectionError

    return script


def answers(status: int, body: bytes, *headers: str) -> Script:
    return lambda visit: visit.answer(status, body, *headers)


def streams(*events: bytes) -> Script:
    return lambda visit: visit.stream(b"".join(b"data: " + event + b"\n\n" for event in events))


NO_HTTP = {
    "nothing": sends(b""),
    "half a status line": sends(b"HTTP/1.1 2"),
    "another protocol": sends(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "binary": sends(bytes(range(256))),
    "a status that is no number": sends(b"HTTP/1.1 abc OK\r\n\r\n"),
    "a status of four digits": sends(b"HTTP/1.1 2000 OK\r\n\r\n"),
    "version 9": sends(b"HTTP/9.9 200 OK\r\n\r\n"),
    "a length that is no number": sends(OK + b"Content-Length: twelve\r\n\r\n"),
    "a negative length": sends(OK + b"Content-Length: -1\r\n\r\n"),
    "two lengths": sends(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "a length and chunks": sends(OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a broken header line": sends(OK + b"broken header line\r\n\r\n"),
    "NUL in a header": sends(OK + b"X-A: a\x00b\r\n\r\n"),
    "a chunk without a size": sends(SSE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n"),
    "a chunk of a negative size": sends(SSE + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n"),
    "a chunk that promises too much": sends(SSE + b"Transfer-Encoding: chunked\r\n\r\nffff\r\nabc"),
    "a body shorter than its length": sends(OK + b"Content-Length: 500\r\n\r\n{}"),
    "another protocol asked for": sends(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
    "only 100": silent(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "an endless row of 100": forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "an unknown encoding": answers(200, b"abc", "Content-Encoding: rot13"),
    "gzip that is none": answers(200, b"abc", "Content-Encoding: gzip"),
    "gzip that is cut": answers(200, gzip.compress(b'{"a": 1}' * 99)[:-9], "Content-Encoding: gzip"),
}
WAITS = {
    "silence": silent(),
    "silence behind the head": silent(SSE + b"\r\n"),
    "silence within an event": silent(SSE + b"\r\ndata: {"),
    "a drip of comments": forever(SSE + b"\r\n", b": still here\n\n", 0.05),
    "a drip of bytes": forever(SSE + b"\r\ndata: ", b"x", 0.05),
    "a drip of header bytes": forever(OK + b"X-A: ", b"x", 0.05),
    "pings alone": forever(SSE + b"\r\n", b'event: ping\ndata: {"type": "ping"}\n\n', 0.05),
}
BIG = {
    "an endless header": forever(OK + b"X-A: ", b"x" * 65536),
    "endless headers": forever(OK, b"X-A: b\r\n" * 4096),
    "an endless body": forever(OK + b"Content-Type: application/json\r\n\r\n", b"x" * 65536),
    "an endless line": forever(SSE + b"\r\ndata: ", b"x" * 65536),
    "endless comments": forever(SSE + b"\r\n", b": x\n" * 16384),
    "a bomb": answers(200, gzip.compress(bytes(100_000_000), 1), "Content-Encoding: gzip"),
    "a bomb in an error": answers(500, gzip.compress(bytes(100_000_000), 1), "Content-Encoding: gzip"),
    "an endless error": forever(b"HTTP/1.1 500 No\r\n\r\n", b"x" * 65536),
}
STREAMS = {
    "no event": streams(),
    "null": streams(b"null"),
    "a list": streams(b"[]"),
    "a number": streams(b"12345678901234567890e999"),
    "NaN": streams(b"NaN"),
    "a text": streams(b'"done"'),
    "no JSON": streams(b"{no json}"),
    "half a JSON": streams(b'{"type": "message_start", "message"'),
    "deep": streams(DEEP),
    "bad UTF-8": streams(b'{"type": "\xff\xfe"}'),
    "NUL": streams(b'{"type": "\\u0000"}'),
    "half a surrogate": streams(b'{"type": "\\ud800"}'),
    "an empty object": streams(b"{}"),
    "types that are none": streams(b'{"type": 5, "choices": 7, "delta": 9, "message": [], "response": "x"}'),
    "a delta out of nowhere": streams(
        b'{"type": "content_block_delta", "index": 999999999, "delta": {"type": "text_delta", "text": "x"}}',
        b'{"choices": [{"index": -1, "delta": {"tool_calls": [{"index": 1e9}]}}]}',
        b'{"type": "response.output_text.delta", "output_index": "a", "delta": {}}',
    ),
    "usage of words": streams(b'{"usage": "many", "choices": [], "type": "message_delta", "delta": null}'),
    "an error of a number": streams(b'{"error": 5, "type": "error"}'),
    "an error of null": streams(b'{"error": null, "type": "error"}'),
    "an error with escapes": streams(
        b'{"type": "error", "error": {"message": "\\u001b[2J\\r\\nforged: line", "type": 1}}'
    ),
}
BODIES = {
    "nothing": b"",
    "HTML": b"<html><body><h1>Not\r\n found \x1b[31m</h1></body></html>",
    "null": b"null",
    "a list": b"[1, 2]",
    "deep": DEEP,
    "bad UTF-8": b'{"error": "\xff\xfe\x00"}',
    "an error of a list": b'{"error": [{"message": {}}]}',
}
STATUSES = {
    f"{status}, {name}": answers(status, body) for status in (200, 400, 404, 429, 503) for name, body in BODIES.items()
} | {
    "204": sends(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "302 to nowhere": answers(302, b"", "Location: http://127.0.0.1:1/"),
    "302 to itself": answers(302, b"", "Location: /v1/messages"),
    "999": answers(999, b"{}"),
    "a wait of words": answers(429, b"{}", "Retry-After: soon"),
    "a wait without an end": answers(429, b"{}", "Retry-After: 99999999999999999999"),
    "a negative wait": answers(429, b"{}", "Retry-After: -5"),
}
SHAPES = NO_HTTP | WAITS | BIG | STREAMS | STATUSES


def test_there_are_more_than_sixty() -> None:
    assert len(SHAPES) >= 60


async def called(protocol: str, shape: str, clients: Clients) -> tuple[ModelReply | Failure, float]:
    async with loopback(SHAPES[shape]) as server:
        endpoint = Endpoint("primary", server.url, "m", lambda: KEY, clients, 200_000, 0, time.time)
        request = ModelRequest("primary", "Be brief.", (Message("user", (TextBlock("Hi."),)),), (), 4000)
        began = time.monotonic()
        async with asyncio.timeout(LATE_S):
            answer = await PROTOCOLS[protocol](endpoint).call(request, CLOCKS, lambda _: None)
        return answer, time.monotonic() - began


def right(answer: ModelReply | Failure, shape: str) -> str:
    """What is wrong with the answer; empty where nothing is."""
    if not isinstance(answer, Failure):
        return f"an answer: {answer}"
    words = answer.message
    if (
        not words
        or len(words) > 2000
        or "\n" in words
        or not words.replace("\t", "").isprintable()
        or KEY in repr(answer)
    ):
        return f"words: {words!r}"
    first = shape.split(",", maxsplit=1)[0]
    if first.isdigit() and first not in ("200", "204") and answer.status != int(first):
        return f"status {answer.status}"
    if shape in WAITS and answer.transport != "read_timeout":
        return f"transport {answer.transport}"
    if answer.transport is None and answer.status in (None, 200) and answer.ended not in ("cut", "error"):
        return f"no evidence: {answer}"
    if answer.retry_after_s is not None and not 0 <= answer.retry_after_s < 1e18:
        return f"a wait of {answer.retry_after_s}"
    return ""


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
@pytest.mark.parametrize("group", ["NO_HTTP", "WAITS", "STREAMS", "STATUSES"])
async def test_a_hostile_answer_is_one_failure(protocol: str, group: str) -> None:
    # G13, F23, F24, F25, F26, F27, R3.2, R3.7, I10
    clients, shapes = Clients(), list(globals()[group])
    try:
        found = await asyncio.gather(*(called(protocol, shape, clients) for shape in shapes))
    finally:
        await clients.aclose()
    wrong = {shape: right(answer, shape) for shape, (answer, _) in zip(shapes, found, strict=True)}
    assert {shape: words for shape, words in wrong.items() if words} == {}


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
async def test_an_answer_without_an_end_takes_no_memory(protocol: str) -> None:
    # G13, F26, finding 9
    clients = Clients()
    wrong = {}
    try:
        await called(protocol, "an endless header", clients)  # what is made once is no growth
        for shape in BIG:
            words, grown = "", 0
            for _ in range(
                3
            ):  # the process is pytest's: what else it keeps may grow in the same moment, but not thrice
                gc.collect()
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew (proc(5))
                before = _memory("VmRSS")
                answer, _ = await called(protocol, shape, clients)
                grown = _memory("VmHWM") - before
                words = right(answer, shape)
                if grown <= MOST_BYTES:
                    break
            if words or grown > MOST_BYTES:
                wrong[shape] = (words, grown >> 20)
    finally:
        await clients.aclose()
    assert wrong == {}
