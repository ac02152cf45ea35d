"""The wire's small change: JSON as both protocols need it, tool arguments, ids, numbers of usage."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

_SURROGATE = re.compile("[\ud800-\udfff]")


def dump(value: Any) -> bytes:
    """JSON bytes that depend on the value alone, not on the order in which a store gave its keys back.

    The prompt cache of a service compares prefixes: an untouched message must leave byte-identical after a restart
    too, and stored payloads come back with sorted keys.
    """
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return whole_text(text).encode()


def load(text: str) -> Any:
    """Strict JSON. Raises ValueError for anything else, also for NaN and for depths no honest sender reaches."""
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    """A number that JSON can carry back: `1e999` is legal to read and would be `Infinity` to write."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is beyond all numbers")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def whole_text(text: str) -> str:
    r"""Text without lone surrogates.

    JSON can carry half a character (`\ud83d`), and a character cut between two events comes as two halves: halves
    that meet are joined, others become U+FFFD, since UTF-8 cannot carry them and every service refuses them.
    """
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def arguments_of(raw: str) -> Mapping[str, Any] | None:
    """A tool call's arguments, or None when what the model wrote is not a JSON object. No words mean no arguments."""
    if not raw.strip():
        return {}
    try:
        value = load(whole_text(raw))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def sendable(arguments: Mapping[str, Any] | None, raw: str | None) -> Mapping[str, Any]:
    """Arguments in the form services accept back: an object, also where the model wrote none.

    Unreadable arguments sent back as they came are refused with the whole history, for ever; the model's own words
    inside an object show it what it did.
    """
    return arguments if arguments is not None else {"invalid_json": raw or ""}


def fitting_id(id_: str, shape: re.Pattern[str], length: int) -> str:
    """The id itself where the protocol takes it, else one made from it: the same for a call and for its result."""
    if shape.fullmatch(id_):
        return id_
    return hashlib.sha256(id_.encode("utf-8", "replace")).hexdigest()[:length]


def distinct_id(id_: str, taken: set[str], fallback: str) -> str:
    """An id that no other call of the reply has; `fallback` where the service sent none. Adds it to `taken`."""
    base = whole_text(id_) or fallback
    chosen, number = base, 2
    while chosen in taken:
        chosen, number = f"{base}_{number}", number + 1
    taken.add(chosen)
    return chosen


def count(value: Any) -> int | None:
    """A count of tokens, or None where the field is absent, null or nonsense."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return None
    return int(value)


def part(value: Any, *path: str | int) -> Any:
    """What stands at a path of a JSON value, or None: services leave out, and null, what they like."""
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def words(value: Any) -> str:
    """The value if it is text, else empty text."""
    return value if isinstance(value, str) else ""
