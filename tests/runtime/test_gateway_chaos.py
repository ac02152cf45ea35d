"""Chaos by policy: innermost, so that breakers and limits meet it; the same seed brings the same faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ModelReply, TextBlock, ToolUseBlock
from harnessd.domain.ports import ToolOutcome
from harnessd.policy import retry
from harnessd.runtime.traffic.caller import NOBODY, Caller
from harnessd.runtime.traffic.chaos import Chaos
from tests.policy.written import policies
from tests.runtime.traffic_scene import Clock, Scene, request, scene


def nothing() -> None:
    raise AssertionError("nobody asked for a crash")


def chaos(inject: str, more: str = "rate: 100%", seed: int = 7) -> str:
    return f"kind: chaos\nseed: {seed}\nrules: [{{{more}, inject: {{{inject}}}}}]"


async def answered(one: Scene, **facts: object) -> ModelReply | Failure:
    return await one.call("primary", **{"call": "e1", **facts})


def class_of(failure: ModelReply | Failure) -> ErrorClass | None:
    assert isinstance(failure, Failure)
    policy: Any = policies().get("retry", "default")
    return retry.classify(policy, failure).error_class


@pytest.mark.parametrize(
    ("inject", "error_class", "made"),
    [
        ("status: 529", ErrorClass.OVERLOADED, 0),
        ('status: 429, headers: {retry-after: "7"}', ErrorClass.RATE_LIMITED, 0),
        ("status: 429, body: {error: {code: insufficient_quota, message: Pay.}}", ErrorClass.QUOTA_EXHAUSTED, 0),
        ("status: 500", ErrorClass.SERVER_ERROR, 0),
        ("reset: true", ErrorClass.NETWORK, 0),
        ("cut_after: 5B", ErrorClass.STREAM_INTERRUPTED, 1),
        ("fail: refused", ErrorClass.REFUSED, 0),
        ("malformed: json", ErrorClass.NETWORK, 0),
    ],
)
async def test_each_fault_is_met_as_the_class_it_stands_for(
    tmp_path: Path, inject: str, error_class: ErrorClass, made: int
) -> None:  # R8.1
    async with scene(tmp_path, chaos(inject), chaos=nothing) as one:
        found = await answered(one)
        assert class_of(found) is error_class
        assert isinstance(found, Failure)
        assert "injected by chaos" in found.message
        assert len(one.service.calls) == made
        if "retry-after" in inject:
            assert found.retry_after_s == 7


async def test_arguments_are_spoilt_in_the_answer_itself(tmp_path: Path) -> None:  # R8.1, R3.14
    async with scene(tmp_path, chaos("malformed: arguments"), chaos=nothing) as one:
        one.service.says = (TextBlock("Look."), ToolUseBlock("c1", "bash", {"command": "ls"}))
        reply = await answered(one)
        assert isinstance(reply, ModelReply)
        (call,) = reply.message.tool_uses
        assert (call.arguments, call.raw) == (None, '{"pa')


async def test_a_delay_beyond_the_clock_of_the_first_event_is_a_timeout(tmp_path: Path) -> None:  # R8.1
    clocks = "\n---\nkind: limits\nrules: [{for: model/primary, timeout: {first_event: 1s}}]"
    async with scene(tmp_path, chaos("delay: 50ms") + clocks, chaos=nothing) as one:
        assert isinstance(await answered(one), ModelReply)
        one.set(chaos("delay: 40s") + clocks)
        assert class_of(await answered(one)) is ErrorClass.TIMEOUT


async def test_a_crash_is_a_crash(tmp_path: Path) -> None:  # R8.1
    crashed: list[int] = []
    async with scene(tmp_path, chaos("crash: true"), chaos=lambda: crashed.append(1)) as one:
        await answered(one)
        assert crashed == [1]


async def test_faults_open_the_breaker_like_real_ones(tmp_path: Path) -> None:  # R8.1, R3.5
    text = chaos("status: 529") + "\n---\nkind: breaker\nrules: [{for: model/primary, consecutive: 3}]"
    async with scene(tmp_path, text, chaos=nothing) as one:
        for number in range(3):
            await answered(one, call=f"e{number}")
        found = await answered(one, call="e4")
        assert isinstance(found, Failure)
        assert found.code == "breaker_open"


async def test_nothing_happens_unless_the_daemon_allows_it(tmp_path: Path) -> None:  # R8.1
    async with scene(tmp_path, chaos("status: 529")) as one:
        assert isinstance(await answered(one), ModelReply)


async def test_only_what_fits_and_always_the_same_for_the_same_seed(tmp_path: Path) -> None:  # R8.1, A25
    async def faults(seed: int) -> list[int]:
        one.set(chaos("status: 529", 'when: {label.chaos: "yes"}, for: "model/*", rate: 30%', seed))
        hits = [
            number
            for number in range(60)
            if isinstance(await answered(one, call=f"e{number}", labels={"chaos": "yes"}), Failure)
        ]
        assert isinstance(await answered(one, call="e1", labels={"chaos": "no"}), ModelReply)
        return hits

    calm = "\n---\nkind: breaker\nrules: [{consecutive: none, failure_rate: none}]"
    async with scene(tmp_path, calm, chaos=nothing) as one:
        first, again, other = await faults(42), await faults(42), await faults(43)
        assert first == again != other
        assert 8 <= len(first) <= 28


async def test_a_check_by_a_person_meets_no_faults(tmp_path: Path) -> None:  # R8.1, A2
    async with scene(tmp_path, chaos("status: 529"), chaos=nothing) as one:
        assert isinstance(await one.gateway.check(request()), ModelReply)


# --- tools ------------------------------------------------------------------------------------------------------------

WORKS = ToolOutcome("one two three")
ME = Caller(task="t1", agent="builder", call="e3")


async def tool(inject: str, caller: Caller = ME) -> ToolOutcome | Failure:
    async def perform() -> ToolOutcome | Failure:
        return WORKS

    run: Callable[[], Awaitable[ToolOutcome | Failure]] = perform
    made = policies(chaos(inject, "for: tool/bash, rate: 100%"))
    return await Chaos(lambda: made, Clock(), nothing).tool("tool/bash", caller, run)


@pytest.mark.parametrize(
    ("inject", "error_class"),
    [
        ("fail: execution_failed", ErrorClass.EXECUTION_FAILED),
        ("fail: outcome_unknown", ErrorClass.OUTCOME_UNKNOWN),
        ("status: 503", ErrorClass.UNAVAILABLE),
        ("reset: true", ErrorClass.UNAVAILABLE),
        ("malformed: arguments", ErrorClass.INVALID_ARGUMENTS),
    ],
)
async def test_a_tool_fails_as_told(inject: str, error_class: ErrorClass) -> None:  # R8.1
    found = await tool(inject)
    assert isinstance(found, Failure)
    assert (found.hint, found.effect_begun) == (error_class, error_class is ErrorClass.OUTCOME_UNKNOWN)


async def test_a_tools_output_is_cut_or_spoilt() -> None:  # R8.1
    cut, spoilt = await tool("cut_after: 5B"), await tool("malformed: json")
    assert isinstance(cut, ToolOutcome)
    assert isinstance(spoilt, ToolOutcome)
    assert (cut.text, spoilt.text) == ("one t", '{"resu')
    assert await tool("fail: execution_failed", NOBODY) is WORKS
