"""Answers of services as they are known from reports and from general knowledge: each one's class, wait and words."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from harnessd.cli.policy.classify import verdict
from harnessd.config.load import builtin_policies
from harnessd.domain.failure import Failure
from harnessd.domain.messages import ModelReply
from harnessd.policy.retry import RetryPolicy, classify
from harnessd.providers import PROTOCOLS
from tests.loopback import Script
from tests.providers.speech import talk

FOLDER = Path(__file__).parents[1] / "cases" / "provider_errors"
NOW = 1_796_040_000.0  # 2026-11-30T12:00:00Z, the moment of the cases


Case = tuple[str, dict[str, Any]]


def cases(files: str) -> list[Case]:
    paths = sorted(FOLDER.glob(files))
    read = ((path.stem, yaml.safe_load(path.read_text(encoding="utf-8"))) for path in paths)
    return [(f"{stem}:{case['name']}", case) for stem, found in read for case in found]


def sent(case: dict[str, Any]) -> bool:
    answer = case["answer"]
    return answer["protocol"] in PROTOCOLS and "transport_error" not in answer


CASES = cases("*.yaml")
SENT = [(name, case) for name, case in cases("reported.yaml") if sent(case)]


@cache
def shipped() -> RetryPolicy:
    policy = builtin_policies().get("retry", "default")
    assert policy is not None
    return policy


def test_there_are_cases_and_no_two_have_one_name() -> None:
    names = [name for name, _ in CASES]
    assert len(set(names)) == len(names) > 400


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
def test_an_answer_is_what_it_is(case: dict[str, Any]) -> None:
    # R3.1, R3.2, R3.3, R3.7, R4.3, F25
    want, found = case["want"], verdict(case["answer"], shipped(), NOW)
    assert found["class"] in {want["class"], *want.get("also", ())}, found
    if found["class"] == want["class"]:
        assert found["retryable"] == want["retryable"], found
    wait = want.get("retry_after_s")
    assert found["retry_after_s"] == (None if wait is None else pytest.approx(wait, abs=1e-3)), found
    for words in want.get("shows", ()):
        assert words in found["message"], found
    assert 0 < len(found["message"]) <= 2000
    assert "<html" not in found["message"].lower()


def _script(answer: dict[str, Any]) -> Script:
    """The answer as a server sends it."""
    headers = [f"{name}: {str(value).strip()}" for name, value in answer.get("headers", {}).items()]
    headers = [line for line in headers if not line.lower().startswith("content-length")]
    status = answer.get("status", 200)
    if "sse" in answer and status == 200:
        extra = [line for line in headers if not line.lower().startswith("content-type")]
        return lambda visit: visit.stream(("\n".join(answer["sse"]) + "\n").encode(), *extra)
    body = answer.get("body", "")
    text = body if isinstance(body, str) else json.dumps(body)
    if not any(line.lower().startswith("content-type") for line in headers) and text.lstrip().startswith(("{", "[")):
        headers.append("Content-Type: application/json")
    return lambda visit: visit.answer(status, text.encode(), *headers)


@pytest.mark.parametrize("case", [case for _, case in SENT], ids=[name for name, _ in SENT])
async def test_a_live_call_and_the_record_say_the_same(case: dict[str, Any]) -> None:
    # the recorded answer goes through the decoders of the live call: over a real connection the facts are the same
    answer = {**case["answer"], "now": case["answer"].get("now", NOW)}
    recorded = verdict(answer, shipped(), NOW)
    async with talk(answer["protocol"], _script(answer), window=0) as conversation:
        live = await conversation.call()
    if isinstance(live, ModelReply):
        assert recorded["class"] == "ok"
        return
    assert isinstance(live, Failure)
    found = classify(shipped(), live)
    assert (found.error_class.value if found.error_class else "ok") == recorded["class"], live
    assert live.message == recorded["message"]
    assert found.rule.line == recorded["rule"]["line"]
