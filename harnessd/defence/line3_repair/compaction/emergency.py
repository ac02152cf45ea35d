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
_PARTS_SHOWN = 3


def compact(incident: Incident) -> Remedy | str:
    """One more smaller view, while tries are left and there is something to take out."""
    why_not = incident.no_compaction()
    if why_not:
        return why_not
    return Compact(incident.compactions + 1, incident.compactions_max)


def answer_was_too_long(message: str, size: int, window: int, most: int) -> bool:
    """The prompt fits, and only the answer that was asked for does not: `max_tokens` is lowered first."""
    return bool(_OUTPUT_COUNTS.search(message)) and size < 0.9 * window and size + most > 0.9 * window


def largest(parts: Sequence[tuple[str, int]], size: int) -> str:
    """The biggest parts of a request, in words."""
    ranked = sorted((part for part in parts if part[1] > 0), key=lambda part: -part[1])[:_PARTS_SHOWN]
    shown = [f"{name} {tokens:,} tokens ({100 * tokens // max(1, size)} %)" for name, tokens in ranked]
    return ", ".join(shown)
