"""Redaction: the secrets of a call are taken out of every word that leaves this floor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

MASK = "[redacted]"
# Local servers want a key and take any: "none", "EMPTY". Such a word is no secret, and taking it out of every
# sentence would make messages unreadable.
_SHORTEST = 8
_SECRET_PARAMETER = re.compile(r"key|token|secret|sig|auth|passw|credential", re.IGNORECASE)
_KEY_SHAPES = re.compile(
    r"(?i:\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"
    r"|\b(?:sk|pk|rk|gsk|xai|key)-[A-Za-z0-9_-]{12,}"
    r"|\bAIza[A-Za-z0-9_-]{20,}"
)


def secrets_of_url(url: str) -> tuple[str, ...]:
    """What is secret in an address: password, user (a token is often sent as one), and query values named like keys."""
    parts = urlsplit(url)
    found = [unquote(part) for part in (parts.username, parts.password) if part]
    found += [value for name, value in parse_qsl(parts.query) if _SECRET_PARAMETER.search(name)]
    return tuple(found)


class Redactor:
    """Takes given secrets, in plain and URL-quoted form, and anything shaped like a key out of texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret for secret in secrets if len(secret) >= _SHORTEST}
        forms = {form for secret in known for form in (secret, quote(secret, safe=""), quote_plus(secret))}
        # Longest first: a secret that holds another one must not leave its tail behind.
        self._forms = sorted(forms, key=len, reverse=True)

    def text(self, words: str) -> str:
        """The words without secrets."""
        for form in self._forms:
            words = words.replace(form, MASK)
        return _KEY_SHAPES.sub(MASK, words)
