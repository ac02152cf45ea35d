"""Clip: a text cut to a number of tokens, head and tail kept, with a word on what is missing and where the whole is."""

from __future__ import annotations

from collections.abc import Callable

Measure = Callable[[str], int]  # tokens of a text

_TRIES = 6


def clip(text: str, tokens: int, measure: Measure, kept_as: str = "") -> str:
    """The text, or its head and tail where it is longer than `tokens`. Never longer than asked, but for a few words."""
    size = measure(text)
    if size <= tokens:
        return text
    where = f"; the whole is kept as {kept_as}" if kept_as else ""
    room = max(1, int(len(text) * tokens / size))
    for _ in range(_TRIES):
        head, tail = room * 2 // 3, room // 3
        cut = len(text) - head - tail
        shown = f"{text[:head]}\n[... {cut:,} characters left out{where} ...]\n{text[len(text) - tail :]}"
        if measure(shown) <= tokens or room <= 1:
            return shown
        room = room * 3 // 4
    return f"[{len(text):,} characters left out{where}]"
