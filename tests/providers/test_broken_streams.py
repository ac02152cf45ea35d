"""Streams that are cut, silent, endless or nonsense: never an answer, never a wait without end."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from harnessd.domain.failure import Failure
from harnessd.domain.messages import ToolUseBlock
from harnessd.domain.ports import CallClocks
from harnessd.providers import PROTOCOLS
from harnessd.providers.answer import Answer
from harnessd.providers.anthropic_stream import AnthropicReader
from harnessd.providers.openai_chat_stream import OpenAIChatReader
from harnessd.providers.openai_responses_stream import OpenAIResponsesReader
from harnessd.providers.sse import SseParser
from tests.loopback import Script, Visit
from tests.providers.speech import (
    BEGUN,
    CALLING,
    WHOLE,
    a_call,
    a_end,
    a_start,
    a_text,
    ask,
    o_call,
    o_chunk,
    o_texts,
    r_answer,
    r_call,
    r_start,
    r_text,
    replied,
    said,
    sse,
    streamed_raw,
    talk,
)

ALL = pytest.mark.parametrize("protocol", sorted(PROTOCOLS))


async def failed(protocol: str, script: Script, **facts: Any) -> Failure:
    return said(await ask(protocol, script, **facts))


# --- cuts -----------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("how", ["end", "close", "reset"])
@pytest.mark.parametrize("stream", [BEGUN, CALLING])
async def test_a_cut_stream_is_never_an_answer(protocol: str, how: str, stream: dict[str, bytes]) -> None:
    # R3.7, b58, b64, F27: a whole call without the protocol's end mark is no call
    async def cut(visit: Visit) -> None:
        await visit.begin_stream()
        await visit.chunk(stream[protocol])
        if how == "end":
            await visit.end()
            return
        await asyncio.sleep(0.05)
        end = visit.reset if how == "reset" else visit.close
        end()
        raise ConnectionError

    failure = await failed(protocol, cut)
    assert (failure.status, failure.ended) == (200, "cut")
    assert failure.transport == {"end": None, "close": "closed", "reset": "reset"}[how]
    assert not failure.output_passed


@ALL
async def test_every_cut_of_a_whole_answer_is_either_cut_or_whole(protocol: str) -> None:
    whole = WHOLE[protocol]
    # What may still come after the finish reason: figures and the end mark.
    enough = whole.index(b'"finish_reason": "stop"') if protocol == "openai-chat" else len(whole) - len(b"\n\n")
    cuts = [*range(0, len(whole), 61), len(whole) - 1, len(whole)]
    async with talk(protocol, *(streamed_raw(whole[:cut]) for cut in cuts)) as conversation:
        for cut in cuts:
            result = await conversation.call()
            if isinstance(result, Failure):
                assert cut < len(whole) - 1, cut
                assert result.ended in {"cut", "none"}
            else:
                assert cut > enough - 2, cut
                assert result.message.text == "Hi."


# --- what breaks the protocol ---------------------------------------------------------------------


@ALL
@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("text/html", b"<html><head><title>Log in</title></head></html>", "Log in"),
        ("text/event-stream", b"What is a stream?", "What is a stream?"),
        ("text/event-stream", b"data: {broken\n\n", "broken"),
        ("text/event-stream", b"data: [1, 2]\n\n", "[1, 2]"),
        (
            "text/event-stream",
            b'data: {"type": "content_block_delta", "choices": [{"delta": {"content": "\xff"}}]}\n\n',
            "UTF-8",
        ),
        ("application/json", b'{"a": 1}', '{"a": 1}'),
        ("application/json", b"[]", "[]"),
        ("application/json", b"{", "{"),
        ("application/json", b'{"a": "\xff"}', "UTF-8"),
        ("application/json", b"", "not JSON"),
        ("text/plain", b"", "no event"),
    ],
)
async def test_an_answer_that_breaks_the_protocol(protocol: str, kind: str, body: bytes, words: str) -> None:
    failure = await failed(protocol, lambda visit: visit.answer(200, body, f"Content-Type: {kind}"))
    assert (failure.status, failure.transport) == (200, "protocol")
    assert words in failure.message


async def test_an_answer_behind_the_wrong_content_type_is_read() -> None:
    for protocol, whole in WHOLE.items():
        replied(await ask(protocol, lambda visit, whole=whole: visit.answer(200, whole, "Content-Type: text/plain")))  # type: ignore[misc]


# --- clocks ---------------------------------------------------------------------------------------


@ALL
async def test_pings_comments_and_empty_deltas_are_no_progress(protocol: str) -> None:
    # R3.7, R3.11, d12, F24, finding 9
    nothing = {
        "anthropic": b": hi\n\n" + sse({"type": "ping"}) + sse(*a_text(0, "")[1:2]),
        "openai-chat": b": PROCESSING\n\n" + sse(o_chunk({"content": ""})),
        "openai-responses": b": hi\n\n" + sse({"type": "response.in_progress", "response": {"id": "resp_1"}}),
    }

    async def pings(visit: Visit) -> None:
        await visit.begin_stream()
        await visit.chunk(BEGUN[protocol])
        while True:
            await visit.chunk(nothing[protocol])
            await asyncio.sleep(0.02)

    async with talk(protocol, pings) as conversation:
        began = time.monotonic()
        failure = said(await conversation.call(clocks=CallClocks(5, 5, 0.3, 10)))
        assert 0.25 < time.monotonic() - began < 2
        await asyncio.wait_for(conversation.server.left.wait(), 2)
    # Our clock ended the wait; it is a timeout, not a cut.
    assert (failure.transport, failure.ended) == ("read_timeout", "none")
    assert "no further useful event within 0.3 s" in failure.message


@ALL
async def test_useful_events_keep_a_slow_stream_alive(protocol: str) -> None:
    async def drip(visit: Visit) -> None:
        await visit.begin_stream()
        for part in WHOLE[protocol].split(b"\n\n")[:-1]:
            for byte in range(0, len(part), 40):
                await visit.chunk(part[byte : byte + 40])
            await visit.chunk(b"\n\n")
            await asyncio.sleep(0.1)
        await visit.end()

    replied(await asyncio.wait_for(ask_with(protocol, drip, CallClocks(5, 0.4, 0.4, 10)), 5))


async def ask_with(protocol: str, script: Script, clocks: CallClocks) -> Any:
    async with talk(protocol, script) as conversation:
        return await conversation.call(clocks=clocks)


@ALL
async def test_the_first_event_has_a_clock_of_its_own(protocol: str) -> None:
    async def pings(visit: Visit) -> None:
        await visit.begin_stream()
        while True:
            await visit.chunk(b": hi\n\n")
            await asyncio.sleep(0.02)

    failure = said(await ask_with(protocol, pings, CallClocks(5, 0.3, 5, 10)))
    assert (failure.transport, failure.ended, failure.status) == ("read_timeout", "none", 200)


@pytest.mark.parametrize(("protocol", "start"), [("anthropic", a_start()), ("openai-responses", r_start())])
async def test_starting_for_ever_is_no_progress(protocol: str, start: dict[str, Any]) -> None:
    async def starts(visit: Visit) -> None:
        await visit.begin_stream()
        while True:
            await visit.chunk(sse(start))
            await asyncio.sleep(0.02)

    failure = said(await ask_with(protocol, starts, CallClocks(5, 5, 0.3, 10)))
    assert failure.transport == "read_timeout"


@ALL
async def test_a_stream_that_stays_open_after_its_end_does_not_hold_the_answer_up(protocol: str) -> None:
    async def open_end(visit: Visit) -> None:
        await visit.begin_stream()
        await visit.chunk(WHOLE[protocol])
        await visit.hung_up()

    began = time.monotonic()
    replied(await ask_with(protocol, open_end, CallClocks(5, 5, 5, 10)))
    assert time.monotonic() - began < 2


@ALL
async def test_what_comes_after_the_end_is_not_part_of_the_answer(protocol: str) -> None:
    more = {
        "anthropic": sse(*a_text(1, "More.")),
        "openai-chat": sse(o_chunk({"content": "More."})),
        "openai-responses": sse(*r_text(1, "More.")),
    }
    reply = replied(await ask(protocol, streamed_raw(WHOLE[protocol] + more[protocol])))
    assert reply.message.text == "Hi."


@ALL
async def test_useful_events_without_end_meet_the_clock_of_the_whole_call(protocol: str) -> None:
    useful = {
        "anthropic": sse(*a_text(0, "on ")[1:2]),
        "openai-chat": sse(o_chunk({"content": "on "})),
        "openai-responses": sse(r_text(0, "on ")[1]),
    }

    async def endless(visit: Visit) -> None:
        await visit.begin_stream()
        await visit.chunk(BEGUN[protocol])
        while True:
            await visit.chunk(useful[protocol])
            await asyncio.sleep(0.01)

    began = time.monotonic()
    failure = said(await ask_with(protocol, endless, CallClocks(5, 5, 5, 0.5)))
    assert time.monotonic() - began < 3
    assert (failure.transport, failure.ended) == ("read_timeout", "none")


async def test_the_words_of_an_error_are_not_waited_for_long() -> None:
    async def drip(visit: Visit) -> None:
        await visit.send(b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await visit.chunk(b".")
            await asyncio.sleep(0.05)

    began = time.monotonic()
    failure = said(await ask_with("openai-chat", drip, CallClocks(30, 30, 30, 30)))
    assert time.monotonic() - began < 6
    assert (failure.status, failure.retry_after_s, failure.transport) == (429, 7, None)


@ALL
async def test_the_connection_of_a_whole_answer_is_kept(protocol: str) -> None:
    async with talk(protocol, streamed_raw(WHOLE[protocol])) as conversation:
        for _ in range(3):
            replied(await conversation.call())
        assert conversation.server.connections == 1


@ALL
async def test_cancelling_a_call_closes_the_connection(protocol: str) -> None:
    async def silent(visit: Visit) -> None:
        await visit.begin_stream()
        await visit.hung_up()

    async with talk(protocol, silent) as conversation:
        call = asyncio.ensure_future(conversation.call())
        while not conversation.server.visits:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(conversation.server.left.wait(), 2)


# --- splits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", [AnthropicReader, OpenAIChatReader, OpenAIResponsesReader])
def test_every_split_of_an_answer_gives_the_same_answer(
    reader: type[AnthropicReader | OpenAIChatReader | OpenAIResponsesReader],
) -> None:
    # F27
    stream = (
        {
            AnthropicReader: sse(
                a_start(), *a_text(0, "é😀"), *a_call(1, "toolu_1", "f", '{"a":', ' "€"}'), *a_end("tool_use")
            ),
            OpenAIChatReader: sse(
                o_chunk({"content": "é😀"}),
                o_call(0, "c1", "f", '{"a":'),
                o_call(0, None, None, ' "€"}'),
                *o_texts([], "tool_calls"),
            ),
            OpenAIResponsesReader: sse(*r_answer(r_text(0, "é😀"), r_call(1, "c1", "f", '{"a":', ' "€"}'))),
        }[reader]
        .replace(b"\\u00e9", "é".encode())
        .replace(b"\n", b"\r\n")
    )

    def read(*pieces: bytes) -> Answer:
        parser, answer = SseParser(), reader("model-1")
        for piece in pieces:
            for event in parser.feed(piece):
                answer.read(event)
        assert answer.whole
        return answer.answer()

    whole = read(stream)
    assert [block.arguments for block in whole.blocks if isinstance(block, ToolUseBlock)] == [{"a": "€"}]
    for cut in range(len(stream)):
        assert read(stream[:cut], stream[cut:]) == whole, cut
