"""Emergency: the service says the window overflowed, whatever our estimate said; a smaller view is sent (R4.3)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harnessd.defence.incident import Incident
from harnessd.domain.decision import Compact, Remedy

_OUTPUT_COUNTS = re.compile(
    r"max_tokens|max_new_tokens|max_completion_tokens|max_output_tokens|in the completion|output tokens?",
    re.IGNORECASE,
)
_FIGURES = re.compile(r"(?<![\w.-])\d[\d,_]{2,12}(?![\w.]*[a-z])")
_LIMITS = re.compile(r"(?:limit|maximum|context length|window|size|<=?|>=?|of)\D{0,25}?(\d[\d,_]{2,12})", re.IGNORECASE)
_LEAST_ANSWER = 256
_LEAST_WINDOW = 1_000
_PARTS_SHOWN = 3


def compact(incident: Incident) -> Remedy | str:
    """One more smaller view, while tries are left and there is something to take out."""
    why_not = incident.no_compaction()
    if why_not:
        return why_not
    return Compact(incident.compactions + 1, incident.compactions_max)


def shorter_answer(message: str, size: int, window: int, most: int) -> int | None:
    """How long an answer may be, where the prompt fits and only the answer asked for does not (OV08).

    By the service's own figures where it gave some ("9000 + 8000 > 16000"), else by our count of the prompt. None where
    the prompt itself is the cause.
    """
    if not most or not _OUTPUT_COUNTS.search(message):
        return None
    figures = _figures(message) - {most}
    rooms = [limit - sent for limit, sent in _fitting(message, window, most)]
    if not rooms and size < 0.9 * window < size + most and not any(sent >= window for sent in figures):
        rooms = [window - size]
    room = int(0.98 * min(rooms)) if rooms else 0
    return room if _LEAST_ANSWER <= room < most else None


def stated_window(message: str, window: int, most: int) -> int | None:
    """The window that the service says the model has, where that is smaller than the declared one."""
    figures = _figures(message)
    limits = {limit for limit, _ in _fitting(message, window, most)}
    limits = limits or {limit for limit in _limits(message) if figures and limit < max(figures)}
    smaller = [limit for limit in limits if _LEAST_WINDOW <= limit < window]
    return max(smaller) if smaller else None


def stated_size(message: str, window: int, most: int) -> int | None:
    """How large the service says the prompt is, where it is the prompt that does not fit this window."""
    figures = _figures(message)
    if _fitting(message, window, most) or not any(0.9 * window <= limit <= window for limit in _limits(message)):
        return None
    return max(figures) if max(figures) > window else None


def _fitting(message: str, window: int, most: int) -> list[tuple[int, int]]:
    """Pairs of limit and prompt where the prompt would fit without the answer."""
    sizes = _figures(message) - {most}
    return [(limit, sent) for limit in _limits(message) | {window} for sent in sizes if sent < limit < sent + most]


def _figures(message: str) -> set[int]:
    return {_figure(text) for text in _FIGURES.findall(message)}


def _limits(message: str) -> set[int]:
    return {_figure(text) for text in _LIMITS.findall(message)}


def _figure(text: str) -> int:
    return int(re.sub(r"\D", "", text))


def largest(parts: Sequence[tuple[str, int]], size: int) -> str:
    """The biggest parts of a request, in words."""
    ranked = sorted((part for part in parts if part[1] > 0), key=lambda part: -part[1])[:_PARTS_SHOWN]
    shown = [f"{name} {tokens:,} tokens ({100 * tokens // max(1, size)} %)" for name, tokens in ranked]
    return ", ".join(shown)
