"""Kept clients and own clocks, against real sockets."""

from __future__ import annotations

import asyncio
import gzip
import logging
import shutil
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from harnessd.domain.ports import CallClocks
from harnessd.net import CallTimer, Clients, Outgoing, TransportError
from tests.loopback import Visit, loopback

FAST = CallClocks(connect_s=5, first_event_s=5, idle_s=5, call_s=10)


@pytest_asyncio.fixture
async def clients() -> AsyncIterator[Clients]:
    made = Clients()
    yield made
    await made.aclose()


async def fetch(clients: Clients, url: str, clocks: CallClocks = FAST, limit: int = 1_000_000) -> tuple[int, bytes]:
    async with (
        CallTimer(clocks) as timer,
        clients.open(Outgoing("POST", url, {}, b"{}"), timer) as incoming,
        aclosing(incoming.chunks(limit)) as chunks,
    ):
        return incoming.status, b"".join([chunk async for chunk in chunks])


async def failure(clients: Clients, url: str, clocks: CallClocks = FAST) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await fetch(clients, url, clocks)
    return caught.value


async def test_connections_are_kept(clients: Clients) -> None:
    async with loopback(lambda visit: visit.answer(200, b"ok")) as server:
        for _ in range(5):
            assert await fetch(clients, server.url) == (200, b"ok")
        assert server.connections == 1
        assert clients.made == 1


async def test_many_calls_at_once_are_spread_over_small_pools(clients: Clients) -> None:
    all_in = asyncio.Barrier(40)

    async def together(visit: Visit) -> None:
        await all_in.wait()
        await visit.answer(200, b"ok")

    async with loopback(together) as server:
        for _ in range(2):
            answers = await asyncio.gather(*(fetch(clients, server.url) for _ in range(40)))
            assert answers == [(200, b"ok")] * 40
        # performance.md section 3: pools of 4, never one for each request
        assert clients.made == 10
        assert server.connections == 40


