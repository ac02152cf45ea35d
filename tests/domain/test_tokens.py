"""The token estimate: bytes by kind of content, rather too many tokens than too few."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.domain.tokens import estimate_tokens

NOISE = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(64))


@pytest.mark.parametrize(
    ("text", "bytes_a_token"),
    [
        ("The quick brown fox jumps over the lazy dog. " * 100, 4.0),
        (json.dumps([{"id": number, "name": f"item{number}"} for number in range(200)]), 2.4),
        ("上下文过长请缩短输入" * 50, 2.4),
        (NOISE.hex(), 1.7),
        (base64.b64encode(NOISE).decode(), 1.7),
        ("-" * 400, 2.4),
    ],
)
def test_bytes_for_each_token_by_content(text: str, bytes_a_token: float) -> None:
    # R4.3, measured: four bytes a token are too few tokens for JSON, hex and Chinese
    assert len(text.encode()) / estimate_tokens(text) == pytest.approx(bytes_a_token, rel=0.02)


def test_all_texts_and_names_of_a_request_count() -> None:
    prose = "Please read the file and tell me what is wrong with it. " * 50
    request = {"model": "m", "messages": [{"role": "user", "content": prose}, {"role": "user", "content": prose}]}
    assert 2 * estimate_tokens(prose) < estimate_tokens(request) < 2 * estimate_tokens(prose) + 40


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_any_json_has_a_size_between_its_bounds(value: object) -> None:
    size = len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    assert 0 <= estimate_tokens(value) <= 2 * size + 4
