"""Wait hints: how long an answer asks us to wait, in every form services use; pure, the time is handed in.

Order: the finest header first, `retry-after-ms`, then `retry-after`, then the reset headers of a limit that is used up,
then the body's own fields, then its words. What is no delay (`0x10`, `soon`, `nan`) is ignored; what lies in the past
is 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

LONGEST_S = 10 * 365 * 86_400.0  # a longer hint is taken for nonsense

_DECIMAL = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?\Z")
_DURATION = re.compile(r"(?:[0-9]{1,12}(?:\.[0-9]{1,12})?(?:ms|us|s|m|h|d))+\Z")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

# "try again in 5.289s", "retry after 86400 seconds", "wait 2 minutes", "resets in 1h2m3s"
_UNIT_WORDS = r"(?:milliseconds?|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)"
_SPAN = rf"(?:[0-9]{{1,12}}(?:\.[0-9]{{1,12}})?\s*{_UNIT_WORDS}(?![a-z])(?:\s*,?\s*(?:and\s+)?)?)+"
_WORDS = re.compile(
    rf"\b(?:try(?:ing)?\s+again|retry|retrying|wait|resets?|available|come\s+back)\b[^.\n0-9]{{0,40}}?({_SPAN})",
    re.IGNORECASE,
)

_BODY_SECONDS = frozenset({"retry_after", "retryafter", "retry_after_seconds", "retry_after_s", "resets_in_seconds"})
_BODY_MILLISECONDS = frozenset({"retry_after_ms", "retryafterms"})
_BODY_MOMENTS = frozenset({"resets_at", "reset_at", "resetsat", "resetat", "retry_at"})
_BODY_DURATIONS = frozenset({"retrydelay", "retry_delay"})


def retry_after_s(headers: Mapping[str, str], body: Any, message: str, now: float) -> float | None:
    """Seconds that an answer asks us to wait, or None. `now` is seconds since the Unix epoch."""
    lower = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    for found in (_millisecond_header(lower), _retry_after(lower, now), _resets(lower, now), _body(body, now)):
        if found is not None:
            return found
    return in_words(message)


def in_words(text: str) -> float | None:
    """The wait that a sentence names, as in "Please try again in 5.289s", or None."""
    match = _WORDS.search(text[:2_000])
    if match is None:
        return None
    total = 0.0
    for number, unit in re.findall(rf"([0-9.]+)\s*({_UNIT_WORDS})(?![a-z])", match[1], re.IGNORECASE):
        word = unit.lower()
        key = "ms" if word.startswith(("ms", "milli")) else word[0]
        total += float(number) * _UNIT_S[key]
    return _sane(total)


def _millisecond_header(headers: Mapping[str, str]) -> float | None:
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        number = _number(headers.get(name))
        if number is not None:
            return _sane(number / 1000)
    return None


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds (RFC 9110: never negative), an HTTP date in its three forms, RFC 3339, or a duration."""
    value = headers.get("retry-after")
    if not value:
        return None
    if _DECIMAL.match(value):
        seconds = float(value)
        return _sane(seconds - now if seconds > 1e9 else seconds)
    return _duration(value) if _DURATION.match(value) else _until(_moment(value), now)


# The reset headers stand on every answer, good ones too: only those of a limit that is used up are a hint.
_RESET = re.compile(r"(?:x-ratelimit-reset(?:-[a-z-]+)?|anthropic-ratelimit-[a-z0-9-]+-reset|ratelimit-reset)\Z")


def _resets(headers: Mapping[str, str], now: float) -> float | None:
    found = []
    for name, value in headers.items():
        if not _RESET.match(name) or not value or not _used_up(headers, name):
            continue
        if _DURATION.match(value):
            wait = _duration(value)
        elif _DECIMAL.match(value):
            seconds = float(value)
            wait = _sane(seconds - now) if seconds > 1e9 else _sane(seconds)
        else:
            wait = _until(_moment(value), now)
        if wait is not None:
            found.append(wait)
    return max(found) if found else None


def _used_up(headers: Mapping[str, str], name: str) -> bool:
    remaining = headers.get(name.replace("reset", "remaining"))
    status = headers.get(name.replace("reset", "status"))
    if status is not None:
        return not status.startswith("allowed")
    number = _number(remaining)
    return number is None or number <= 0


def _body(body: Any, now: float) -> float | None:
    for key, value in _pairs(body, 0):
        name = key.lower().replace("-", "_")
        if name in _BODY_DURATIONS and isinstance(value, str):
            return _duration(value) if _DURATION.match(value) else None
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else _number(value)
        if name in _BODY_MILLISECONDS and number is not None:
            return _sane(number / 1000)
        if name in _BODY_SECONDS and number is not None:
            return _sane(number - now if number > 1e9 else number)
        if name in _BODY_MOMENTS:
            moment = _epoch(number) if number is not None else _moment(value) if isinstance(value, str) else None
            return _until(moment, now)
    return None


def _pairs(body: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Every key of a JSON body, shallow ones first enough for us; bounded, since it comes from outside."""
    if depth > 6:
        return
    if isinstance(body, Mapping):
        for key, value in list(body.items())[:200]:
            if isinstance(value, Mapping | list):
                continue
            yield str(key), value
        for value in list(body.values())[:200]:
            yield from _pairs(value, depth + 1)
    elif isinstance(body, list):
        for value in body[:50]:
            yield from _pairs(value, depth + 1)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, str) and _DECIMAL.match(value) else None


def _duration(text: str) -> float | None:
    parts = re.findall(r"([0-9.]+)(ms|us|s|m|h|d)", text)
    return _sane(sum(float(number) * _UNIT_S[unit] for number, unit in parts))


def _epoch(number: float) -> float | None:
    """Seconds since the epoch; milliseconds are told by their size."""
    return number / 1000 if number > 1e11 else number


def _moment(text: str) -> float | None:
    """Seconds since the epoch of an HTTP date (RFC 9110, RFC 850, asctime) or an RFC 3339 time, or None."""
    try:
        if re.match(r"[0-9]{4}-", text):
            moment = datetime.fromisoformat(text)
        else:
            moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _until(moment: float | None, now: float) -> float | None:
    return None if moment is None else _sane(moment - now)


def _sane(seconds: float) -> float | None:
    """0 for the past; None for what is not finite or absurdly long."""
    if not math.isfinite(seconds) or seconds > LONGEST_S:
        return None
    return max(0.0, round(seconds, 6))
