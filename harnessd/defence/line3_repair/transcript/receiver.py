"""Receivers: what each protocol and each stricter service takes, as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Protocol = Literal["anthropic", "openai-chat", "openai-responses"]
PROTOCOLS: tuple[Protocol, ...] = ("anthropic", "openai-chat", "openai-responses")
TARGETS = ("strict-alternation", "strict-adjacency", "mistral", "deepseek-thinking")


@dataclass(frozen=True, slots=True)
class Receiver:
    """Who a view is for.

    Attributes:
        id_shape, id_length: the names of calls that it takes, and how long one of ours may be.
        name_shape, name_length: the names of tools.
        user_first, user_last: whose message stands first and last. `user_last` lets tool messages pass as well.
        alternates: user and assistant in turn, one system message at the start.
        adjacent: a result stands right behind its call, with nothing between.
        keeps_thoughts: `reasoning_content` is demanded beside calls.
        stored: the service keeps thoughts itself, so that they need not be sealed.
        thoughtless: no thoughts are sent at all. plain: nothing but roles, words, calls and results is.
    """

    protocol: Protocol
    id_shape: re.Pattern[str]
    id_length: int
    name_shape: re.Pattern[str]
    name_length: int
    user_first: bool = False
    user_last: bool = True
    alternates: bool = False
    adjacent: bool = False
    keeps_thoughts: bool = False
    stored: bool = False
    thoughtless: bool = False
    plain: bool = False


_PLAIN: Mapping[str, Receiver] = {
    "anthropic": Receiver(
        "anthropic",
        id_shape=re.compile(r"[a-zA-Z0-9_-]{1,128}"),
        id_length=32,
        name_shape=re.compile(r"[a-zA-Z0-9_-]{1,128}"),
        name_length=128,
        user_first=True,
    ),
    "openai-chat": Receiver(
        "openai-chat",
        id_shape=re.compile(r".{1,40}", re.DOTALL),
        id_length=40,
        name_shape=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
        name_length=64,
    ),
    "openai-responses": Receiver(
        "openai-responses",
        id_shape=re.compile(r".{1,64}", re.DOTALL),
        id_length=40,
        name_shape=re.compile(r"[a-zA-Z0-9_-]{1,128}"),
        name_length=128,
        user_last=False,
    ),
}
_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")


def receiver(protocol: str, targets: tuple[str, ...] = (), *, stored: bool = False) -> Receiver:
    """The receiver of a protocol with the rules of stricter services on top. Raises KeyError for an unknown name."""
    found = replace(_PLAIN[protocol], stored=stored)
    for target in targets:
        match target:
            case "strict-alternation":
                found = replace(found, alternates=True, user_first=True, user_last=True)
            case "strict-adjacency":
                found = replace(found, adjacent=True)
            case "mistral":
                found = replace(found, id_shape=_MISTRAL_ID, id_length=9)
            case "deepseek-thinking":
                found = replace(found, keeps_thoughts=True)
            case "no-thoughts":
                found = replace(found, thoughtless=True)
            case "plain":
                found = replace(found, thoughtless=True, plain=True)
            case _:
                raise KeyError(target)
    return found
