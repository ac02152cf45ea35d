"""Tokens: roughly how many of them a JSON value is to a model, before any service has counted them; pure.

Bytes for each token by content kind, measured against a real vocabulary: four are right for prose alone. JSON, code
and scripts other than Latin come to 2.4; runs of hex and base64 to 1.7. Rather too many than too few. Images and
documents count by their size (`media`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harnessd.domain.tokens.media import media_tokens

PROSE_BYTES = 4.0
DENSE_BYTES = 2.4
ENCODED_BYTES = 1.7
# A text is like JSON where so much of it is punctuation and digits.
_DENSE_SHARE = 0.15
_RUN = re.compile(r"[A-Za-z0-9+/_=-]{40,}")
_DENSE = re.compile(r"[{}\[\]\"',:;<>()=\\/|`~@#$%^&*+0-9-]")


def estimate_tokens(value: Any) -> int:
    """Tokens of a text, or of all names and texts of a JSON value."""
    return round(_tokens(value))


def _tokens(value: Any) -> float:
    if isinstance(value, str):
        return _of_text(value)
    if isinstance(value, Mapping):
        carried = media_tokens(value)
        if carried is not None:
            return carried
        return sum((len(str(name)) + 4) / DENSE_BYTES + _tokens(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return sum(1 / DENSE_BYTES + _tokens(item) for item in value)
    return len(str(value)) / DENSE_BYTES


def _of_text(text: str) -> float:
    encoded = sum(len(run) for run in _RUN.findall(text) if _mixed(run))
    latin = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    wide = len(text.encode("utf-8", "replace")) - latin
    dense = len(_DENSE.findall(text)) > _DENSE_SHARE * len(text)
    plain = (latin - encoded) / (DENSE_BYTES if dense else PROSE_BYTES)
    return encoded / ENCODED_BYTES + wide / DENSE_BYTES + plain


def _mixed(run: str) -> bool:
    """Hex and base64 have digits among their letters; a ruler of dashes has neither."""
    return any(letter.isdigit() for letter in run) and any(letter.isalpha() for letter in run)
