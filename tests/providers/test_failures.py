"""What is no reply becomes a Failure with the facts that rules look at, and no secret is in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from harnessd.domain.failure import Failure
from harnessd.domain.messages import Message, TextBlock
from harnessd.net import Clients
from harnessd.providers import PROTOCOLS, Endpoint
from tests.loopback import Script, Visit
from tests.providers.speech import (
    HELLO,
    KEY,
    WHOLE,
    a_start,
    a_text,
    answered,
    ask,
    o_chunk,
    replied,
    said,
    streamed,
    streamed_raw,
    talk,
)

ALL = pytest.mark.parametrize("protocol", sorted(PROTOCOLS))


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
            '{"error":{"type":"invalid_request_error","message":"prompt is too long"},"request_id":"req_9"}',
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
            '{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"temporarily limited"}}}',
            "429",
            None,
            "Provider returned error: temporarily limited",
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


async def test_a_body_that_echoes_the_request_is_bounded() -> None:
    deep: Any = "x"
    for _ in range(20):
        deep = {"a": [deep]}
    error: dict[str, Any] = {"message": "bad", "input": ["word " * 1000] * 40, "deep": deep, "half": "\ud83d"}
    failure = await failed("openai-chat", answered(422, {"error": error}))
    assert failure.body["error"]["message"] == "bad"
    assert len(json.dumps(failure.body).encode()) < 100_000
    assert failure.body["error"]["deep"] != deep
    assert json.dumps(failure.body, ensure_ascii=False).encode()


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


@ALL
async def test_redirects_are_told_and_not_followed(protocol: str) -> None:
    async with talk(protocol, answered(308, "", "Location: /other?token=canary")) as conversation:
        failure = said(await conversation.call())
        assert len(conversation.server.visits) == 1
    assert failure.status == 308
    assert "/other" in failure.message
    assert "canary" not in failure.message


@ALL
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


# --- keys -----------------------------------------------------------------------------------------


@ALL
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


@ALL
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


@ALL
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


@ALL
async def test_the_size_of_a_refused_request_is_told(protocol: str) -> None:
    # R4.3 (d): the numbers cross-check the words; a service that counted itself is believed
    request = replace(HELLO, messages=(Message("user", (TextBlock("Please read the file again. " * 400),)),))
    answers = [
        answered(400, {"error": {"message": "No."}}),
        answered(400, {"error": {"message": "too long: 3000 tokens > 2000 maximum"}}),
        answered(429, {"error": {"message": "Slow."}}),
    ]
    async with talk(protocol, *answers, window=4000) as conversation:
        vague, counted, busy = [said(await conversation.call(request)) for _ in answers]
    assert vague.window_used == pytest.approx(2800 / 4000, rel=0.1)
    assert counted.window_used == 1.5
    assert busy.window_used is None
    async with talk(protocol, answers[0], window=0) as conversation:
        assert said(await conversation.call(request)).window_used is None


@ALL
async def test_nobody_there_is_a_transport_failure(protocol: str) -> None:
    async with talk(protocol, streamed_raw(b"")) as conversation:
        pass
    clients = Clients()
    conversation.clients = clients
    failure = said(await conversation.call())
    await clients.aclose()
    assert (failure.transport, failure.status, failure.ended) == ("refused", None, "none")
