"""Remarks: what is said of a file before its messages are looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remark:
    """One sentence about a file; `index` is the message (from 0) before which it stands."""

    code: str
    index: int
    message: str


class NotATranscript(Exception):  # noqa: N818 - it is what is told of a file
    """The file holds no transcript."""