async def test_the_request_carries_nothing_of_the_environment(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with loopback(lambda visit: visit.answer(200, b"", "Set-Cookie: a=b")) as server:
        await fetch(clients, server.url)
        await fetch(clients, server.url)
        head = server.visits[1].head.lower()
        assert b"accept-encoding: identity" in head
        assert b"cookie" not in head


async def test_redirects_are_not_followed(clients: Clients) -> None:
    async with loopback(lambda visit: visit.answer(307, b"", "Location: /elsewhere")) as server:
        assert (await fetch(clients, server.url))[0] == 307
        assert len(server.visits) == 1


async def test_nothing_of_an_address_or_a_header_is_logged(clients: Clients, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with loopback(lambda visit: visit.answer(200, b"ok", "Set-Cookie: canary-in-answer")) as server:
        outgoing = Outgoing("POST", f"{server.url}/?key=canary-in-query", {"x-api-key": "canary-in-header"}, b"canary")
        async with CallTimer(FAST) as timer, clients.open(outgoing, timer):
            pass
    assert "canary" not in caplog.text
    assert "canary" not in repr(outgoing)


async def test_a_port_where_nobody_listens_is_refused(clients: Clients) -> None:
    async with loopback(lambda visit: visit.answer(200, b"")) as server:
        pass
    assert (await failure(clients, server.url)).word == "refused"


async def test_plain_http_behind_https_is_a_tls_failure(clients: Clients) -> None:
    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert (await failure(clients, f"https://127.0.0.1:{port}")).word == "tls"
    server.close()
    await server.wait_closed()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_a_certificate_that_nobody_vouches_for_is_refused(clients: Clients, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = await asyncio.create_subprocess_exec(
        *(
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ),
        *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await made.wait() == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    requests = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    error = await failure(clients, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert error.word == "tls"
    assert "certificate" in error.message
    assert [request for request in requests if request] == []
    server.close()
    await server.wait_closed()


async def test_a_reset_and_a_hang_up_are_told_apart(clients: Clients) -> None:
    async def reset(visit: Visit) -> None:
        visit.reset()

    async def hang_up(visit: Visit) -> None:
        visit.close()
        raise ConnectionError

    async with loopback(reset, hang_up) as server:
        assert (await failure(clients, server.url)).word == "reset"
        assert (await failure(clients, server.url)).word == "closed"


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: twelve\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbroken header line\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"\x00\x01\x02\x03\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_a_protocol_failure(clients: Clients, garbage: bytes) -> None:
    # F25
    async def babble(visit: Visit) -> None:
        await visit.send(garbage)
        visit.close()
        raise ConnectionError

    async with loopback(babble) as server:
        assert (await failure(clients, server.url)).word in {"protocol", "closed"}


async def test_an_endless_header_is_refused(clients: Clients) -> None:
    # F26
    async def endless(visit: Visit) -> None:
        await visit.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while True:
            await visit.send(b"x" * 65536)

    async with loopback(endless) as server:
        assert (await failure(clients, server.url)).word == "protocol"


async def test_an_endless_body_and_a_bomb_stop_at_the_limit(clients: Clients) -> None:
    # F26, finding 9
    async def endless(visit: Visit) -> None:
        await visit.begin_stream()
        while True:
            await visit.chunk(b"x" * 65536)

    bomb = gzip.compress(bytes(50_000_000))
    async with loopback(endless, lambda visit: visit.answer(200, bomb, "Content-Encoding: gzip")) as server:
        assert (await failure(clients, server.url)).word == "too_large"
        assert (await failure(clients, server.url)).word == "too_large"


async def test_slow_headers_meet_the_first_event_clock(clients: Clients) -> None:
    async def drip(visit: Visit) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX-Slow: yes\r\n" * 50:
            await visit.send(bytes([byte]))
            await asyncio.sleep(0.02)

    async with loopback(drip) as server:
        began = time.monotonic()
        error = await failure(clients, server.url, CallClocks(5, 0.3, 5, 10))
        assert error.word == "read_timeout"
        assert "0.3 s" in error.message
        assert 0.25 < time.monotonic() - began < 2
        await asyncio.wait_for(server.left.wait(), 2)


async def test_a_peer_that_takes_no_request_is_a_write_timeout(clients: Clients) -> None:
    gate = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    outgoing = Outgoing("POST", f"http://127.0.0.1:{port}/", {}, b"x" * 30_000_000)
    with pytest.raises(TransportError) as caught:
        async with CallTimer(CallClocks(5, 0.3, 5, 10)) as timer, clients.open(outgoing, timer):
            pass
    assert caught.value.word == "write_timeout"
    gate.set()
    server.close()
    await server.wait_closed()


async def test_a_handshake_without_an_answer_is_a_connect_timeout_and_leaves_no_socket(clients: Clients) -> None:
    async with loopback(lambda visit: visit.answer(200, b"")) as server:  # waits for the end of a plain header
        secure = server.url.replace("http:", "https:")
        assert (await failure(clients, secure, CallClocks(0.2, 5, 5, 10))).word == "connect_timeout"
        await asyncio.wait_for(server.left.wait(), 2)
        server.left.clear()
        call = asyncio.ensure_future(fetch(clients, secure))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.left.wait(), 2)


async def test_more_calls_than_connections_wait_in_the_pool() -> None:
    clients = Clients(connections_each=1, pools_max=1)

    async def silent(visit: Visit) -> None:
        await visit.hung_up()

    async with loopback(silent) as server:
        first = asyncio.ensure_future(failure(clients, server.url, CallClocks(5, 1.5, 5, 10)))
        await asyncio.sleep(0.1)
        assert (await failure(clients, server.url, CallClocks(0.2, 5, 5, 10))).word == "pool_timeout"
        assert (await first).word == "read_timeout"
    await clients.aclose()


async def test_the_whole_call_has_an_end_of_its_own(clients: Clients) -> None:
    async def forever(visit: Visit) -> None:
        await visit.begin_stream()
        while True:
            await visit.chunk(b"x")
            await asyncio.sleep(0.02)

    async with loopback(forever) as server:
        began = time.monotonic()
        error = await failure(clients, server.url, CallClocks(5, 5, 5, 0.3))
        assert time.monotonic() - began < 2
        assert error.word == "read_timeout"
        assert "whole call may take 0.3 s" in error.message


async def test_cancelling_closes_the_connection(clients: Clients) -> None:
    async def silent(visit: Visit) -> None:
        await visit.hung_up()

    async with loopback(silent) as server:
        call = asyncio.ensure_future(fetch(clients, server.url))
        while not server.visits:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.left.wait(), 2)


async def test_after_closing_nothing_is_opened(clients: Clients) -> None:
    async with loopback(lambda visit: visit.answer(200, b"ok")) as server:
        await fetch(clients, server.url)
        await clients.aclose()
        assert (await failure(clients, server.url)).word == "closed"
        await asyncio.wait_for(server.left.wait(), 2)


async def test_a_release_leaves_calls_under_way_alone(clients: Clients) -> None:
    go_on = asyncio.Event()

    async def slow(visit: Visit) -> None:
        await go_on.wait()
        await visit.answer(200, b"ok")

    async with loopback(slow) as server:
        call = asyncio.ensure_future(fetch(clients, server.url))
        while not server.visits:
            await asyncio.sleep(0.01)
        await clients.release(server.url)
        go_on.set()
        assert await call == (200, b"ok")
        assert await fetch(clients, server.url) == (200, b"ok")
        assert server.connections == 1


async def test_released_pools_are_made_anew_when_needed(clients: Clients) -> None:
    async with loopback(lambda visit: visit.answer(200, b"ok")) as server:
        await fetch(clients, server.url)
        await clients.release(server.url)
        assert await fetch(clients, server.url) == (200, b"ok")
        assert server.connections == 2
