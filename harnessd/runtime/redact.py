"""Redaction by value: a secret that was read is struck out of every text before it reaches a sink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Shorter values would strike out ordinary words.
_SHORTEST = 6
_STRUCK = "[secret]"


class Redactor:
    """Knows the secrets of this process; told of each one when it is read."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Start with these values."""
        self._secrets: set[str] = set()
        for secret in secrets:
            self.learn(secret)

    def learn(self, secret: str | None) -> str | None:
        """Remember a value and give it back, so that reading and learning are one step."""
        if secret and len(secret) >= _SHORTEST:
            self._secrets.add(secret)
        return secret

    def text(self, text: str) -> str:
        """The text without any known secret."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, _STRUCK)
        return text

    def value(self, value: Any) -> Any:
        """The same for JSON values, keys left alone."""
        if not self._secrets:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.value(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(inner) for inner in value]
        return value
