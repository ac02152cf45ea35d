"""The wire's small change: JSON as both protocols need it, tool arguments, ids, numbers of usage."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

_DEEPEST = 100
_SURROGATE = re.compile("[\ud800-\udfff]")


def dump(value: Any) -> bytes:
    """JSON bytes that depend on the value alone, not on the order in which a store gave its keys back.

    The prompt cache of a service compares prefixes: an untouched message must leave byte-identical after a restart
    too, and stored payloads come back with sorted keys.
    """
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return whole_text(text).encode()


def load(text: str) -> Any:
    """Strict JSON. Raises ValueError for anything else, also for NaN and for depths no honest sender reaches.

    What could be read at the edge of Python's stack could not be written again from a deeper one.
    """
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    if text.count("{") + text.count("[") > _DEEPEST and _deeper_than(value, _DEEPEST):
        raise ValueError("JSON nested too deeply")
    return value


def load_first(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and where it ends; words may follow. Raises ValueError."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    if _deeper_than(value, _DEEPEST):
        raise ValueError("JSON nested too deeply")
    return value, end


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [part for item in level for part in _parts(item)]
    return bool(level)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


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


def whole_json(value: Any) -> Any:
    """A JSON value whose texts and names are whole text: an escape can bring half a character into any of them."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, dict):
        return {whole_text(name): whole_json(item) for name, item in value.items()}
    return [whole_json(item) for item in value] if isinstance(value, list) else value


def arguments_of(raw: str) -> Mapping[str, Any] | None:
    """A tool call's arguments, or None when what the model wrote is not a JSON object. No words mean no arguments."""
    if not raw.strip():
        return {}
    try:
        value = load(whole_text(raw))
    except ValueError:
        return None
    return whole_json(value) if isinstance(value, dict) else None


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


def label(value: Any) -> str:
    """A short name that a service gave: an id, a model; empty where it gave none."""
    return whole_text(words(value)[:200])


def words(value: Any) -> str:
    """The value if it is text, else empty text."""
    return value if isinstance(value, str) else ""
