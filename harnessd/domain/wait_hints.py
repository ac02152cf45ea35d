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
    rf"\b(?:(?:try(?:ing)?\s+again|retry|retrying|wait)\b[^.\n0-9]{{0,40}}?"
    rf"|(?:resets?|available|come\s+back|replenished)\b[^.\n0-9]{{0,30}}?(?:\bin|\bafter|\bwithin|:)\s*)({_SPAN})",
    re.IGNORECASE,
)
# "请30秒后重试": try again after 30 seconds
_CHINESE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(毫秒|秒钟?|分钟?|个?小时|天)\s*(?:之|以)?后")
_CHINESE_UNIT_S = {"毫": 1e-3, "秒": 1.0, "分": 60.0, "个": 3600.0, "小": 3600.0, "天": 86_400.0}
# "retry after: 30", "retry_after=30": seconds, as the header of that name
_BARE = re.compile(
    r"\bretry[ _-]?after(?:[ _-]?seconds)?['\"]?\s*[:=]?\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)(?![0-9.:a-z-])", re.IGNORECASE
)
# "replenished in 5.12:34:56", "resets in 00:01:30": days.hours:minutes:seconds
_CLOCK = re.compile(
    r"\b(?:again|retry|wait|resets?|available|replenished)\b[^.\n0-9]{0,40}?(?:([0-9]{1,4})\.)?([0-9]{1,2}):([0-9]{2}):([0-9]{2})\b(?!\s*(?:[ap]m|utc|z|gmt))",
    re.IGNORECASE,
)

_BODY_SECONDS = frozenset({"retry_after", "retryafter", "retry_after_seconds", "retry_after_s", "resets_in_seconds"})
_BODY_MILLISECONDS = frozenset({"retry_after_ms", "retryafterms"})
_BODY_MOMENTS = frozenset({"resets_at", "reset_at", "resetsat", "resetat", "retry_at", "x_ratelimit_reset"})
_BODY_DURATIONS = frozenset({"retrydelay", "retry_delay"})


def retry_after_s(
    headers: Mapping[str, str], body: Any, message: str, now: float, *, limited: bool = True
) -> float | None:
    """Seconds that an answer asks us to wait, or None.

    `now` is seconds since the Unix epoch. `limited`: the answer says that a limit is used up; only then do the headers
    that tell when limits are reset count, since they stand on good answers too.
    """
    lower = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    resets = _resets(lower, now) if limited else None
    for found in (_millisecond_header(lower), _retry_after(lower, now), resets, _body(body, now)):
        if found is not None:
            return found
    return in_words(message)


def in_words(text: str) -> float | None:
    """The wait that a sentence names, as in "Please try again in 5.289s", or None."""
    text = text[:2_000]
    if clock := _CLOCK.search(text):
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return _sane(days * 86_400 + hours * 3_600 + minutes * 60 + seconds)
    match = _WORDS.search(text)
    if match is None:
        if chinese := _CHINESE.search(text):
            return _sane(float(chinese[1]) * _CHINESE_UNIT_S[chinese[2][0]])
        bare = _BARE.search(text)
        return _sane(float(bare[1])) if bare else None
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
        return _seconds_or_epoch(float(value), now)
    return _duration(value) if _DURATION.match(value) else _until(moment_s(value), now)


# The reset headers stand on every answer, good ones too: only those of a limit that is used up are a hint.
_RESET = re.compile(r"(?:x-ratelimit-reset(?:-[a-z-]+)?|anthropic-ratelimit-[a-z0-9-]+-reset|ratelimit-reset)\Z")


def _resets(headers: Mapping[str, str], now: float) -> float | None:
    """The longest of the limits known to be used up; where nothing says which it is, the shortest."""
    certain: list[float] = []
    possible: list[float] = []
    for name, value in headers.items():
        if not _RESET.match(name) or not value:
            continue
        used_up = _used_up(headers, name)
        wait = _reset(value, now)
        if wait is not None and used_up is not False:
            (possible if used_up is None else certain).append(wait)
    if certain:
        return max(certain)
    return min(possible, default=None)


def _reset(value: str, now: float) -> float | None:
    if _DURATION.match(value):
        return _duration(value)
    number = _number(value)
    return _until(moment_s(value), now) if number is None else _seconds_or_epoch(number, now)


def _used_up(headers: Mapping[str, str], name: str) -> bool | None:
    """Whether the limit of a reset header is used up; None where no header says so."""
    status = headers.get(name.replace("reset", "status"))
    if status is not None:
        return not status.startswith("allowed")
    number = _number(headers.get(name.replace("reset", "remaining")))
    return None if number is None else number <= 0


def _body(body: Any, now: float) -> float | None:
    until: float | None = None
    for key, value in _pairs(body, 0):
        name = key.lower().replace("-", "_")
        wait = _body_field(name, value, now)
        if wait is not None and name not in _BODY_MOMENTS:
            return wait
        until = wait if until is None else until
    return until  # a moment holds only as far as both clocks agree: a wait told beside it is the better word


def _body_field(name: str, value: Any, now: float) -> float | None:
    if name in _BODY_DURATIONS or (name in _BODY_SECONDS and isinstance(value, str) and not _DECIMAL.match(value)):
        return _duration(value) if isinstance(value, str) and _DURATION.match(value) else None
    number = _number(value)
    if name in _BODY_MILLISECONDS:
        return None if number is None else _sane(number / 1000)
    if name in _BODY_SECONDS:
        return None if number is None else _seconds_or_epoch(number, now)
    if name in _BODY_MOMENTS:
        moment = _epoch(number) if number is not None else moment_s(value) if isinstance(value, str) else None
        return _until(moment, now)
    return None


def _pairs(body: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Every field of a JSON body, each map's own before those below it; bounded, since it comes from outside."""
    if depth > 6:
        return
    if isinstance(body, Mapping):
        for key, value in list(body.items())[:200]:
            if not isinstance(value, Mapping | list):
                yield str(key), value
        for value in list(body.values())[:200]:
            yield from _pairs(value, depth + 1)
    elif isinstance(body, list):
        for value in body[:50]:
            yield from _pairs(value, depth + 1)


def _number(value: Any) -> float | None:
    """The number of a JSON number or a decimal text; None for anything else, and for what no float holds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e18 else None
    return float(value) if isinstance(value, str) and _DECIMAL.match(value) else None


def _duration(text: str) -> float | None:
    parts = re.findall(r"([0-9.]+)(ms|us|s|m|h|d)", text)
    return _sane(sum(float(number) * _UNIT_S[unit] for number, unit in parts))


def _epoch(number: float) -> float:
    """Seconds since the epoch; milliseconds are told by their size."""
    return number / 1000 if number > 1e11 else number


def _seconds_or_epoch(number: float, now: float) -> float | None:
    """A wait in seconds, or a moment since the epoch, told apart by their size."""
    return _sane(_epoch(number) - now if number > 1e9 else number)


def moment_s(text: str) -> float | None:
    """Seconds since the epoch of an HTTP date (RFC 9110, RFC 850, asctime) or an RFC 3339 time, or None."""
    try:
        dated = re.match(r"[0-9]{4}-", text)
        moment = datetime.fromisoformat(text) if dated else parsedate_to_datetime(text)
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
