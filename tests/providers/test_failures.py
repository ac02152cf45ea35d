"""What is no reply becomes a Failure with the facts that rules look at, and nothing else leaks."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from harnessd.domain.failure import Failure
from harnessd.domain.ports import CallClocks
from harnessd.net import Clients
from harnessd.providers import Endpoint
from tests.loopback import Script, Visit
from tests.providers.speech import (
    KEY,
    a_call,
    a_end,
    a_start,
    a_text,
    answered,
    ask,
    o_call,
    o_chunk,
    o_texts,
    replied,
    said,
    sse,
    streamed,
    talk,
)

BOTH = pytest.mark.parametrize("protocol", ["anthropic", "openai-chat"])
BEGUN = {
    "anthropic": sse(a_start(), *a_text(0, "The answer ", "begins")[:-1]),
    "openai-chat": sse(o_chunk({"role": "assistant", "content": ""}), o_chunk({"content": "The answer begins"})),
}
CALLING = {
    "anthropic": sse(a_start(), *a_call(0, "toolu_X", "f", '{"a": 1}')),
    "openai-chat": sse(o_call(0, "c1", "f", '{"a": 1}')),
}
WHOLE = {"anthropic": sse(a_start(), *a_text(0, "Hi."), *a_end()), "openai-chat": sse(*o_texts(["Hi."]))}


async def failed(protocol: str, script: Script, **facts: Any) -> Failure:
    return said(await ask(protocol, script, **facts))


# --- error answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "status", "body", "code", "type_", "words"),
    [
        # the forms of the b_ cases
        (
            "anthropic",
            400,
            '{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"},"request_id":"req_9"}',
            None,
            "invalid_request_error",
            "prompt is too long",
        ),
        (
            "anthropic",
            529,
            '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
            None,
            "overloaded_error",
            "Overloaded",
        ),
        (
            "anthropic",
            400,
            json.dumps(
                {
                    "error": {
                        "code": 400,
                        "message": json.dumps(
                            {"type": "error", "error": {"type": "invalid_request_error", "message": "unpaired"}}
                        ),
                        "status": "INVALID_ARGUMENT",
                    }
                }
            ),
            "400",
            "invalid_request_error",
            "unpaired",
        ),
        (
            "openai-chat",
            429,
            '{"error":{"message":"quota","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}',
            "insufficient_quota",
            "insufficient_quota",
            "quota",
        ),
        (
            "openai-chat",
            400,
            '{"error":"Trying to keep the first 111490 tokens"}',
            None,
            None,
            "Trying to keep the first 111490 tokens",
        ),
        (
            "openai-chat",
            400,
            '{"object":"error","message":"too large","type":"invalid_request_error","code":"3051"}',
            "3051",
            "invalid_request_error",
            "too large",
        ),
        (
            "openai-chat",
            429,
            '{"message":"Tokens per minute","type":"too_many_tokens_error","code":"token_quota_exceeded"}',
            "token_quota_exceeded",
            "too_many_tokens_error",
            "Tokens per minute",
        ),
        (
            "openai-chat",
            429,
            '{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"temporarily rate-limited upstream"}}}',
            "429",
            None,
            "Provider returned error: temporarily rate-limited upstream",
        ),
        (
            "openai-chat",
            400,
            '{"error":{"message":"filtered","type":null,"innererror":{"code":"ResponsibleAIPolicyViolation"}}}',
            "ResponsibleAIPolicyViolation",
            None,
            "filtered",
        ),
        (
            "openai-chat",
            400,
            '{"message":"The model returned the following errors: prompt is too long"}',
            None,
            None,
            "The model returned the following errors: prompt is too long",
        ),
        (
            "openai-chat",
            422,
            '{"detail":[{"loc":["body"],"msg":"field required"},{"msg":"bad"}]}',
            None,
            None,
            "field required; bad",
        ),
        (
            "openai-chat",
            400,
            '[{"error":{"code":400,"message":"from a list","status":"INVALID_ARGUMENT"}}]',
            "400",
            "INVALID_ARGUMENT",
            "from a list",
        ),
        ("openai-chat", 413, "", None, None, "HTTP status 413 without a body"),
        ("openai-chat", 500, "plain words\x1b[31m\r\n of a server", None, None, "plain words [31m of a server"),
        ("openai-chat", 500, "null", None, None, "null"),
        ("openai-chat", 500, "[" * 50_000, None, None, "[" * 2000),
    ],
)
async def test_an_error_answer_gives_its_facts(
    protocol: str, status: int, body: str, code: str | None, type_: str | None, words: str
) -> None:
    failure = await failed(protocol, answered(status, body))
    assert (failure.source, failure.dependency, failure.protocol) == ("model", "model/primary", protocol)
    assert (failure.status, failure.code, failure.type, failure.message) == (status, code, type_, words)
    assert (failure.transport, failure.ended, failure.output_passed) == (None, "none", False)
    try:
        assert failure.body == json.loads(body)
    except (ValueError, RecursionError):
        assert failure.body is None


async def test_a_page_is_one_short_line() -> None:
    # b54
    page = (
        "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><hr><center>nginx</center></body></html>"
        + " " * 9000
    )
    failure = await failed("openai-chat", answered(502, page, "Content-Type: text/html"))
    assert (failure.status, failure.message) == (502, "502 Bad Gateway")


async def test_headers_request_id_and_wait_hint() -> None:
    headers = (
        "Retry-After: 600",
        "Request-Id: req_7",
        "X-RateLimit-Reset-Tokens: 6m0s",
        "Set-Cookie: a=canary",
        "X-Api-Key: canary",
    )
    failure = await failed(
        "anthropic", answered(429, {"error": {"type": "rate_limit_error", "message": "slow"}}, *headers)
    )
    assert failure.retry_after_s == 600
    assert failure.request_id == "req_7"
    assert failure.headers["retry-after"] == "600"
    assert failure.headers["x-ratelimit-reset-tokens"] == "6m0s"
    assert "canary" not in repr(failure)


async def test_a_stated_window_is_a_fact() -> None:
    # b09
    error = {
        "code": 400,
        "message": "too large",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 124071,
        "n_ctx": 123904,
    }
    failure = await failed("openai-chat", answered(400, {"error": error}))
    assert failure.window_used == pytest.approx(124071 / 123904)


@BOTH
async def test_redirects_are_told_and_not_followed(protocol: str) -> None:
    async with talk(protocol, answered(308, "", "Location: /other?token=canary")) as conversation:
        failure = said(await conversation.call())
        assert len(conversation.server.visits) == 1
    assert failure.status == 308
    assert "/other" in failure.message
    assert "canary" not in failure.message


@BOTH
async def test_the_status_counts_though_its_body_never_ends(protocol: str) -> None:
    async def endless(visit: Visit) -> None:
        await visit.send(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await visit.chunk(b"busy " * 10_000)

    failure = await failed(protocol, endless)
    assert (failure.status, failure.transport) == (503, None)
    assert failure.message.startswith("busy busy")
    assert len(failure.message) <= 2000


# --- errors inside a 200 --------------------------------------------------------------------------


async def test_an_error_event_in_a_stream_is_an_error() -> None:
    # R3.7, b47
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    failure = await failed("anthropic", streamed(a_start(), *a_text(0, "Some"), overloaded))
    assert (failure.status, failure.ended, failure.type, failure.message) == (
        200,
        "error",
        "overloaded_error",
        "Overloaded",
    )
    assert failure.usage is not None
    assert failure.usage.input_tokens == 10


@pytest.mark.parametrize(
    ("events", "code", "words"),
    [
        ([o_chunk({"content": "x"}), {"error": {"message": "boom", "code": 502}}], "502", "boom"),
        # b72: text of text, as Python prints it
        (
            [
                {
                    "error": {
                        "message": "Error code: 400 - {'error': {'message': 'was filtered', 'code': 'content_filter'}}"
                    }
                }
            ],
            "content_filter",
            "was filtered",
        ),
        (["not json", "[DONE]"], None, "not json"),
    ],
)
async def test_errors_in_chunks(events: list[Any], code: str | None, words: str) -> None:
    failure = await failed("openai-chat", streamed(*events))
    assert (failure.status, failure.code) == (200, code)
    assert words in failure.message


async def test_an_error_object_with_status_200() -> None:
    # b52
    failure = await failed("openai-chat", answered(200, {"error": {"message": "was flagged", "code": 502}}))
    assert (failure.status, failure.code, failure.message, failure.ended) == (200, "502", "was flagged", "error")


# --- cuts -----------------------------------------------------------------------------------------


@BOTH
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


@BOTH
async def test_every_cut_of_a_whole_answer_is_either_cut_or_whole(protocol: str) -> None:
    whole = WHOLE[protocol]
    # What may still come after the finish reason: figures and the end mark.
    enough = len(whole) - len(b"\n\n") if protocol == "anthropic" else whole.index(b'"finish_reason": "stop"')
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


def streamed_raw(stream: bytes) -> Script:
    return lambda visit: visit.stream(stream)


# --- what breaks the protocol ---------------------------------------------------------------------


@BOTH
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


@BOTH
async def test_pings_comments_and_empty_deltas_are_no_progress(protocol: str) -> None:
    # R3.7, R3.11, d12, F24, finding 9
    nothing = {
        "anthropic": b": hi\n\n" + sse({"type": "ping"}) + sse(*a_text(0, "")[1:2]),
        "openai-chat": b": PROCESSING\n\n" + sse(o_chunk({"content": ""})),
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


@BOTH
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


@BOTH
async def test_the_first_event_has_a_clock_of_its_own(protocol: str) -> None:
    async def pings(visit: Visit) -> None:
        await visit.begin_stream()
        while True:
            await visit.chunk(b": hi\n\n")
            await asyncio.sleep(0.02)

    failure = said(await ask_with(protocol, pings, CallClocks(5, 0.3, 5, 10)))
    assert (failure.transport, failure.ended, failure.status) == ("read_timeout", "none", 200)


async def test_starting_for_ever_is_no_progress() -> None:
    async def starts(visit: Visit) -> None:
        await visit.begin_stream()
        while True:
            await visit.chunk(sse(a_start()))
            await asyncio.sleep(0.02)

    failure = said(await ask_with("anthropic", starts, CallClocks(5, 5, 0.3, 10)))
    assert failure.transport == "read_timeout"


@BOTH
async def test_a_stream_that_stays_open_after_its_end_does_not_hold_the_answer_up(protocol: str) -> None:
    async def open_end(visit: Visit) -> None:
        await visit.begin_stream()
        await visit.chunk(WHOLE[protocol])
        await visit.hung_up()

    began = time.monotonic()
    replied(await ask_with(protocol, open_end, CallClocks(5, 5, 5, 10)))
    assert time.monotonic() - began < 2


@BOTH
async def test_the_connection_of_a_whole_answer_is_kept(protocol: str) -> None:
    async with talk(protocol, streamed_raw(WHOLE[protocol])) as conversation:
        for _ in range(3):
            replied(await conversation.call())
        assert conversation.server.connections == 1


@BOTH
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


# --- keys -----------------------------------------------------------------------------------------


@BOTH
async def test_the_key_is_in_no_word_of_a_failure(protocol: str) -> None:
    body = {
        "error": {"message": f"bad key {KEY} " + "x" * 1990, "code": KEY, "type": f"t {KEY}", "detail": {KEY: [KEY]}}
    }
    script = answered(401, body, f"X-Echo: {KEY}", f"Location: {KEY}")
    for query in ("", f"?key={KEY}"):
        failure = await failed(protocol, script, query=query)
        assert failure.status == 401
        assert "canary" not in repr(failure)
    failure = await failed(protocol, streamed({"type": "error", "error": {"message": f"bad key {KEY}"}}))
    assert "canary" not in repr(failure)
    failure = await failed(protocol, lambda visit: visit.answer(200, f"Where is {KEY}?".encode()))
    assert "canary" not in repr(failure)


@BOTH
async def test_a_new_key_needs_no_restart(protocol: str) -> None:
    keys = iter(["first-key-00001\n", "second-key-0002", None])
    async with talk(protocol, streamed_raw(WHOLE[protocol]), key=lambda: next(keys)) as conversation:
        for _ in range(3):
            replied(await conversation.call())
        heads = [visit.head.decode() for visit in conversation.server.visits]
    assert "first-key-00001\r\n" in heads[0]
    assert "second-key-0002" in heads[1]
    assert "authorization" not in heads[2].lower()
    assert "x-api-key" not in heads[2].lower()


@BOTH
async def test_a_key_that_cannot_be_used_is_a_failure_and_nothing_is_sent(protocol: str) -> None:
    def unreadable() -> str | None:
        raise PermissionError(13, "Permission denied")

    for key in (unreadable, lambda: "canary\r\nx-injected: 1", lambda: "canary-schlüssel"):
        async with talk(protocol, streamed_raw(WHOLE[protocol]), key=key) as conversation:
            failure = said(await conversation.call())
            assert conversation.server.visits == []
        assert (failure.code, failure.type, failure.status) == ("credential_unusable", "authentication_error", None)
        assert "canary" not in repr(failure)


def test_an_endpoint_shows_no_key_and_refuses_what_is_no_address() -> None:
    def endpoint(url: str) -> Endpoint:
        return Endpoint("primary", url, "m", lambda: KEY, Clients(), 0, 0, lambda: 0.0)

    assert KEY not in repr(endpoint("http://127.0.0.1:1"))
    with pytest.raises(ValueError, match="http"):
        endpoint("127.0.0.1:1")


@BOTH
async def test_nobody_there_is_a_transport_failure(protocol: str) -> None:
    async with talk(protocol, streamed_raw(b"")) as conversation:
        pass
    clients = Clients()
    conversation.clients = clients
    failure = said(await conversation.call())
    await clients.aclose()
    assert (failure.transport, failure.status, failure.ended) == ("refused", None, "none")
