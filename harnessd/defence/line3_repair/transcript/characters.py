"""Characters that services refuse: NUL, and halves of surrogate pairs that no UTF-8 can carry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harnessd.defence.line3_repair.transcript.turns import Notes
from harnessd.domain.effect import well_formed

_BAD = re.compile("[\x00\ud800-\udfff]")
_THOUGHTS = ("thinking", "redacted_thinking")
_DEEPEST = 60


def cleaned(messages: list[Any], notes: Notes) -> list[Any]:
    """The messages without such characters; a message that has none stays the same object."""
    found = []
    for place, message in enumerate(messages):
        if not _dirty(message, 0):
            found.append(message)
            continue
        notes.add("bad_characters", place, "NUL bytes, half characters or contents nested too deeply are taken out")
        found.append(_unsealed(_clean(message, 0)) if _sealed_dirty(message) else _clean(message, 0))
    return found


def _sealed_dirty(message: Any) -> bool:
    return isinstance(message, Mapping) and _dirty(message.get("encrypted_content"), 0)


def _unsealed(message: dict[str, Any]) -> dict[str, Any]:
    """A sealed thought that was edited is none any more."""
    return message | {"encrypted_content": None}


def _dirty(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return not value.isascii() and _BAD.search(value) is not None if "\x00" not in value else True
    if depth > _DEEPEST:
        return isinstance(value, (dict, list))
    if isinstance(value, dict):
        return any(_dirty(one, depth + 1) or (isinstance(name, str) and _dirty(name, 0)) for name, one in value.items())
    return isinstance(value, list) and any(_dirty(one, depth + 1) for one in value)


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return well_formed(value).replace("\x00", "")
    if depth > _DEEPEST and isinstance(value, (dict, list)):
        return "(nested too deeply)"
    if isinstance(value, dict):
        return {
            _clean(name, 0) if isinstance(name, str) else name: _clean(one, depth + 1) for name, one in value.items()
        }
    if isinstance(value, list):
        # A signed thought may be left out, never edited.
        return [_clean(one, depth + 1) for one in value if not (_signed(one) and _dirty(one, depth))]
    return value


def _signed(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") in _THOUGHTS
