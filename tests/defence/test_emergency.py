"""Emergency: what a service's words say of its window and of the answer that was asked for (R4.3)."""

from __future__ import annotations

import pytest

from harnessd.defence.line3_repair.compaction.emergency import largest, shorter_answer, stated_window

SUM = "input length and `max_tokens` exceed context limit: 9000 + 8000 > 16000, decrease input length or `max_tokens`"
PARTS = (
    "This model's maximum context length is 16385 tokens. However, you requested 17000 tokens (9000 in the messages, "
    "8000 in the completion). Please reduce the length of the messages or completion."
)
TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, you requested 10000 tokens (9000 in the messages, "
    "1000 in the completion)."
)
NEW = "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 3900 `inputs` tokens and 1000 `max_new_tokens`"


@pytest.mark.parametrize(
    ("message", "size", "window", "most", "room"),
    [
        (SUM, 8_000, 16_000, 8_000, 6_860),
        (SUM, 8_000, 200_000, 8_000, 6_860),
        (PARTS, 8_000, 200_000, 8_000, 7_237),
        (NEW, 3_000, 128_000, 1_000, None),  # 196 tokens say nothing: the prompt is made smaller instead
        ("max_tokens is too large for this prompt", 9_000, 16_000, 8_000, 6_860),
        ("prompt is too long: 20000 tokens > 16000 maximum", 15_000, 16_000, 8_000, None),
        (TOO_LONG, 8_500, 8_192, 1_000, None),
    ],
)
def test_how_long_an_answer_may_be(message: str, size: int, window: int, most: int, room: int | None) -> None:
    assert shorter_answer(message, size, window, most) == room


@pytest.mark.parametrize(
    ("message", "window", "found"),
    [
        (SUM, 200_000, 16_000),
        (SUM, 16_000, None),
        (PARTS, 200_000, 16_385),
        ("prompt is too long: 208,310 tokens > 200,000 maximum", 1_000_000, 200_000),
        (
            "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
            2_000_000,
            1_048_575,
        ),
        ("Requested token count exceeds the model's maximum context length of 131072 tokens: 140000", 200_000, 131_072),
        ("Your input exceeds the context window of this model.", 200_000, None),
        ("request (9000 tokens) exceeds the available context size (4096 tokens)", 200_000, 4_096),
    ],
)
def test_what_window_a_service_states(message: str, window: int, found: int | None) -> None:
    assert stated_window(message, window, 8_000) == found


def test_the_largest_parts_in_words() -> None:
    parts = [("request n1", 10), ("result of bash n7", 900), ("answer n2", 0), ("tools", 90)]
    said = largest(parts, 1_000)
    assert said == "result of bash n7 900 tokens (90 %), tools 90 tokens (9 %), request n1 10 tokens (1 %)"
