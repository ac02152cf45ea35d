"""The border's table, on exceptions chained as httpx chains them."""

from __future__ import annotations

import socket
import ssl
from itertools import pairwise

import httpx
import pytest

from harnessd.net import TransportError
from harnessd.net.border import border, translate


def caused(outer: BaseException, *inner: BaseException) -> BaseException:
    """The outermost exception of a chain."""
    chain = [outer, *inner]
    for effect, cause in pairwise(chain):
        effect.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (httpx.ConnectTimeout("t"), "connect_timeout"),
        (httpx.ReadTimeout("t"), "read_timeout"),
        (httpx.WriteTimeout("t"), "write_timeout"),
        (httpx.PoolTimeout("t"), "pool_timeout"),
        (caused(httpx.ConnectError("all failed"), OSError("x"), ConnectionRefusedError(111, "refused")), "refused"),
        (caused(httpx.ConnectError("x"), socket.gaierror(-2, "Name or service not known")), "dns"),
        (caused(httpx.ConnectError("x"), ssl.SSLCertVerificationError("self-signed certificate")), "tls"),
        (caused(httpx.ConnectError("x"), OSError(101, "Network is unreachable")), "unreachable"),
        (caused(httpx.ReadError("x"), ExceptionGroup("several", [ConnectionResetError(104, "reset")])), "reset"),
        (httpx.WriteError("x"), "reset"),
        (httpx.RemoteProtocolError("Server disconnected without sending a response."), "closed"),
        (httpx.RemoteProtocolError("peer closed connection without sending complete message body"), "closed"),
        (httpx.RemoteProtocolError("illegal status line"), "protocol"),
        (httpx.DecodingError("x"), "decoding"),
        (httpx.UnsupportedProtocol("x"), "protocol"),
        (httpx.InvalidURL("x"), "protocol"),
    ],
)
def test_each_foreign_exception_has_one_word(error: BaseException, word: str) -> None:
    known = translate(error)
    assert known is not None
    assert known.word == word
    assert known.message


def test_our_own_faults_pass_the_border_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), border():
        _ = 1 / 0
    assert translate(KeyError("x")) is None


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = httpx.ReadError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(TransportError), border():
        raise first
