"""Answers: what a tool says back: failures a model can act on, and long output cut to head and tail."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harnessd.domain.failure import ErrorClass, Failure

MESSAGE_MAX = 2000
CUT_NOTE = 64  # bytes of the line that stands for what was left out
NOTES_ROOM = 1024  # bytes of `output_max` kept for our own words around a command's output


def failed(tool: str, hint: ErrorClass, message: str, advice: str, **facts: Any) -> Failure:
    """A tool's failure, born classified. `facts`: further fields of `Failure` (exit_code, output, effect_begun)."""
    return Failure("tool", f"tool/{tool}", message[:MESSAGE_MAX], hint=hint, advice=advice, **facts)


def well_formed(text: str) -> str:
    """The text as any store and any wire can carry it: a lone surrogate and NUL become U+FFFD, a pair one character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", "\ufffd")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Head and tail of a file. `size` is the whole in bytes; `left_out` what is not shown."""

    text: str
    size: int
    left_out: int


def excerpt(path: Path, room: int, offset: int = 0) -> Excerpt:
    """Head and tail of what a file holds from `offset` on, at most `room` bytes of UTF-8; never all of it in memory.

    Raises OSError.
    """
    room = max(room, 64)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = min(offset, size)
        file.seek(offset)
        if size - offset <= room:
            text = well_formed(file.read(room).decode("utf-8", "replace"))
            if len(text.encode()) <= room:
                return Excerpt(text, size, 0)
            file.seek(offset)
        # A byte that is not UTF-8 grows to the three bytes of U+FFFD: read, then cut again by what it became.
        head = _cut_head(well_formed(file.read(room // 2).decode("utf-8", "replace")), room // 2)
        file.seek(max(size - room // 2, offset))
        tail = _cut_tail(well_formed(file.read(room // 2).decode("utf-8", "replace")), room // 2)
    left_out = max(size - offset - len(head.encode()) - len(tail.encode()), 0)
    return Excerpt(f"{head}\n[... {left_out:,} bytes left out ...]\n{tail}", size, left_out)


def clip(text: str, room: int) -> str:
    """Head and tail of a text, at most `room` bytes of UTF-8 with the line that says so."""
    whole = len(text.encode())
    if whole <= room:
        return text
    room = max(room - CUT_NOTE, 2)
    head, tail = _cut_head(text[:room], room // 2), _cut_tail(text[-room:], room // 2)
    left_out = whole - len(head.encode()) - len(tail.encode())
    return f"{head}\n[... {left_out:,} bytes left out ...]\n{tail}"


def _cut_head(text: str, room: int) -> str:
    return text.encode()[:room].decode("utf-8", "ignore").rstrip("\ufffd")


def _cut_tail(text: str, room: int) -> str:
    encoded = text.encode()
    return encoded[max(len(encoded) - room, 0) :].decode("utf-8", "ignore").lstrip("\ufffd")
