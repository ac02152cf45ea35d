"""A dead key is told by words as well as by a status: whatever way it comes, it is not tried again (c22)."""

from __future__ import annotations

import pytest

from harnessd.domain.failure import ErrorClass, Failure
from harnessd.policy.retry import classify, for_class
from tests.policy.written import policy

SHIPPED = policy("retry")
WORDS = (
    "invalid api key", "Incorrect API key provided: sk-...", "Unauthorized", "authentication failed",
    "API key expired", "401 Client Error: Unauthorized for url", "Your API key has been revoked",
    "The api_key client option must be set", "No API key provided", "token expired", "invalid_api_key",
    "AuthenticationError: invalid credentials", "x-api-key header is required", "Error code: 401 - {'error': 'bad'}",
    "Access token is expired", "login required", "Invalid Authentication", "令牌无效",
)  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("way", [{"transport": "unreachable"}, {"status": 200, "ended": "error"}, {"status": 400}, {}])
def test_a_dead_key_is_never_tried_again(words: str, way: dict[str, object]) -> None:
    # c22, R3.3
    found = classify(SHIPPED, Failure("model", "model/primary", words, **way))  # type: ignore[arg-type]
    assert found.error_class is ErrorClass.AUTH
    assert "retry" not in for_class(SHIPPED, "model", ErrorClass.AUTH).do


@pytest.mark.parametrize(
    "words", ["Connection refused", "name resolution failed", "max_tokens must be set", "the token stream was cut"]
)
def test_other_words_are_no_dead_key(words: str) -> None:
    found = classify(SHIPPED, Failure("model", "model/primary", words, transport="unreachable"))
    assert found.error_class is not ErrorClass.AUTH
