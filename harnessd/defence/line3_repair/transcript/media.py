"""Media: how large, how many and how long pictures and papers may be; what is too much becomes a note.

The figures are those of Anthropic's Messages API: 5 MiB of base64 a picture, 8,000 pixels a side, 2,000 with more than
20 pictures in one request, 100 pictures, 100 pages of a paper.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from harnessd.defence.line3_repair.transcript.receiver import Receiver
from harnessd.defence.line3_repair.transcript.turns import Kind, Media, Notes, Part, Turn, mended, with_parts

TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
BASE64_MAX = 5 * 1024 * 1024
SIDE_MAX = 8000
MANY, MANY_SIDE_MAX = 20, 2000
IMAGES_MAX = 100
PAGES_MAX = 100
_PAGE = re.compile(rb"/Type\s*/Page\b")
# Where the bytes were taken out of a transcript, a stand-in says what they were: `@png:1200x800`, `@pdf:130`.
_STAND_IN = re.compile(r"@(?:png|jpeg|gif|webp):(\d+)x(\d+)|@pdf:(\d+)")


@dataclass(frozen=True, slots=True)
class Size:
    """What can be told of a picture or paper; 0 = unknown. `broken`: the bytes are no base64."""

    side: int = 0
    pages: int = 0
    broken: bool = False


def fitted(turns: list[Turn], receiver: Receiver, notes: Notes) -> list[Turn]:
    """The turns with every picture and paper within the limits, or a note in its place."""
    if receiver.protocol != "anthropic" or not any(_media_in(turn) for turn in turns):
        return turns
    return _together([_each(turn, partial(_alone, turn, notes)) for turn in turns], notes)


def _media_in(turn: Turn) -> bool:
    return any(part.kind is Kind.MEDIA or part.inner for part in turn.parts)


def _each(turn: Turn, change: Callable[[Part], Part]) -> Turn:
    """The turn with `change` done to each of its pictures and papers, those inside results too."""
    parts = []
    for part in turn.parts:
        if part.kind is Kind.MEDIA:
            parts.append(change(part))
        elif part.inner is not None and any(one.kind is Kind.MEDIA for one in part.inner):
            inner = tuple(change(one) if one.kind is Kind.MEDIA else one for one in part.inner)
            same = all(a is b for a, b in zip(inner, part.inner, strict=True))
            parts.append(part if same else mended(part, inner=inner))
        else:
            parts.append(part)
    return with_parts(turn, tuple(parts))


def _alone(turn: Turn, notes: Notes, part: Part) -> Part:
    """One picture or paper by itself."""
    media = part.media
    if media is None or media.url or _elsewhere(part):
        return part
    size = size_of(media)
    why = _too_much(media, size)
    if not why:
        return part
    notes.add("media_too_large" if not size.broken else "media_unreadable", turn, f"{why}: a note stands in its place")
    return _note(media, why)


def _elsewhere(part: Part) -> bool:
    """What it holds is no base64: words, or a name that the service knows it by."""
    source = part.wire.get("source") if isinstance(part.wire, Mapping) else None
    return isinstance(source, Mapping) and source.get("type") in ("text", "content", "file", "url")


def _too_much(media: Media, size: Size) -> str:
    what = "a picture" if media.sort == "image" else "a document"
    if not media.data or size.broken:
        return f"{what} that cannot be read"
    if media.sort == "image":
        if media.media_type not in TYPES:
            return f"{what} of type {media.media_type[:40] or 'unknown'}, which the service does not take"
        if len(media.data) > BASE64_MAX:
            return f"{what} of {len(media.data)} bytes of base64, more than {BASE64_MAX}"
        return f"{what} of {size.side} pixels a side, more than {SIDE_MAX}" if size.side > SIDE_MAX else ""
    return f"{what} of {size.pages} pages, more than {PAGES_MAX}" if size.pages > PAGES_MAX else ""


def _note(media: Media, why: str) -> Part:
    where = f" ({media.media_type})" if media.media_type else ""
    return Part(Kind.TEXT, text=f"[Left out here{where}: {why}.]", touched=True)


def _together(turns: list[Turn], notes: Notes) -> list[Turn]:
    """With many pictures each must be smaller: the oldest large ones give way until the rest may stay."""
    sides = [size_of(part.media).side for part in _images(turns)]
    surplus = len(sides) - MANY
    if surplus <= 0:
        return turns
    gone: set[int] = set()
    for number, side in enumerate(sides):
        if side > MANY_SIDE_MAX and len(gone) < surplus:
            gone.add(number)
    # Once few enough are left, the larger limit holds again; the oldest of far too many go whatever their size.
    spare = [number for number in range(len(sides)) if number not in gone]
    gone.update(spare[: max(0, len(spare) - IMAGES_MAX)])
    if not gone:
        return turns
    return _without(turns, gone, len(sides), notes)


def _images(turns: list[Turn]) -> list[Part]:
    found = []
    for turn in turns:
        for part in turn.parts:
            inner = part.inner or ()
            found += [one for one in (part, *inner) if one.kind is Kind.MEDIA and _is_image(one)]
    return found


def _is_image(part: Part) -> bool:
    return part.media is not None and part.media.sort == "image"


def _without(turns: list[Turn], gone: set[int], count: int, notes: Notes) -> list[Turn]:
    number = -1

    def change(turn: Turn, part: Part) -> Part:
        nonlocal number
        if part.media is None or not _is_image(part):
            return part
        number += 1
        if number not in gone:
            return part
        notes.add("too_many_images", turn, f"{count} pictures in one request are too many for one of this size")
        return _note(part.media, f"a picture, one of {count}")

    return [_each(turn, partial(change, turn)) for turn in turns]


def size_of(media: Media | None) -> Size:
    """Pixels or pages, where the bytes tell."""
    if media is None or not media.data:
        return Size()
    stand_in = _STAND_IN.fullmatch(media.data)
    if stand_in is not None:
        width, height, pages = (int(one or 0) for one in stand_in.groups())
        return Size(side=max(width, height), pages=pages)
    try:
        head = base64.b64decode(media.data if media.sort == "document" else media.data[:64], validate=True)
        if media.sort == "image":
            _checked(media.data)
    except (binascii.Error, ValueError):
        return Size(broken=True)
    if media.sort == "document":
        return Size(pages=len(_PAGE.findall(head)))
    return Size(side=_png_side(head))


def _checked(data: str) -> None:
    """Raises ValueError for what no decoder of base64 takes."""
    if len(data) % 4 or re.fullmatch(r"[A-Za-z0-9+/]*={0,2}", data) is None:
        raise ValueError("no base64")


def _png_side(data: bytes) -> int:
    """The longer side of a PNG by its header; other kinds are not measured."""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        return 0
    width, height = struct.unpack(">II", data[16:24])
    return int(max(width, height))
