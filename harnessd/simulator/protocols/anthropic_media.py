"""Anthropic Messages, pictures and papers: their size in bytes, pixels and pages."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harnessd.simulator.protocols.wire import refuse

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
BASE64_MAX = 5 * 1024 * 1024
MANY_IMAGES = 20
MANY_IMAGES_SIDE_MAX = 2000
SIDE_MAX = 8000
PAGES_MAX = 100
PAGE = re.compile(rb"/Type\s*/Page\b")

Block = Mapping[str, Any]


def check_media(messages: Sequence[tuple[str, Sequence[Block]]]) -> None:
    """Every picture and paper of a request. With many pictures each must be smaller."""
    found = list(media_of(messages))
    images = [(where, block) for where, block in found if block["type"] == "image"]
    side_max = MANY_IMAGES_SIDE_MAX if len(images) > MANY_IMAGES else SIDE_MAX
    for where, block in images:
        check_image(f"{where}.image.source.base64", block, side_max)
    for where, block in found:
        if block["type"] == "document" and source_of(block).get("type") == "base64":
            pages = len(PAGE.findall(decoded(f"{where}.document.source.base64", source_of(block))))
            if pages > PAGES_MAX:
                raise refuse(f"{where}.document.source.base64: A maximum of {PAGES_MAX} PDF pages may be provided.")


def media_of(messages: Sequence[tuple[str, Sequence[Block]]]) -> Iterator[tuple[str, Block]]:
    """Pictures and papers with their places, also those inside tool results."""
    for n, (_, blocks) in enumerate(messages):
        for k, block in enumerate(blocks):
            where = f"messages.{n}.content.{k}"
            content = block.get("content") if block["type"] == "tool_result" else None
            inner = content if isinstance(content, list) else []
            nested = [(f"{where}.tool_result.content.{i}", found) for i, found in enumerate(inner)]
            for place, found in [(where, block), *nested]:
                if found.get("type") in ("image", "document"):
                    yield place, found


def source_of(block: Block) -> Mapping[str, Any]:
    """Where the bytes are."""
    source = block.get("source")
    return source if isinstance(source, Mapping) else {}


def check_image(where: str, block: Block, side_max: int) -> None:
    """One picture by its base64."""
    source = source_of(block)
    if source.get("type") != "base64":
        return
    if source.get("media_type") not in IMAGE_TYPES:
        words = ", ".join(f"'{name}'" for name in IMAGE_TYPES)
        raise refuse(f"{where}.media_type: Input should be {words}")
    size = len(str(source.get("data", "")))
    if size > BASE64_MAX:
        raise refuse(f"{where}: image exceeds 5 MB maximum: {size} bytes > {BASE64_MAX} bytes")
    if max(png_sides(decoded(where, source))) > side_max:
        many = " for many-image requests" if side_max == MANY_IMAGES_SIDE_MAX else ""
        raise refuse(
            f"{where}.data: At least one of the image dimensions exceed max allowed size{many}: {side_max} pixels"
        )


def decoded(where: str, source: Mapping[str, Any]) -> bytes:
    """The bytes behind base64."""
    try:
        data = base64.b64decode(str(source.get("data", "")), validate=True)
    except binascii.Error as error:
        raise refuse(f"{where}.data: Invalid base64 data") from error
    if not data:
        raise refuse(f"{where}.data: Could not process image")
    return data


def png_sides(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG by its header; other kinds are not measured here."""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        return (0, 0)
    width, height = struct.unpack(">II", data[16:24])
    return width, height
