"""Filling: the arguments of a probe or an undo, their places filled with what is known of the act."""

from __future__ import annotations

import re
from typing import Any

from harnessd.policy.calls.seen import argument
from harnessd.policy.conditions import Lookup

_PLACE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


def fill(value: Any, known: Lookup) -> Any:
    """The value with `{name}` in its texts replaced; `{{` and `}}` are braces.

    A text that is one place and nothing else becomes the thing itself, with its type; what is not known is an empty
    text.
    """
    match value:
        case str():
            alone = _PLACE.fullmatch(value)
            if alone is not None and alone.group(1):
                found = known(alone.group(1))
                return "" if found is None else found
            return _PLACE.sub(lambda found: _filled(found, known), value)
        case dict():
            return {key: fill(inner, known) for key, inner in value.items()}
        case list() | tuple():
            return [fill(inner, known) for inner in value]
        case _:
            return value


def known_of(*, key: str | None, arguments: Any, result: Any = None) -> Lookup:
    """What may be asked of an act: `key`, `arg.PATH`, `result.PATH`."""

    def look(name: str) -> Any:
        root, _, path = name.partition(".")
        if root == "key":
            return key
        if root == "arg" and path:
            return argument(arguments, path)
        if root == "result" and path:
            return argument(result, path)
        return None

    return look


def _filled(found: re.Match[str], known: Lookup) -> str:
    name = found.group(1)
    if name is None:
        return found.group()[0]
    value = known(name)
    return "" if value is None else str(value)
