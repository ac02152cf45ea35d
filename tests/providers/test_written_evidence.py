"""What is kept of a failed answer, written down as a record and read again: the same class, the same wait."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from harnessd.defence.incident import Episode, incident_of
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.policy.retry import classify, failure_facts
from harnessd.providers.recorded import RecordError, outcome, read_record
from harnessd.providers.recorded.written import record_of
from tests.engine.scenery import policies
from tests.providers.test_known_errors import CASES, NOW, shipped


def again(failure: Failure) -> Failure:
    """The failure as the file of `why --evidence` tells of it."""
    kept = json.loads(json.dumps(incident_of(failure, Episode("t1", 1), policies()).evidence()))
    record = record_of(kept, NOW)
    assert record is not None
    found = outcome(read_record(json.loads(json.dumps(record)), clock_s=0.0))
    assert isinstance(found, Failure)
    return found


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
def test_what_is_kept_of_an_answer_is_of_the_same_class(case: dict[str, Any]) -> None:  # R1.3
    record = replace(read_record({"now": NOW, **case["answer"]}, NOW), dependency="model/primary", now=NOW)
    failure = outcome(record)
    if not isinstance(failure, Failure):
        pytest.skip("a whole answer: nothing failed")
    told = again(failure)
    before, after = classify(shipped(), failure), classify(shipped(), told)
    assert (after.error_class, after.rule.rule) == (before.error_class, before.rule.rule)
    assert told.retry_after_s == pytest.approx(failure.retry_after_s, abs=2.5)
    for fact in ("status", "code", "type", "transport", "ended", "finish", "call_cut", "message"):
        assert failure_facts(told)(fact) == failure_facts(failure)(fact), fact


@pytest.mark.parametrize(
    "changed",
    [
        {"transport": "read_timeout", "message": "dns was slow: refused to answer", "status": None},
        {"transport": "reset", "ended": "cut", "status": 200},
        {"transport": "protocol", "ended": "cut", "message": "an event is no JSON: {", "status": 200},
        {"message": "authentication is not possible: KEY is not set", "code": "credential_unusable", "status": None},
        {"hint": ErrorClass.MALFORMED_OUTPUT, "ended": "complete", "finish": "stop", "status": None},
        {"status": 400, "body": {"error": {"reason": "UPSTREAM_BUSY", "deep": [1, {"two": None}]}}, "message": "busy"},
        {"status": 429, "message": "x" * 1900, "headers": {"retry-after": "7"}, "retry_after_s": 7.0},
        {"status": 503, "message": "busy", "body": {"words": ["y" * 1900] * 9}},
    ],
)
def test_failures_of_every_sort_come_back(changed: dict[str, Any]) -> None:
    facts = {"source": "model", "dependency": "model/primary", "message": "Busy", "protocol": "anthropic"}
    failure = Failure(**{**facts, **changed})
    told = again(failure)
    for fact in ("status", "transport", "ended", "finish", "hint", "message", "retry_after_s"):
        assert getattr(told, fact) == getattr(failure, fact), fact
    assert failure_facts(told)("body.error.reason") == failure_facts(failure)("body.error.reason")


def test_what_is_no_answer_of_a_model_is_no_record() -> None:
    tool = Failure("tool", "tool/bash", "exit 1", hint=ErrorClass.EXECUTION_FAILED)
    assert record_of(incident_of(tool, Episode("t1", 1), policies()).evidence(), NOW) is None
    shut = Failure("model", "model/primary", "open", code="breaker_open", protocol="anthropic")
    assert record_of(incident_of(shut, Episode("t1", 1), policies()).evidence(), NOW) is None


@pytest.mark.parametrize("facts", [[], {"nope": 1}, {"ended": 3}, {"hint": "never"}, {"call_cut": "yes"}])
def test_facts_that_cannot_be_are_refused(facts: Any) -> None:
    with pytest.raises(RecordError, match="facts"):
        read_record({"protocol": "anthropic", "status": 500, "facts": facts}, NOW)
