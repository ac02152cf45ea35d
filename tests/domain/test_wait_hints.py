"""Every form in which services say how long to wait."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.domain.wait_hints import retry_after_s

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC).timestamp()


def hint(headers: Mapping[str, str] | None = None, body: Any = None, message: str = "") -> float | None:
    return retry_after_s(headers or {}, body, message, NOW)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        # R3.2, facts.md section 3
        ({"retry-after": "600"}, 600),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": " 2 "}, 2),
        ({"retry-after": "0"}, 0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Mon, 30 Nov 2026 12:01:00 GMT"}, 60),
        ({"retry-after": "Monday, 30-Nov-26 12:01:00 GMT"}, 60),
        ({"retry-after": "Mon Nov 30 12:01:00 2026"}, 60),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "2026-11-30T12:00:30Z"}, 30),
        ({"retry-after": "2026-11-30T14:00:30.5+02:00"}, 30.5),
        ({"retry-after": str(int(NOW) + 45)}, 45),
        ({"retry-after": "1h2m3s"}, 3723),
        ({"retry-after": "100ms"}, 0.1),
        ({"retry-after": "6", "x-ratelimit-reset-tokens": "5.289s", "x-ratelimit-reset-requests": "2m59.56s"}, 6),
        (
            {
                "x-ratelimit-reset-tokens": "6m0s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-requests": "1s",
            },
            360,
        ),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "7"}, None),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-reset-requests": "1s"}, 1),
        ({"anthropic-ratelimit-tokens-reset": "2026-11-30T12:00:20Z", "anthropic-ratelimit-tokens-remaining": "0"}, 20),
        (
            {
                "anthropic-ratelimit-unified-reset": str(int(NOW) + 7999),
                "anthropic-ratelimit-unified-status": "rejected",
            },
            7999,
        ),
        ({"x-ratelimit-reset": str(int(NOW * 1000) + 5000)}, 5),
    ],
)
def test_headers(headers: Mapping[str, str], wait: float | None) -> None:
    assert hint(headers) == (pytest.approx(wait, abs=1e-3) if wait is not None else None)


@pytest.mark.parametrize(
    "text", ["0x10", "1e3", "-5", "soon", "nan", "inf", "", "9" * 400, "Mon, 99 Foo", "2026-99-99T00:00:00Z"]
)
def test_what_is_no_delay_is_no_hint(text: str) -> None:
    assert hint({"retry-after": text}) is None


@pytest.mark.parametrize(
    ("body", "wait"),
    [
        ({"error": {"retry_after": 7}}, 7),
        ({"retry_after_seconds": "2.5"}, 2.5),
        ({"error": {"metadata": {"retry_after_ms": 250}}}, 0.25),
        ({"resets_at": NOW + 90}, 90),
        ({"error": {"reset_at": "2026-11-30T12:00:05Z"}}, 5),
        ({"error": {"details": [{"@type": "RetryInfo", "retryDelay": "33s"}]}}, 33),
        ({"retry_after": -3}, 0),
        ({"retry_after": float("nan")}, None),
        ({"retry_after": float("inf"), "error": {"retry_after": 4}}, 4),
        ({"retry_after": True}, None),
        ({"retry_after": 10**400}, None),
        ({"retry_after": {"seconds": 3}}, None),
        ([{"retry_after": 3}], 3),
        ("retry_after: 3", None),
    ],
)
def test_bodies(body: Any, wait: float | None) -> None:
    assert hint(body=body) == (pytest.approx(wait) if wait is not None else None)


@pytest.mark.parametrize(
    ("message", "wait"),
    [
        ("Please try again in 5.289s.", 5.289),
        ("Please try again in 6m0s. Visit", 360),
        ("try again in 20ms", 0.02),
        ("Please retry after 86400 seconds. Please contact", 86400),
        ("Please retry in 33.4s", 33.4),
        ("Rate limit exceeded. Wait for 2 minutes", 120),
        ("Try again in 1 hour", 3600),
        ("Please retry shortly.", None),
        ("Limit 6000, Requested 6294, please reduce your message size and try again.", None),
        ("prompt is too long: 208310 tokens > 200000 maximum", None),
        ("retried 3 times", None),
    ],
)
def test_words(message: str, wait: float | None) -> None:
    assert hint(message=message) == (pytest.approx(wait) if wait is not None else None)


@given(
    st.dictionaries(
        st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset", "x-ratelimit-reset-tokens"]),
        st.text(max_size=40),
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["retry_after", "reset_at", "error"]), inner)
        ),
        max_leaves=10,
    ),
    st.text(max_size=200),
)
def test_nothing_breaks_it_and_no_wait_is_negative_or_endless(headers: dict[str, str], body: Any, message: str) -> None:
    wait = hint(headers, body, message)
    assert wait is None or 0 <= wait < float("inf")
