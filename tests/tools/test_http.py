"""http_request: what is asked for, what comes back, and what is known when nothing does; against real servers."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.places import Allowed
from harnessd.domain.ports import ToolContext, ToolLimits, ToolOutcome
from harnessd.net.addresses import Target
from harnessd.net.strangers import Strangers
from harnessd.tools import Checked
from harnessd.tools.http import HttpRequest, act_of
from tests.loopback import Script, Visit, loopback

PRIVATE = ("127.0.0.0/8", "::1")


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext("t1", "e7", str(tmp_path), str(tmp_path), ToolLimits(timeout_s=1.0), {}, key="k" * 32)


async def ask(context: ToolContext, private: tuple[str, ...] = PRIVATE, **arguments: Any) -> ToolOutcome | Failure:
    tool = Checked(HttpRequest(Strangers([Allowed.parse(place) for place in private])))
    return await tool.run({"method": "GET", **arguments}, context)


def answers(status: int, body: bytes = b"", *headers: str) -> Script:
    async def script(visit: Visit) -> None:
        await visit.answer(status, body, *headers)

    return script


async def hangs(visit: Visit) -> None:
    await visit.hung_up()


async def resets(visit: Visit) -> None:
    visit.reset()


def failure(outcome: ToolOutcome | Failure) -> Failure:
    assert isinstance(outcome, Failure)
    assert outcome.dependency == "tool/http_request"
    assert outcome.advice
    return outcome


def outcome(answered: ToolOutcome | Failure) -> ToolOutcome:
    assert isinstance(answered, ToolOutcome)
    return answered


def sent_headers(visit: Visit) -> dict[str, str]:
    lines = visit.head.decode().split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}


async def test_an_answer_is_told_with_status_headers_and_body(context: ToolContext) -> None:
    async with loopback(answers(200, b'{"ok": [1]}', "Content-Type: application/json", "X-Odd: 1")) as server:
        answered = outcome(await ask(context, url=f"{server.url}/a?b=c#d", headers={"Accept": "x/y"}))
    assert answered.text == 'HTTP 200\ncontent-type: application/json\n\n{"ok": [1]}'
    assert answered.facts["result"] == {"status": 200, "body": {"ok": [1]}}
    assert server.visits[0].head.startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert sent_headers(server.visits[0])["accept"] == "x/y"


async def test_a_refusal_of_the_service_is_an_answer(context: ToolContext) -> None:
    async with loopback(answers(404, b"no such thing"), answers(409, b"")) as server:
        answered = outcome(await ask(context, url=server.url + "/x"))
        conflict = outcome(await ask(context, method="POST", url=server.url + "/x", body="a"))
    assert (answered.is_error, answered.text) == (True, "HTTP 404\n\nno such thing")
    assert (conflict.is_error, conflict.text) == (True, "HTTP 409")


async def test_the_key_is_ours_whatever_the_model_sends(context: ToolContext) -> None:
    # R3.13, security/idempotency-key-forgery
    forged = {"Idempotency-Key": "task-1/effect-7", "Host": "other", "Content-Length": "1", "X-Mine": "yes"}
    async with loopback(answers(201)) as server:
        await ask(context, method="POST", url=server.url + "/pay", json={"amount": 1}, headers=forged)
        await ask(context, url=server.url + "/read", headers=forged)
    post, get = map(sent_headers, server.visits)
    assert post["idempotency-key"] == context.key
    assert (post["x-mine"], post["content-type"]) == ("yes", "application/json")
    assert post["host"] == server.url.removeprefix("http://")
    assert json.loads(server.visits[0].body) == {"amount": 1}
    assert "idempotency-key" not in get


@pytest.mark.parametrize("script", [hangs, resets])
async def test_a_request_that_may_have_acted_is_an_unknown_outcome(context: ToolContext, script: Script) -> None:
    # R3.13, g03: the server did it, the answer was lost
    async with loopback(script) as server:
        failed = failure(await ask(context, method="POST", url=server.url + "/refund", timeout_s=0.3))
    assert (failed.hint, failed.effect_begun) == (ErrorClass.OUTCOME_UNKNOWN, True)
    assert len(server.visits) == 1


@pytest.mark.parametrize(("script", "hint"), [(hangs, ErrorClass.TIMEOUT), (resets, ErrorClass.UNAVAILABLE)])
async def test_a_read_without_answer_may_be_asked_again(context: ToolContext, script: Script, hint: ErrorClass) -> None:
    async with loopback(script) as server:
        failed = failure(await ask(context, url=server.url, timeout_s=0.3))
    assert (failed.hint, failed.effect_begun) == (hint, False)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_nothing_was_sent_where_nobody_listens(context: ToolContext, method: str) -> None:
    async with loopback(answers(200)) as server:
        gone = server.url
    failed = failure(await ask(context, method=method, url=gone))
    assert (failed.hint, failed.effect_begun) == (ErrorClass.UNAVAILABLE, False)


@pytest.mark.parametrize(
    ("method", "status", "hint", "begun"),
    [
        ("GET", 429, ErrorClass.RATE_LIMITED, False),
        ("POST", 429, ErrorClass.RATE_LIMITED, False),
        ("GET", 503, ErrorClass.UNAVAILABLE, False),
        ("POST", 503, ErrorClass.UNAVAILABLE, False),
        ("GET", 502, ErrorClass.UNAVAILABLE, False),
        ("POST", 500, ErrorClass.OUTCOME_UNKNOWN, True),
        ("PUT", 502, ErrorClass.OUTCOME_UNKNOWN, True),
        ("DELETE", 504, ErrorClass.OUTCOME_UNKNOWN, True),
    ],
)
async def test_what_a_status_says_of_the_act(
    context: ToolContext, method: str, status: int, hint: ErrorClass, begun: bool
) -> None:
    async with loopback(answers(status, b"later", "Retry-After: 7")) as server:
        failed = failure(await ask(context, method=method, url=server.url))
    assert (failed.status, failed.hint, failed.effect_begun) == (status, hint, begun)
    assert failed.retry_after_s == (7 if status in (429, 503) else None)


async def test_redirects_are_followed_for_reads_and_every_hop_is_checked(context: ToolContext) -> None:
    secret = {"Authorization": "Bearer abcdefgh", "X-Mine": "1"}
    async with loopback(answers(200, b"there")) as other:
        onward = f"Location: {other.url.replace('127.0.0.1', '127.0.0.2')}/next"
        async with loopback(answers(302, b"", "Location: /second"), answers(301, b"", onward)) as server:
            refused = failure(await ask(context, ("127.0.0.1/32",), url=server.url, headers=secret))
        async with loopback(answers(302, b"", "Location: /second"), answers(301, b"", onward)) as server:
            await ask(context, url=server.url, headers=secret)
        onward = f"Location: {other.url}/next"
        async with loopback(answers(302, b"", "Location: /second"), answers(301, b"", onward)) as server:
            answered = outcome(await ask(context, url=server.url, headers=secret))
    assert (refused.hint, refused.message) == (ErrorClass.PERMISSION_DENIED, "127.0.0.2 is 127.0.0.2, this machine")
    assert [sent_headers(visit).get("authorization") for visit in server.visits] == ["Bearer abcdefgh"] * 2
    assert answered.text.endswith("there")
    assert f"[redirected to {other.url}/next]" in answered.text
    assert "authorization" not in sent_headers(other.visits[-1])
    assert sent_headers(other.visits[-1])["x-mine"] == "1"


async def test_an_act_is_not_sent_on_by_a_redirect(context: ToolContext) -> None:
    async with loopback(answers(307, b"", "Location: /again")) as server:
        answered = outcome(await ask(context, method="POST", url=server.url, body="once"))
    assert len(server.visits) == 1
    assert "location: /again" in answered.text


async def test_a_circle_of_redirects_ends(context: ToolContext) -> None:
    async with loopback(answers(302, b"", "Location: /round")) as server:
        answered = outcome(await ask(context, url=server.url))
    assert answered.text.startswith("HTTP 302")
    assert len(server.visits) == 6


async def test_a_long_answer_is_cut_and_kept_whole(context: ToolContext) -> None:
    body = b"".join(b"line %d\n" % number for number in range(30_000))
    async with loopback(answers(200, body)) as server:
        answered = outcome(await ask(context, url=server.url))
    assert len(answered.text.encode()) <= context.limits.output_max
    assert answered.artefact is not None
    assert Path(answered.artefact).read_bytes() == body
    assert answered.text.endswith("line 29999\n")


async def test_bytes_that_are_no_text_are_kept_and_not_shown(context: ToolContext) -> None:
    async with loopback(answers(200, b"\x89PNG\0\0\xff")) as server:
        answered = outcome(await ask(context, url=server.url))
    assert "(not text)" in answered.text
    assert Path(answered.artefact or "").read_bytes() == b"\x89PNG\0\0\xff"


async def test_a_bomb_costs_little_memory(context: ToolContext) -> None:
    # security/gzip-bomb-response
    bomb = gzip.compress(bytes(300 * 2**20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with loopback(answers(200, bomb, "Content-Encoding: gzip")) as server:
        answered = outcome(await ask(context, url=server.url, timeout_s=20))
    assert "the answer is longer than 10 MiB" in answered.text
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


async def test_an_endless_answer_ends_at_its_time(context: ToolContext) -> None:
    async def drips(visit: Visit) -> None:
        await visit.begin_stream()
        while True:
            await visit.chunk(b"x")
            await asyncio.sleep(0.05)

    async with loopback(drips) as server, asyncio.timeout(5):
        answered = outcome(await ask(context, url=server.url, timeout_s=0.5))
    assert "the answer is not whole" in answered.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": "ftp://example.test/"}, "url: an address must begin with http"),
        ({"url": "http://user:pw@127.0.0.1/"}, "url: the address holds a user or a password"),
        ({"url": "http://127.0.0.1:99999/"}, "url: the address is not a URL"),
        ({"url": "http://127.0.0.1\\@8.8.8.8/"}, "url: the address holds a space"),
        ({"url": "http://127.0.0.1%00.example.com/"}, "url: the"),
        ({"url": "http://exa mple.com/"}, "url: the address holds a space"),
        ({"url": "http://127.0.0.1/", "headers": {"A\r\nB": "c"}}, "headers.A"),
        ({"url": "http://127.0.0.1/", "headers": {"A": "c\r\nIdempotency-Key: x"}}, "headers.A"),
        ({"method": "POST", "url": "http://127.0.0.1/", "body": "a", "json": 1}, "json: only one"),
        ({"url": "http://127.0.0.1/", "json": {}}, "body: a GET request carries none"),
    ],
)
async def test_what_is_no_request_is_refused(context: ToolContext, arguments: Mapping[str, Any], said: str) -> None:
    failed = failure(await ask(context, **arguments))
    assert failed.hint is ErrorClass.INVALID_ARGUMENTS
    assert failed.message.startswith(said)


INWARD = [
    *("http://127.0.0.1/", "http://localhost/", "http://localhost./", "http://127.1/", "http://2130706433/"),
    *("http://0x7f.0.0.1/", "http://0177.0.0.1/", "http://0/", "http://0.0.0.0/", "http://[::]/", "http://[::1]/"),
    *("http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[::127.0.0.1]/", "http://[64:ff9b::7f00:1]/"),
    *("http://[64:ff9b::a9fe:a9fe]/", "http://[2002:7f00:1::]/", "http://169.254.169.254/latest/meta-data/"),
    *("http://[fe80::1]/", "http://[fd00:ec2::254]/", "http://10.0.0.1/", "http://172.16.0.1/", "http://172.31.255.1/"),
    *(
        "http://192.168.1.1/",
        "http://100.64.0.1/",
        "http://100.100.100.200/",
        "http://198.18.0.1/",
        "http://224.0.0.1/",
    ),
    *("http://255.255.255.255/", "http://240.0.0.1/", "http://192.0.2.1/", "http://203.0.113.7/", "http://[ff02::1]/"),
    *(
        "https://127.0.0.1:6443/",
        "http://127.0.0.1:22/",
        "http://①②⑦.⓪.⓪.①/",
        "http://127。0。0。1/",
        "http://LOCALHOST/",
    ),
    *(
        "http://[::ffff:169.254.169.254]/",
        "http://[::ffff:0a00:0001]/",
        "http://127.0.0.1.:80/",
        "http://[::ffff:0:1]/",
    ),
]


@pytest.mark.parametrize("url", INWARD)
async def test_no_spelling_leads_inwards(context: ToolContext, url: str) -> None:
    # S5: every address of the name is judged, however it is written
    failed = failure(await ask(context, (), url=url, timeout_s=0.5))
    assert failed.hint in (ErrorClass.PERMISSION_DENIED, ErrorClass.INVALID_ARGUMENTS, ErrorClass.UNAVAILABLE)
    assert not failed.effect_begun
    if failed.hint is ErrorClass.UNAVAILABLE:
        assert "could not be resolved" in failed.message  # a name that no resolver takes is not called either


async def test_what_is_allowed_holds_for_its_port_only(context: ToolContext) -> None:
    async with loopback(answers(200, b"in")) as server, loopback(answers(200, b"in")) as other:
        place = server.url.removeprefix("http://")
        answered = outcome(await ask(context, (place,), url=server.url))
        refused = failure(await ask(context, (place,), url=other.url))
        named = outcome(await ask(context, ("localhost",), url=other.url.replace("127.0.0.1", "localhost")))
    assert answered.text.endswith("in")
    assert refused.hint is ErrorClass.PERMISSION_DENIED
    assert other.visits[0].head.split(b"\r\n")[1].lower().startswith(b"host: localhost:")
    assert named.text.endswith("in")


@pytest.mark.parametrize("place", ["10.0.0.0/33", "a b/c", "[::1", ":80", "1.2.3.4:0", "1.2.3.4:x", ""])
def test_a_place_that_is_none_is_refused_in_a_sentence(place: str) -> None:
    with pytest.raises(ValueError, match=r"network|port|address"):
        Allowed.parse(place)


def test_a_target_is_what_is_sent() -> None:
    target = Target.parse("HTTPS://Exämple.com:8443/a b".replace(" ", "%20"))
    assert (target.url.scheme, target.host, target.port) == ("https", "xn--exmple-cua.com", 8443)


@pytest.mark.parametrize(
    "other",
    [
        {"timeout_s": 90},
        {"headers": {"Idempotency-Key": "mine-2", "X-Request-ID": "7"}},
        {"url": "http://PAY.example:80/x?a=1#again"},
        {"headers": {"Content-Type": "application/json"}},
        {"json": None, "body": '{ "b" : [1],"a":1 }'},
    ],
)
def test_the_same_request_sent_another_way_is_the_same_act(other: dict[str, Any]) -> None:
    # R3.13, security/idempotency-key-forgery: a model asks again with a new request id, more time, JSON as text
    one = {"method": "POST", "url": "http://pay.example/x?a=1", "json": {"a": 1, "b": [1]}}
    two = {name: value for name, value in {**one, **other}.items() if value is not None}
    assert act_of(one) == act_of(two)


@pytest.mark.parametrize(
    "other",
    [
        {"method": "PUT"},
        {"url": "http://pay.example/x?a=2"},
        {"json": {"a": 2, "b": [1]}},
        {"headers": {"Authorization": "Bearer other"}},
        {"json": None, "body": "{half"},
    ],
)
def test_another_request_is_another_act(other: dict[str, Any]) -> None:
    one = {"method": "POST", "url": "http://pay.example/x?a=1", "json": {"a": 1, "b": [1]}}
    two = {name: value for name, value in {**one, **other}.items() if value is not None}
    assert act_of(one) != act_of(two)


def test_what_only_looks_like_a_request_is_no_traceback() -> None:
    for odd in ({}, {"url": 7, "headers": []}, {"url": "nowhere", "headers": {"a": None}, "body": "[" * 100_000}):
        act_of(odd)
