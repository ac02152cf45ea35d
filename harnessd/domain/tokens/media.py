"""Media: roughly how many tokens an image or a document is to a model, by its size and not by its encoding; pure."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Mapping
from typing import Any

# Services count an image by its pixels and shrink what is larger than about 1.15 megapixels.
_PIXELS_A_TOKEN = 750
_IMAGE_MAX = 1_600
_IMAGE_UNKNOWN = 1_600
# A page of a document is read as its text and as an image.
_PAGE = 2_250
_PAGE_BYTES = 60_000
_HEAD_CHARACTERS = 64 * 1024


def media_tokens(value: Mapping[str, Any]) -> int | None:
    """Tokens of a JSON object that carries an image or a document in any of the protocols' forms; None for others."""
    kind, data = _carried(value)
    if kind is None:
        return None
    if "pdf" in kind or kind in ("document", "file"):
        return _PAGE * max(1, math.ceil(len(data) * 3 / 4 / _PAGE_BYTES))
    return _of_image(data)


def _carried(value: Mapping[str, Any]) -> tuple[str | None, str]:
    """The media type, and its data in base64 where they are there."""
    data, kind = value.get("data"), value.get("media_type") or value.get("mime_type") or value.get("mimeType")
    if isinstance(data, str) and isinstance(kind, str) and not kind.startswith("text/"):
        return kind, data
    for name in ("image_url", "url", "file_data"):
        found = value.get(name)
        if isinstance(found, str) and found.startswith("data:"):
            head, _, data = found.partition(",")
            return head[5:].partition(";")[0] or "image", data
    source = value.get("type")
    if source in ("image", "input_image", "image_url") and not isinstance(value.get("source"), Mapping):
        return (None, "") if isinstance(value.get("image_url"), Mapping) else ("image", "")
    return None, ""


def _of_image(data: str) -> int:
    size = _pixels(data)
    if size is None:
        return _IMAGE_UNKNOWN
    return max(1, min(_IMAGE_MAX, math.ceil(size[0] * size[1] / _PIXELS_A_TOKEN)))


def _pixels(data: str) -> tuple[int, int] | None:
    """Width and height as the file's own head says; None for what is not read here."""
    head = data[: _HEAD_CHARACTERS - _HEAD_CHARACTERS % 4]
    try:
        raw = base64.b64decode(head + "=" * (-len(head) % 4))
    except (ValueError, binascii.Error):
        return None
    if raw[:8] == b"\x89PNG\r\n\x1a\n" and len(raw) >= 24:
        return struct.unpack(">II", raw[16:24])
    if raw[:6] in (b"GIF87a", b"GIF89a") and len(raw) >= 10:
        return struct.unpack("<HH", raw[6:10])
    return _jpeg(raw) if raw[:2] == b"\xff\xd8" else None


def _jpeg(raw: bytes) -> tuple[int, int] | None:
    place = 2
    while place + 9 < len(raw) and raw[place] == 0xFF:
        marker = raw[place + 1]
        # The frame headers SOF0 to SOF15 hold the size; DHT, JPG and DAC share their range.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", raw[place + 5 : place + 9])
            return width, height
        place += 2 + int(struct.unpack(">H", raw[place + 2 : place + 4])[0])
    return None
