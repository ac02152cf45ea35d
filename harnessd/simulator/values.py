"""Values in scripts: durations, sizes, counts, and the error that names where one is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SIZE = re.compile(r"(\d+)(B|KiB|MiB)")
SIZE_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024 * 1024}


class ScriptError(ValueError):
    """A script cannot be played."""


def one_of_keys(raw: Any, known: Sequence[str], where: str) -> None:
    """Every key is a known one; a near miss is named."""
    if not isinstance(raw, Mapping):
        raise ScriptError(f"{where}: a map is wanted here")
    for key in raw:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ScriptError(f"{where}.{key}: unknown key; {hint}")


def seconds_of(value: Any, where: str) -> float:
    """Seconds of `500ms`, `2s`, `1m`, or a bare number of seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    found = DURATION.fullmatch(str(value))
    if not found:
        raise ScriptError(f"{where}: {value!r} is no duration; write 500ms, 2s or 1m")
    return float(found[1]) * DURATION_UNITS[found[2]]


def bytes_of(value: Any, where: str) -> int:
    """Bytes of `900B`, `64KiB`, `1MiB`."""
    found = SIZE.fullmatch(str(value))
    if not found:
        raise ScriptError(f"{where}: {value!r} is no size; write 900B, 64KiB or 1MiB")
    return int(found[1]) * SIZE_UNITS[found[2]]


def count_of(value: Any, where: str) -> int:
    """A count, 0 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ScriptError(f"{where}: {value!r} is no count")
    return value


def fits(value: int, wanted: Any, where: str) -> bool:
    """Whether a number is the wanted one, one of a list, or within `{min, max}`."""
    if isinstance(wanted, Mapping):
        one_of_keys(wanted, ("min", "max"), where)
        return int(wanted.get("min", value)) <= value <= int(wanted.get("max", value))
    if isinstance(wanted, list):
        return value in wanted
    return value == count_of(wanted, where)
