"""Retry: what an error is, and how it is tried again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.domain.failure import ErrorClass, Failure, Owner
from harnessd.policy.language.shape import Policy
from harnessd.policy.retry import Classified, backoff_s, classify, for_class
from tests.policy.written import policy, problems

SHIPPED: Policy[Any] = policy("retry")


def failed(message: str = "", **facts: Any) -> Failure:
    return Failure("model", "model/primary", message, **facts)


def class_of(failure: Failure, own: Policy[Any] = SHIPPED) -> str:
    found = classify(own, failure)
    return found.error_class.value if found.error_class else "ok"


@pytest.mark.parametrize(
    ("facts", "error_class"),
    [
        # R3.1, R3.3, R3.7: what answers say of themselves
        ({"status": 401}, "auth"),
        ({"status": 403}, "auth"),
        ({"status": 402}, "quota_exhausted"),
        ({"status": 429}, "rate_limited"),
        ({"status": 429, "code": "rate_limit_exceeded"}, "rate_limited"),
        ({"status": 429, "code": "insufficient_quota"}, "quota_exhausted"),
        ({"status": 429, "code": "project_spend_limit_exceeded"}, "quota_exhausted"),
        (
            {"status": 429, "body": {"error": {"details": {"error_code": "enforced_spend_limit_reached"}}}},
            "quota_exhausted",
        ),
        ({"status": 503}, "overloaded"),
        ({"status": 529, "type": "overloaded_error"}, "overloaded"),
        ({"status": 200, "ended": "error", "type": "overloaded_error"}, "overloaded"),
        ({"status": 200, "ended": "error", "code": "429"}, "rate_limited"),
        ({"status": 500}, "server_error"),
        ({"status": 502}, "server_error"),
        ({"status": 504}, "timeout"),
        ({"status": 408}, "timeout"),
        ({"status": 404}, "invalid_request"),
        ({"status": 400}, "invalid_request"),
        ({"status": 413}, "context_overflow"),
        ({"status": 400, "code": "content_filter"}, "refused"),
        ({"status": 200, "ended": "complete", "finish": "refusal"}, "refused"),
        ({"status": 200, "ended": "complete", "finish": "content_filter"}, "refused"),
        ({"status": 200, "ended": "complete", "finish": "stop"}, "ok"),
        ({"status": 200, "ended": "complete", "finish": "length"}, "ok"),
        ({"status": 200, "ended": "complete", "finish": "length", "call_cut": True}, "malformed_output"),
        ({"status": 200, "ended": "complete", "finish": "length", "window_used": 0.995}, "context_overflow"),
        ({"status": 200, "ended": "complete", "finish": "stop", "window_used": 1.05}, "context_overflow"),
        ({"status": 200, "ended": "cut"}, "stream_interrupted"),
        ({"status": 200, "ended": "error"}, "server_error"),
        ({"transport": "connect_timeout"}, "timeout"),
        ({"transport": "read_timeout"}, "timeout"),
        ({"transport": "reset"}, "network"),
        ({"transport": "dns"}, "network"),
        ({"status": 400, "code": "context_length_exceeded"}, "context_overflow"),
        ({"status": 400, "type": "exceed_context_size_error"}, "context_overflow"),
        ({"status": 200, "ended": "error", "code": "context_length_exceeded"}, "context_overflow"),
    ],
)
def test_codes_statuses_and_streams(facts: dict[str, Any], error_class: str) -> None:
    assert class_of(failed(**facts)) == error_class


@pytest.mark.parametrize(
    "message",
    [
        # facts.md section 4: one wording of each family
        "prompt is too long: 208310 tokens > 200000 maximum",
        "Input is too long for requested model.",
        "Your input exceeds the context window of this model.",
        "context window exceeded",
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8202 tokens.",
        "Prompt contains 40212 tokens, too large for model with 32768 maximum context length",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).",
        "prompt token count of 140000 exceeds the limit of 128000",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
        "the model is loaded with context length of only 32768 tokens, which is not enough",
        "Codex ran out of room in the model's context window",
        "Range of input length should be [1, 30720]",
        "Your request exceeded model token limit: 262144 (requested: 300000)",
        "`inputs` must have less than 1024 tokens. Given: 1500",
        "上下文过长",
        "messages are too long",
        "Please reduce the length of the messages or completion.",
    ],
)
def test_wordings_of_overflow(message: str) -> None:
    assert class_of(failed(message, status=400)) == "context_overflow"
    # R4.3 (d): where our own estimate speaks against it, it is a permanent error
    found = classify(SHIPPED, failed(message, status=400, window_used=0.1))
    assert found.error_class in (ErrorClass.INVALID_REQUEST, ErrorClass.CONTEXT_OVERFLOW)


@pytest.mark.parametrize(
    ("message", "status", "error_class"),
    [
        # words that only look like overflow
        ("context deadline exceeded", 500, "server_error"),
        ("Client.Timeout exceeded while awaiting headers", 500, "server_error"),
        ("Maximum call stack size exceeded", 500, "server_error"),
        ("max_tokens is too large: 5000. This model supports at most 4096 completion tokens", 400, "invalid_request"),
        ("Rate limit reached on tokens per min (TPM): Limit 10000, Used 9000, Requested 1500", 429, "rate_limited"),
        ("Tokens per minute limit exceeded - too many tokens processed.", 429, "rate_limited"),
        ("messages.22: `tool_use` ids were found without `tool_result` blocks", 400, "invalid_request"),
        ("conversation roles must alternate user and assistant", 500, "invalid_request"),
        ("error parsing tool call: raw='{'", 500, "malformed_output"),
        ("This content was flagged for possible cybersecurity risk.", 200, "refused"),
        ("Your credit balance is too low to access the API.", 400, "quota_exhausted"),
        ("API key not valid. Please pass a valid API key.", 400, "auth"),
        ("The engine is currently overloaded", 500, "overloaded"),
        # one request larger than a whole minute's limit: waiting never helps
        (
            "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 30601.",
            429,
            "context_overflow",
        ),
    ],
)
def test_wordings_of_other_things(message: str, status: int, error_class: str) -> None:
    assert class_of(failed(message, status=status)) == error_class


def test_the_numbers_cross_check_the_words() -> None:
    # R4.3 (d), facts.md section 4
    assert class_of(failed("bad", status=400, window_used=0.85)) == "context_overflow"
    assert class_of(failed("bad", status=400, window_used=0.75)) == "invalid_request"
    assert class_of(failed("unexpected tool_use_id", status=400, window_used=0.85)) == "invalid_request"
    unlikely = classify(SHIPPED, failed("prompt is too long", status=400, window_used=0.2))
    assert (unlikely.error_class, unlikely.rule.rule) == (ErrorClass.INVALID_REQUEST, "overflow-unlikely")


def test_what_no_rule_knows_is_never_retried() -> None:
    found = classify(SHIPPED, failed("?", status=302))
    assert (found.error_class, found.known) == (ErrorClass.SERVER_ERROR, False)
    tool = classify(SHIPPED, Failure("tool", "tool/bash", "?"))
    assert (tool.error_class, tool.known) == (ErrorClass.EXECUTION_FAILED, False)


def test_the_first_rule_that_fits_decides_and_names_its_line() -> None:
    # R1.3, A22
    own = policy(
        "retry",
        "kind: retry\nrules:\n"
        "  - {name: gw-busy, for: model/local, when: {status: 400, body.error.reason: UPSTREAM}, class: overloaded}\n"
        '  - {for: "model/*", when: {status: 418, message: "*teapot*"}, class: refused}\n',
    )
    busy = failed("x", status=400, body={"error": {"reason": "upstream"}})
    assert class_of(busy, own) == "invalid_request"  # another model
    found = classify(own, replace(busy, dependency="model/local"))
    assert found.error_class is ErrorClass.OVERLOADED
    assert (found.rule.rule, found.rule.file, found.rule.line, found.rule.revision) == ("gw-busy", "a.yaml", 3, 7)
    assert classify(own, failed("I am a teapot", status=418)).rule.line == 4


def test_what_a_tool_knows_of_itself_stands_behind_the_operators_rules_only() -> None:
    failure = Failure("tool", "tool/http_request", "HTTP 503", status=503, hint=ErrorClass.UNAVAILABLE)
    assert classify(SHIPPED, failure).error_class is ErrorClass.UNAVAILABLE
    own = policy("retry", "kind: retry\nrules: [{for: tool/http_request, when: {status: 503}, class: rate_limited}]\n")
    assert classify(own, failure).error_class is ErrorClass.RATE_LIMITED
    # a class that tools do not have does not fit
    other = policy("retry", "kind: retry\nrules: [{when: {status: 503}, class: overloaded}]\n")
    assert classify(other, failure).error_class is ErrorClass.UNAVAILABLE
    plain = Failure("tool", "tool/http_request", "HTTP 429", status=429)
    assert classify(SHIPPED, plain) == Classified(ErrorClass.RATE_LIMITED, classify(SHIPPED, plain).rule)


# --- ladders and waits ------------------------------------------------------------------------------------------------


def test_the_shipped_ladders() -> None:
    # policies.md 3.2
    transient = for_class(SHIPPED, "model", ErrorClass.OVERLOADED)
    assert transient.do == ("retry", "fallback", "park")
    assert (transient.owner, transient.retries, transient.switch_after) == (Owner.RUNTIME, 10, 3)
    assert (transient.base_s, transient.cap_s, transient.jitter, transient.park_max_s) == (0.5, 32, 0.25, 43_200)
    # R3.3: never sent again unchanged
    for error_class in ("quota_exhausted", "auth", "refused", "context_overflow", "invalid_request"):
        assert "retry" not in for_class(SHIPPED, "model", ErrorClass(error_class)).do
    # R3.14
    malformed = for_class(SHIPPED, "model", ErrorClass.MALFORMED_OUTPUT)
    assert (malformed.do[0], malformed.retries, malformed.base_s, malformed.owner) == ("retry", 2, 0, Owner.MODEL)
    tool = for_class(SHIPPED, "tool", ErrorClass.TIMEOUT)
    assert (tool.do, tool.retries, tool.deadline_s) == (("retry", "fallback", "observe"), 2, 600)
    assert for_class(SHIPPED, "tool", ErrorClass.INVALID_ARGUMENTS).do == ("observe",)
    assert transient.rule.file == "builtin retry.yaml"
    assert transient.rule.rule == "model.classes.overloaded"


def test_faults_of_our_own_always_stop() -> None:
    # R1.2
    found = problems("kind: retry\nmodel: {classes: {internal_error: {do: retry}}}\n")
    assert 'unknown key "internal_error"' in found[0]
    for error_class in (ErrorClass.INTERNAL_ERROR, ErrorClass.STATE_CORRUPT):
        settings = for_class(SHIPPED, "agent", error_class)
        assert (settings.do, settings.owner, settings.retries) == (("stop",), Owner.OPERATOR, 0)


def test_the_interactive_preset_is_short_and_never_parks() -> None:
    preset = policy("retry", name="interactive")
    for error_class in list(ErrorClass):
        if error_class.value in type(preset.shape.model.classes).model_fields:
            settings = for_class(preset, "model", error_class)
            assert "park" not in settings.do
            assert settings.retries in (2, 3)


def test_an_operators_class_changes_only_what_it_states() -> None:
    own = policy("retry", "kind: retry\nmodel: {retries: 3, classes: {rate_limited: {retries: 20, cap: 60s}}}\n")
    limited = for_class(own, "model", ErrorClass.RATE_LIMITED)
    assert (limited.retries, limited.cap_s, limited.base_s, limited.do[0]) == (20, 60, 0.5, "retry")
    assert for_class(own, "model", ErrorClass.NETWORK).retries == 3


def test_base_stands_under_cap() -> None:
    found = problems("kind: retry\nmodel: {base: 1m}\ntool: {classes: {timeout: {do: observe, cap: 100ms}}}\n")
    assert found == [
        "a.yaml:2:15: model.base 1m is above cap 32s: write a base of at most the cap",
        "a.yaml:3:46: tool.classes.timeout.base 500ms is above cap 100ms: write a base of at most the cap",
    ]


@given(st.integers(0, 2000), st.floats(0, 1, exclude_max=True))
def test_waits_grow_to_the_cap_with_jitter_on_top(n: int, random01: float) -> None:
    # R3.2
    settings = for_class(SHIPPED, "model", ErrorClass.NETWORK)
    bare = min(0.5 * 2 ** min(n, 30), 32)
    assert bare <= backoff_s(settings, n, random01) <= bare * 1.25
    assert backoff_s(settings, n, 0.0) == bare
