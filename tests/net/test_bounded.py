"""Bounded decoding: whole bodies come through, bombs and torn bodies do not."""

from __future__ import annotations

import gzip
import zlib

import pytest

from harnessd.net import TransportError
from harnessd.net.bounded import BoundedDecoder

BODY = b'{"words": "' + bytes(range(32, 127)) * 3000 + b'"}'


def decoded(encoding: str, data: bytes, step: int, limit: int = 10_000_000) -> bytes:
    decoder = BoundedDecoder(encoding, limit)
    pieces = [piece for at in range(0, len(data), step) for piece in decoder.feed(data[at : at + step])]
    decoder.finish()
    return b"".join(pieces)


def raw_deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return engine.compress(data) + engine.flush()


@pytest.mark.parametrize("step", [2, 7, 4096, 10_000_000])
@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("", BODY),
        ("identity", BODY),
        ("gzip", gzip.compress(BODY)),
        ("x-gzip", gzip.compress(BODY[:1000]) + gzip.compress(BODY[1000:])),
        ("deflate", zlib.compress(BODY)),
        ("Deflate", raw_deflate(BODY)),
    ],
)
def test_each_encoding_gives_the_body_however_it_is_cut(encoding: str, data: bytes, step: int) -> None:
    assert decoded(encoding, data, step) == BODY


def test_a_bomb_stops_at_the_limit_and_in_small_pieces() -> None:
    # security/gzip-bomb-response
    # finding 9 of reliability-security.md
    bomb = gzip.compress(bytes(100 * 1024 * 1024))
    assert len(bomb) < 150_000
    decoder = BoundedDecoder("gzip", 1_000_000)
    taken: list[int] = []
    with pytest.raises(TransportError) as caught:
        taken.extend(len(piece) for piece in decoder.feed(bomb))
    assert caught.value.word == "too_large"
    assert sum(taken) <= 1_000_000
    assert max(taken) <= 64 * 1024


def test_exactly_the_limit_is_allowed() -> None:
    assert decoded("identity", b"x" * 100, 30, limit=100) == b"x" * 100
    with pytest.raises(TransportError):
        decoded("identity", b"x" * 101, 30, limit=100)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("br", b"anything"),
        ("gzip, gzip", b"anything"),
        ("gzip", b"this is not gzip at all"),
        ("gzip", gzip.compress(BODY)[:-9]),
        ("deflate", b"\xff\xff\xff\xff not deflate"),
    ],
)
def test_what_cannot_be_decoded_is_said(encoding: str, data: bytes) -> None:
    with pytest.raises(TransportError) as caught:
        decoded(encoding, data, 1000)
    assert caught.value.word == "decoding"
