"""Redaction by value: a secret that was read is struck out of every text before it reaches a sink."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

# Shorter values, and words without a digit, would strike out ordinary text: local services take any key ("ollama").
_SHORTEST = 8
_WORD = 16
_PIECE = 1 << 20
_FILES_KNOWN = 256
_STRUCK = "[secret]"


class Redactor:
    """Knows the secrets of this process; told of each one when it is read."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Start with these values."""
        self._files: dict[Path, tuple[tuple[int, int], int]] = {}  # looked at up to here, as this file with these forms
        self._forms: dict[str, None] = {}  # longest first: one that holds another must not leave its tail behind
        for secret in secrets:
            self.learn(secret)

    def learn(self, secret: str | None) -> str | None:
        """Remember a value and give it back, so that reading and learning are one step."""
        if secret and secret not in self._forms and _tells(secret):
            self._forms = dict.fromkeys(sorted((*self._forms, *_forms(secret)), key=len, reverse=True))
        return secret

    def text(self, text: str) -> str:
        """The text without any known secret."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, _STRUCK)
        return text

    def file(self, path: Path) -> None:
        """Strike known secrets out of a file, in place: what stands behind them keeps its offset.

        Somebody may be appending to it. What was looked at before is not read again, but for a secret's length: one
        may have come in two pieces. A file that cannot be written is left; reads are redacted too. Blocks on the disk.
        """
        forms = [form.encode("utf-8", "surrogatepass") for form in self._forms]
        if not forms:
            return
        with contextlib.suppress(OSError), path.open("r+b", buffering=0) as file:
            facts = os.fstat(file.fileno())
            known = (facts.st_ino, len(forms))
            seen = self._files.get(path, (known, 0))
            at = seen[1] if seen[0] == known and seen[1] <= facts.st_size else 0
            self._files[path] = (known, _strike(file.fileno(), forms, at))
            while len(self._files) > _FILES_KNOWN:
                self._files.pop(next(iter(self._files)), None)

    def value(self, value: Any) -> Any:
        """The same for JSON values, keys left alone."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.value(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(inner) for inner in value]
        return value


def _strike(file: int, forms: Sequence[bytes], at: int) -> int:
    """Overwrite every form from an offset on; gives the offset up to which nothing can be part of one any more."""
    overlap = max(map(len, forms)) - 1
    while piece := os.pread(file, _PIECE, at):
        for form in forms:
            found = piece.find(form)
            while found >= 0:
                struck = _STRUCK.encode().ljust(len(form), b"*")[: len(form)]
                os.pwrite(file, struck, at + found)
                piece = piece[:found] + struck + piece[found + len(form) :]
                found = piece.find(form, found)
        if len(piece) < _PIECE:
            return max(at, at + len(piece) - overlap)
        at += len(piece) - overlap
    return at


def _tells(secret: str) -> bool:
    return len(secret) >= _SHORTEST and (len(secret) >= _WORD or any(letter.isdigit() for letter in secret))


def _forms(secret: str) -> Iterator[str]:
    """The secret as it is, quoted for a URL, and inside a longer text that was encoded in base 64."""
    yield from (secret, quote(secret), quote(secret, safe=""), quote_plus(secret))
    raw = secret.encode("utf-8", "surrogatepass")
    for shift in range(3):
        # Three bytes become four letters: where the secret begins in its group decides how it looks. Letters at the
        # edges also hold bits of their neighbours and are left out.
        first, last = -(-shift * 8 // 6), (shift + len(raw)) * 8 // 6
        if last - first >= _SHORTEST:
            padded = bytes(shift) + raw
            yield base64.b64encode(padded).decode()[first:last]
            yield base64.urlsafe_b64encode(padded).decode()[first:last]
