"""Media: images and documents count by their size, not by their encoding (R4.2)."""

from __future__ import annotations

import base64
import struct

import pytest

from harnessd.domain.tokens import estimate_tokens


def png(width: int, height: int, more: int = 200_000) -> str:
    """The head of a PNG, and bytes behind it."""
    raw = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\0" * more
    return base64.b64encode(raw).decode()


def jpeg(width: int, height: int) -> str:
    """The head of a JPEG with a segment before its frame."""
    raw = b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + b"\0" * 14
    raw += b"\xff\xc0" + struct.pack(">HBHH", 17, 8, height, width) + b"\0" * 50_000
    return base64.b64encode(raw).decode()


def gif(width: int, height: int) -> str:
    return base64.b64encode(b"GIF89a" + struct.pack("<HH", width, height) + b"\0" * 9_000).decode()


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(750, 400)}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(750, 400)}"}},
        {"type": "input_image", "image_url": f"data:image/jpeg;base64,{jpeg(750, 400)}"},
        {"inlineData": {"mimeType": "image/gif", "data": gif(750, 400)}},
    ],
)
def test_an_image_counts_by_its_pixels_in_every_protocols_form(block: dict[str, object]) -> None:
    assert 400 <= estimate_tokens(block) <= 440


def test_a_large_image_is_shrunk_by_the_service() -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(8_000, 6_000)}}
    assert 1_600 <= estimate_tokens(block) <= 1_650


@pytest.mark.parametrize("data", ["", "not base64 at all!", base64.b64encode(b"\xff\xd8\xff").decode(), "iVBOR"])
def test_an_image_that_cannot_be_read_counts_as_a_large_one(data: str) -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    assert 1_600 <= estimate_tokens(block) <= 1_650


def test_a_document_counts_by_its_pages() -> None:
    pdf = base64.b64encode(b"%PDF-1.7" + b"\0" * 600_000).decode()
    block = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": pdf}}
    assert 20_000 <= estimate_tokens(block) <= 26_000


def test_words_named_like_an_image_are_words() -> None:
    assert estimate_tokens({"type": "text", "text": "image/png " * 1_000}) > 2_000


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("The quick brown fox jumps over the lazy dog. " * 100, 1_000, 1_300),
        ("敏捷的棕色狐狸跳过了懒狗。" * 100, 1_300, 1_800),
        ('{"a": [1, 2, {"b": null}], "c": "d"}' * 100, 1_300, 1_700),
        ("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" * 50, 1_700, 2_000),
        ("for (i = 0; i < n; i++) { sum += a[i] * b[i]; }\n" * 50, 900, 1_100),
    ],
)
def test_each_kind_of_content_has_a_measure_of_its_own(text: str, low: int, high: int) -> None:
    assert low <= estimate_tokens(text) <= high
