"""Stricter views: a service refused the request as invalid; which rules its words point at, then all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

# Rules beyond the protocol's own, with the words of services that want them.
_WORDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "anthropic": (
        ("no-thoughts", r"thinking|signature|redacted"),
        ("strict-alternation", r"alternat|consecutive|roles? must|same role"),
        ("plain", r"extra inputs|not permitted|unknown|unexpected (?:field|key|value)|citations|cache_control"),
    ),
    "openai-chat": (
        ("mistral", r"tool call id|tool_call_id.{0,40}(?:length|must be)|a-z, A-Z, 0-9|length of 9"),
        ("deepseek-thinking", r"reasoning_content"),
        (
            "strict-alternation",
            r"alternat|jinja|template|after role|system message must|consecutive|expected last role",
        ),
        (
            "plain",
            r"unknown (?:parameter|field)|extra (?:inputs|fields)|unrecognized|additional properties|refusal|audio",
        ),
    ),
    "openai-responses": (
        ("strict-adjacency", r"no tool output found|tool output|function_call_output|immediately|adjacent"),
        ("no-thoughts", r"reasoning|encrypted|rs_"),
        ("strict-alternation", r"alternat|consecutive"),
        ("plain", r"unknown (?:parameter|field)|extra (?:inputs|fields)|item.{0,40}not found|invalid.{0,20}\bid\b"),
    ),
}


def rules_to_try(protocol: str, message: str, used: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Sets of stricter rules, each with those in use: the ones that the words point at, then all the protocol has."""
    known = _WORDS.get(protocol, ())
    pointed = tuple(name for name, words in known if re.search(words, message, re.IGNORECASE))
    for more in (pointed, tuple(name for name, _ in known)):
        rules = (*used, *(name for name in more if name not in used))
        if rules != used:
            yield rules
