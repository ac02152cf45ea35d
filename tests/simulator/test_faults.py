"""Faults on the wire: each kind is met as a client meets it."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
import zlib
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.simulated import SimulatedService
from tests.simulator.asking import Reply, ask, chat, functions, tools, user

ANSWER = {
    "turns": [{"say": "All is well in the harbour today.", "call": {"tool": "bash", "args": {"command": "ls -la"}}}]
}


def faulty(service: SimulatedService, do: Any, **more: Any) -> None:
    plan = more or {"request": {"min": 1}}
    service.control_now(scripts={"models": {"m": ANSWER | {"faults": {"plan": [plan | {"do": do}]}}}})


def stream(service: SimulatedService, **more: Any) -> Reply:
    return ask(service, "m", [user("Hi.")], tools=tools("bash"), stream=True, **more)


def chat_stream(service: SimulatedService) -> Reply:
    return chat(service, "m", [user("Hi.")], tools=functions("bash"), stream=True)


def raw(service: SimulatedService, read_s: float, *, stream: bool = True, until: bytes = b"") -> tuple[bytes, str]:
    """What a plain socket hears within `read_s` seconds, and how it ends: open, closed or reset."""
    parts = urlsplit(service.url)
    body = json.dumps(
        {"model": "m", "max_tokens": 500, "stream": stream, "messages": [user("Hi.")], "tools": tools("bash")}
    ).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nanthropic-version: 1\r\ncontent-length: {len(body)}\r\n\r\n"
    heard, end = b"", "open"
    with socket.create_connection((str(parts.hostname), parts.port or 0), timeout=5) as client:
        client.sendall(head.encode() + body)
        ends = time.monotonic() + read_s
        while (left := ends - time.monotonic()) > 0:
            client.settimeout(left)
            try:
                piece = client.recv(1 << 20)
            except TimeoutError:
                break
            except ConnectionResetError:
                end = "reset"
                break
            if not piece:
                end = "closed"
                break
            heard += piece
            if until and heard.endswith(until):
                break
    return heard, end


@pytest.mark.parametrize(
    ("name", "status", "kind", "code"),
    [
        ("rate_limited", 429, "rate_limit_error", "rate_limit_exceeded"),
        ("server_error", 500, "api_error", None),
        ("quota", 429, "rate_limit_error", "insufficient_quota"),
        ("auth", 401, "authentication_error", "invalid_api_key"),
        ("too_large", 413, "request_too_large", "request_too_large"),
        ("overflow", 400, "invalid_request_error", "context_length_exceeded"),
    ],
)
def test_named_errors_in_each_services_words(
    service: SimulatedService, name: str, status: int, kind: str, code: str | None
) -> None:
    faulty(service, name)
    one, other = stream(service), chat_stream(service)
    assert (one.status, one.body["error"]["type"]) == (status, kind)
    assert (other.status, other.body["error"]["code"]) == (status, code)
    assert service.requests_now()["faults"] == {"total": 2, "by_kind": {name: 2}}


def test_overloaded_is_529_or_503(service: SimulatedService) -> None:
    faulty(service, "overloaded")
    assert (stream(service).status, chat_stream(service).status) == (529, 503)


def test_exhausted_quota_has_no_retry_after_and_names_its_kind(service: SimulatedService) -> None:
    faulty(service, "quota")
    reply = stream(service)
    assert reply.body["error"]["details"] == {"error_code": "enforced_spend_limit_reached"}
    assert "retry-after" not in reply.headers


def test_status_with_headers_and_body(service: SimulatedService) -> None:
    faulty(service, {"status": 418, "headers": {"X-Odd": "1"}, "body": {"odd": True}, "retry_after": 2})
    reply = stream(service)
    assert (reply.status, reply.headers["x-odd"], reply.headers["retry-after"]) == (418, "1", "2")
    assert reply.body == {"odd": True}


def test_html_from_a_proxy(service: SimulatedService) -> None:
    faulty(service, "html_502")
    reply = stream(service)
    assert (reply.status, reply.headers["content-type"], "<h1>502" in reply.body) == (502, "text/html", True)


def test_a_careless_service_echoes_the_key(service: SimulatedService) -> None:
    faulty(service, {"auth": True, "echo_key": True})
    assert "sk-ant-CANARY" in stream(service, headers={"x-api-key": "sk-ant-CANARY"}).message
    assert "CANARY" not in json.dumps(service.requests_now())


def test_reset_before_any_byte(service: SimulatedService) -> None:
    faulty(service, "reset")
    assert raw(service, 3) == (b"", "reset")


def test_reset_after_events(service: SimulatedService) -> None:
    faulty(service, {"reset": 3})
    heard, end = raw(service, 3)
    assert (heard.count(b"data: "), end) == (3, "reset")


@pytest.mark.parametrize(("end", "whole", "ended"), [("close", False, "closed"), ("reset", False, "reset")])
def test_cut_in_the_middle(service: SimulatedService, end: str, whole: bool, ended: str) -> None:
    faulty(service, {"cut_after": 4, "end": end})
    heard, how = raw(service, 3)
    assert (heard.count(b"data: "), heard.endswith(b"0\r\n\r\n"), how) == (4, whole, ended)


def test_a_clean_end_without_the_last_event(service: SimulatedService) -> None:
    faulty(service, {"cut_after": 6, "end": "clean"})
    reply = stream(service)
    assert len(reply.events) == 6
    assert reply.events[-1]["type"] != "message_stop"


def test_cut_after_bytes(service: SimulatedService) -> None:
    faulty(service, {"cut_after": "300B"})
    with pytest.raises(http.client.IncompleteRead) as caught:
        stream(service)
    assert len(caught.value.partial) == 300


def test_a_document_is_cut_too(service: SimulatedService) -> None:
    faulty(service, {"cut_after": "20B"})
    with pytest.raises(http.client.IncompleteRead):
        ask(service, "m", [user("Hi.")], tools=tools("bash"))


def test_silence_after_events(service: SimulatedService) -> None:
    faulty(service, {"stall": 2})
    heard, end = raw(service, 0.4)
    assert (heard.count(b"data: "), end) == (2, "open")


def test_pings_are_the_only_sign_of_life(service: SimulatedService) -> None:
    faulty(service, {"pings_only": 1, "every": "20ms"})
    heard, end = raw(service, 0.5)
    assert (heard.count(b"event: message_start"), heard.count(b"event: ping") > 5, end) == (1, True, "open")
    assert b"text_delta" not in heard


def test_headers_come_late(service: SimulatedService) -> None:
    faulty(service, {"delay_headers": "300ms"})
    start = time.monotonic()
    assert stream(service).status == 200
    assert time.monotonic() - start >= 0.3
    faulty(service, {"delay_headers": "forever"})
    assert raw(service, 0.3) == (b"", "open")


def test_error_event_within_200(service: SimulatedService) -> None:
    faulty(service, {"error_event": "overloaded", "after": 3})
    reply = stream(service)
    assert (reply.status, len(reply.events)) == (200, 4)
    assert reply.events[-1]["error"]["type"] == "overloaded_error"
    other = chat_stream(service)
    assert (other.status, other.events[-1]["error"]["code"]) == (200, "server_overloaded")


@pytest.mark.parametrize(
    ("kind", "sign"),
    [
        ("http", b"not HTTP"),
        ("lengths", b"content-length: 5\r\ntransfer-encoding: chunked"),
        ("header", b"x-long: " + b"a" * 400_000),
        ("json", b'{"type": '),
        ("utf8", b"\xff\xfe\x80"),
        ("sse", b"data: {broken"),
    ],
)
def test_garbage(service: SimulatedService, kind: str, sign: bytes) -> None:
    faulty(service, {"garbage": kind})
    heard, _ = raw(service, 0.6)
    assert sign in heard


def test_bad_utf8_in_a_stream(service: SimulatedService) -> None:
    faulty(service, "bad_utf8")
    assert b"\xff\xfe" in raw(service, 0.5)[0]


def test_gzip_bomb(service: SimulatedService) -> None:
    faulty(service, {"gzip_bomb": True, "size": "16MiB"})
    heard, _ = raw(service, 30, stream=False, until=b"\r\n0\r\n\r\n")
    head, _, body = heard.partition(b"\r\n\r\n")
    assert b"content-encoding: gzip" in head
    packed = b"".join(chunks(body))
    assert len(packed) < 64 * 1024
    assert len(zlib.decompress(packed, 31)) > 16 << 20


def chunks(body: bytes) -> list[bytes]:
    out = []
    while body:
        size, _, body = body.partition(b"\r\n")
        if not int(size, 16):
            break
        out.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return out


def test_endless_body(service: SimulatedService) -> None:
    faulty(service, "endless")
    assert len(raw(service, 0.3)[0]) > 1 << 20


def test_drip_and_split_lose_nothing(service: SimulatedService) -> None:
    service.control_now(scripts={"models": {"m": {"turns": [{"say": "两个都看。"}]}}})
    plain = stream(service).events[1:]
    for do in ({"split": 1}, {"slow_drip": "0ms", "bytes": 7}):
        service.control_now(clear_faults=True, faults={"model": "m", "plan": [{"request": {"min": 1}, "do": do}]})
        assert stream(service).events[1:] == plain


def test_unknown_events_are_strewn_in(service: SimulatedService) -> None:
    faulty(service, "unknown_events")
    assert "future_event" in [event["type"] for event in stream(service).events]


def test_answers_that_are_wrong(service: SimulatedService) -> None:
    faulty(service, "empty_answer")
    assert ask(service, "m", [user("Hi.")], tools=tools("bash")).body["content"] == []
    faulty(service, "done_without_finish")
    assert {choice["finish_reason"] for event in chat_stream(service).events for choice in event["choices"]} == {None}
    faulty(service, "duplicate_ids")
    calls = chat(service, "m", [user("Hi.")], tools=functions("bash")).body["choices"][0]["message"]["tool_calls"]
    assert (len(calls), len({call["id"] for call in calls})) == (2, 1)
    faulty(service, "refusal")
    assert stream(service).events[-2]["delta"]["stop_reason"] == "refusal"


@pytest.mark.parametrize(("kind", "reason"), [("malformed_args", "tool_use"), ("cut_call", "max_tokens")])
def test_arguments_that_are_not_whole(service: SimulatedService, kind: str, reason: str) -> None:
    faulty(service, kind)
    events = stream(service).events
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    with pytest.raises(json.JSONDecodeError):
        json.loads("".join(delta.get("partial_json", "") for delta in deltas))
    assert events[-2]["delta"]["stop_reason"] == reason


def test_request_counts_requests_and_at_counts_tries(service: SimulatedService) -> None:
    faulty(service, "overloaded", request=2)
    assert [stream(service).status for _ in range(3)] == [200, 529, 200]
    service.reset_now()
    faulty(service, "overloaded", at={"turn": 0, "times": 2})
    statuses = [ask(service, "m", [user(word)], tools=tools("bash")).status for word in ("a", "b", "a", "b", "a", "b")]
    assert statuses == [529, 529, 529, 529, 200, 200]


def test_same_seed_same_faults(service: SimulatedService) -> None:
    # R8.1
    def run(seed: int) -> list[int]:
        rate = [{"p": 0.3, "do": "overloaded"}, {"p": 0.3, "do": "rate_limited"}]
        service.reset_now()
        service.control_now(
            scripts={"models": {"m": {"turns": [{"say": "x"}], "faults": {"seed": seed, "rate": rate}}}}
        )
        return [ask(service, "m", [user(f"task {n}")]).status for n in range(60)]

    one = run(7)
    assert run(7) == one
    assert run(8) != one
    found = Counter(one)
    assert 8 <= found[529] <= 28
    assert found[429] > 3
    assert found[200] > 15


def test_rate_on_first_tries_only(service: SimulatedService) -> None:
    rate = [{"p": 1, "do": "overloaded", "attempts": 2}]
    service.control_now(scripts={"models": {"m": {"turns": [{"say": "x"}], "faults": {"rate": rate}}}})
    assert [ask(service, "m", [user("Hi.")]).status for _ in range(4)] == [529, 529, 200, 200]


def test_a_client_that_leaves_is_noticed(service: SimulatedService) -> None:
    faulty(service, {"stall": 1})
    raw(service, 0.2)
    for _ in range(100):
        entry = service.requests_now()["last"][-1]
        if entry["ended"] != "open":
            break
        time.sleep(0.02)
    assert entry["ended"] == "client_gone"
    assert service.requests_now()["open"] == 0


def test_a_client_that_resets_is_noticed(service: SimulatedService) -> None:
    faulty(service, "endless")
    parts = urlsplit(service.url)
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": [user("Hi.")], "tools": tools("bash")}).encode()
    client = socket.create_connection((str(parts.hostname), parts.port or 0), timeout=5)
    client.sendall(
        b"POST /v1/messages HTTP/1.1\r\nanthropic-version: 1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    client.recv(1000)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    for _ in range(100):
        if service.requests_now()["open"] == 0:
            break
        time.sleep(0.02)
    assert service.requests_now()["last"][-1]["ended"] == "client_gone"


def test_a_lasting_fault_holds_at_its_point_whatever_the_patience(service: SimulatedService) -> None:
    # R8.2: the part that no retry repairs; another model draws for itself.
    rate = [{"p": 0.3, "do": "server_error", "lasting": True}]
    one = {"turns": [{"say": "x"}], "faults": {"rate": rate}}
    service.control_now(scripts={"models": {"m": one, "second": {"use": "m", "faults": {"rate": rate}}}})
    points = [(name, [user(f"task {n}")]) for name in ("m", "second") for n in range(30)]
    tries = [[ask(service, name, messages).status for _ in range(3)] for name, messages in points]
    assert {len(set(statuses)) for statuses in tries} == {1}
    first, second = tries[:30], tries[30:]
    assert 3 <= sum(statuses[0] == 500 for statuses in first) <= 18
    assert first != second


def test_a_fault_that_only_a_smaller_prompt_gets_past(service: SimulatedService) -> None:
    # R8.2: what a smaller view of the history repairs, and what only a short prompt meets.
    rate = [
        {"p": 1, "do": "overflow", "lasting": True, "over": 200},
        {"p": 1, "do": "overloaded", "attempts": 1, "under": 100},
    ]
    service.control_now(scripts={"models": {"m": {"turns": [{"say": "x"}], "faults": {"rate": rate}}}})
    long, middle, short = user("word " * 400), user("word " * 110), user("Hi.")
    assert [ask(service, "m", [long]).status for _ in range(2)] == [400, 400]
    assert ask(service, "m", [middle]).status == 200
    assert [ask(service, "m", [short]).status for _ in range(2)] == [529, 200]


def test_a_quota_lets_through_what_it_says_and_tells_when_to_come_back(service: SimulatedService) -> None:
    # R3.16: requests in a span; the refused ones do not count
    script = {"turns": [{"say": "x"}], "quota": {"requests": 2, "per": "30s"}}
    service.control_now(scripts={"models": {"m": script, "t": script | {"quota": {"tokens": 150, "per": "30s"}}}})
    answers = [ask(service, "m", [user("Hi.")]) for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 429, 429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 30
    long = user("word " * 80)
    assert [ask(service, "t", [long]).status for _ in range(2)] == [200, 429]
