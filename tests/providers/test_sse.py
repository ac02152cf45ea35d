"""Server-sent events: the same events however the bytes are cut, and nothing beyond the bounds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.net import TransportError
from harnessd.providers.sse import SseError, SseEvent, SseParser

STREAM = (
    b"\xef\xbb\xbf"
    b": a comment\r\n"
    b"event: error\r\n"
    b'data: {"t":"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"}\r\n'
    b"id: 7\n"
    b"\r\n"
    b": keep-alive\n\n"
    b"data\n\n"
    b"data:first\rdata: second\r\rdata:\xe2\x80\xa8x\n\n"
)
EVENTS = [
    SseEvent("error", '{"t":"é€😀"}'),
    SseEvent("", "first\nsecond"),
    SseEvent("", "\u2028x"),
]


def parsed(pieces: Iterable[bytes]) -> list[SseEvent]:
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + list(parser.finish())


def test_whole() -> None:
    # ecosystem.md 3.4: comments and empty data after an id give no event
    assert parsed([STREAM]) == EVENTS


def test_byte_by_byte() -> None:
    assert parsed(bytes([byte]) for byte in STREAM) == EVENTS


def test_every_cut_in_two() -> None:
    for cut in range(len(STREAM) + 1):
        assert parsed([STREAM[:cut], STREAM[cut:]]) == EVENTS, cut


def test_every_cut_in_three() -> None:
    # F27
    for one, two in combinations(range(len(STREAM) + 1), 2):
        assert parsed([STREAM[:one], STREAM[one:two], STREAM[two:]]) == EVENTS, (one, two)


@given(st.lists(st.tuples(st.sampled_from(["", "ping", "x"]), st.text(min_size=1).filter(str.strip))), st.data())
def test_what_is_written_is_read(events: list[tuple[str, str]], data: st.DataObject) -> None:
    lines = [(name, text.replace("\r", " ").replace("\n", " ")) for name, text in events]
    stream = "".join(f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n" for name, text in lines)
    raw = stream.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert parsed(pieces) == [SseEvent(name, text) for name, text in lines if text]


def test_a_forgotten_blank_line_at_the_end_loses_nothing() -> None:
    assert parsed([b"data: [DONE]"]) == [SseEvent("", "[DONE]")]
    assert parsed([b"data: [DONE]\n"]) == [SseEvent("", "[DONE]")]


def test_bare_errors_in_a_stream_are_events() -> None:
    assert parsed([b'{"error": {"message": "boom"}}\n\n']) == [SseEvent("", '{"error": {"message": "boom"}}')]
    assert parsed([b'error: {"code":500}\n\n']) == [SseEvent("error", '{"code":500}')]


@pytest.mark.parametrize("bad", [b"data: \xff\n\n", b"data: \xc3\n\n", b"data: \xed\xa0\x80\n\n"])
def test_bytes_that_are_no_text_are_an_error(bad: bytes) -> None:
    for cut in range(len(bad)):
        with pytest.raises(SseError):
            parsed([bad[:cut], bad[cut:]])


@pytest.mark.parametrize("endless", [b"data: " + b"x" * 100, b"data: xxxxxxxxx\n"])
def test_an_event_has_a_bound(endless: bytes) -> None:
    parser = SseParser(event_max=1000)

    def feed() -> None:
        for _ in range(200):
            list(parser.feed(endless))

    with pytest.raises(TransportError, match="larger than 1000"):
        feed()


def test_many_small_events_are_no_large_one() -> None:
    parser = SseParser(event_max=100)
    assert sum(1 for _ in range(1000) for _ in parser.feed(b"data: x\n\n")) == 1000
