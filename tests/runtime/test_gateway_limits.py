"""Limits before the call: fair lines, minutes, clocks, the day's money; changed while others wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ModelReply, Usage
from harnessd.runtime.gateway import Prices
from harnessd.runtime.traffic.desk import Seats, seats
from tests.policy.written import policies
from tests.runtime.traffic_scene import Clock, failed, scene

PRICED = Prices(1_000.0, 1_000.0)  # a token costs a tenth of a cent


async def test_no_more_calls_at_once_than_a_model_allows(tmp_path: Path) -> None:  # R3.15
    async with scene(tmp_path, "kind: limits\nrules: [{for: model/primary, concurrency: 2}]") as one:
        one.service.hold()
        calls = [asyncio.create_task(one.call()) for _ in range(5)]
        await one.spin(lambda: one.service.under_way == 2)
        assert one.traffic.desk.waiting("model/primary") == 3
        assert isinstance(await asyncio.wait_for(_after(one.service.let_go, one.call("second")), 5), ModelReply)
        assert all(isinstance(answer, ModelReply) for answer in await asyncio.gather(*calls))
        assert one.service.most <= 3  # two of the one, one of the other
        assert one.traffic.desk.running("model/primary") == 0


async def _after(gate: asyncio.Event, call: object) -> object:
    gate.set()
    return await call  # type: ignore[misc]


async def test_the_line_is_in_order_and_nobody_waits_behind_a_limit_that_is_not_theirs(tmp_path: Path) -> None:
    # R3.15
    text = "kind: limits\nrules: [{for: model/primary, concurrency: 1}, {for: model/second, concurrency: 1}]"
    async with scene(tmp_path, text) as one:
        one.service.hold()
        order: list[str] = []

        async def call(name: str, alias: str) -> None:
            await one.call(alias, task=name)
            order.append(name)

        calls = [asyncio.create_task(call(f"p{n}", "primary")) for n in range(4)]
        calls.append(asyncio.create_task(call("s", "second")))
        await one.spin(lambda: one.service.under_way == 2)  # p0 and s, though s came last
        one.service.let_go.set()
        await asyncio.gather(*calls)
        assert [name for name in order if name != "s"] == ["p0", "p1", "p2", "p3"]


async def test_a_changed_limit_lets_those_in_who_wait(tmp_path: Path) -> None:  # R3.15, R7.2
    async with scene(tmp_path, "kind: limits\nrules: [{for: model/primary, concurrency: 1}]") as one:
        one.service.hold()
        calls = [asyncio.create_task(one.call()) for _ in range(3)]
        await one.spin(lambda: one.service.under_way == 1 and one.traffic.desk.waiting("model/primary") == 2)
        one.set("kind: limits\nrules: [{for: model/primary, concurrency: 3}]")
        await one.spin(lambda: one.service.under_way == 3)
        one.service.let_go.set()
        await asyncio.gather(*calls)


async def test_requests_of_a_minute_wait_for_the_minute_to_pass(tmp_path: Path) -> None:  # R3.15
    text = "kind: limits\nrules: [{for: agent/builder, requests_per_minute: 2}]"
    async with scene(tmp_path, text, minute_s=0.2) as one:
        calls = [asyncio.create_task(one.call()) for _ in range(3)]
        await one.spin(lambda: len(one.service.calls) == 2)
        assert isinstance(await one.call(agent="crawler"), ModelReply)  # not crawler's limit
        assert one.traffic.desk.waiting("agent/builder") == 1
        one.clock.at += 0.3
        await one.spin(lambda: len(one.service.calls) == 4)  # the timer fires by itself
        await asyncio.gather(*calls)


async def test_tokens_count_as_they_were_used_and_one_huge_call_passes_alone(tmp_path: Path) -> None:  # R3.15, R3.3
    async with scene(tmp_path, "kind: limits\nrules: [{for: model/primary, tokens_per_minute: 50}]") as one:
        one.service.script = [Usage(500, 500)]
        assert isinstance(await one.call(), ModelReply)  # larger than the whole minute: waiting would not help
        waiting = asyncio.create_task(one.call())
        await one.spin(lambda: one.traffic.desk.waiting("model/primary") == 1)
        one.clock.at += 61
        one.traffic.changed()
        assert isinstance(await waiting, ModelReply)


async def test_retries_wait_when_they_are_too_large_a_part_of_the_calls(tmp_path: Path) -> None:  # R3.16
    async with scene(tmp_path, "kind: limits\nrules: [{for: model/primary, retry_share: 20%}]") as one:
        for _ in range(10):
            await one.call(attempt=2)  # so many are always free
        assert not one.traffic.health("primary").may_retry
        retry = asyncio.create_task(one.call(attempt=2))
        await one.spin(lambda: one.traffic.desk.waiting("model/primary") == 1)
        other = asyncio.create_task(one.call("second", attempt=2))
        assert isinstance(await other, ModelReply)
        one.clock.at += 61
        one.traffic.changed()
        assert isinstance(await retry, ModelReply)
        assert one.traffic.health("primary").may_retry


async def test_clocks_are_those_of_the_policies_in_force(tmp_path: Path) -> None:  # R3.2
    async with scene(tmp_path) as one:
        await one.call()
        one.set(
            "kind: limits\nrules: [{for: model/primary, timeout: {connect: 1s, first_event: 2s, idle: 3s, call: 9s}}]"
        )
        await one.call()
        first, second = one.service.calls
        assert (first.connect_s, first.first_event_s, first.idle_s, first.call_s) == (10, 55, 55, 600)
        assert (second.connect_s, second.first_event_s, second.idle_s, second.call_s) == (1, 2, 3, 9)


async def test_a_call_that_is_cancelled_in_line_or_under_way_leaves_no_trace(tmp_path: Path) -> None:  # R3.15
    async with scene(tmp_path, "kind: limits\nrules: [{for: model/primary, concurrency: 1}]") as one:
        one.service.hold()
        first, second, third = (asyncio.create_task(one.call()) for _ in range(3))
        await one.spin(lambda: one.service.under_way == 1 and one.traffic.desk.waiting("model/primary") == 2)
        second.cancel()
        await one.spin(lambda: one.traffic.desk.waiting("model/primary") == 1)
        first.cancel()
        await one.spin(lambda: one.service.under_way == 1 and one.traffic.desk.waiting("model/primary") == 0)
        one.service.let_go.set()
        assert isinstance(await third, ModelReply)
        assert one.traffic.desk.running("model/primary") == 0


# --- the day's money --------------------------------------------------------------------------------------------------

CAP = "kind: limits\nrules: [{for: agent/crawler, cost_usd_per_day: 1, do: [park, stop], note: INC-311}]"


async def test_the_days_money_ends_with_a_failure_that_names_midnight(tmp_path: Path) -> None:  # A3
    async with scene(tmp_path, CAP, prices=PRICED) as one:
        one.service.script = [Usage(800, 100)]  # 0.90
        assert isinstance(await one.call(agent="crawler"), ModelReply)
        refused = await one.call(agent="crawler")
        assert isinstance(refused, Failure)
        assert (refused.code, refused.dependency) == ("day_limit_reached", "agent/crawler")
        assert refused.hint is ErrorClass.QUOTA_EXHAUSTED
        assert refused.retry_after_s == 16 * 3600  # it is 08:00 UTC
        assert refused.message == "0.90 of 1.00 USD a day used by agent/crawler; it goes on at 00:00 UTC"
        assert refused.body["do"] == ["park", "stop"]
        assert isinstance(await one.call(agent="builder"), ModelReply)
        assert len(one.service.calls) == 2
        await one.call(agent="crawler")
        told = [event for event in await one.store.events() if event.type == "ceiling_reached"]
        assert [event.data["dependency"] for event in told] == ["agent/crawler"]  # once a day


async def test_the_days_money_survives_a_restart_and_ends_with_the_day(tmp_path: Path) -> None:  # A3, R6.2
    clock = Clock()
    async with scene(tmp_path, CAP, prices=PRICED, clock=clock) as one:
        one.service.script = [Usage(800, 100)]
        await one.call(agent="crawler")
    async with scene(tmp_path, CAP, prices=PRICED, clock=clock) as one:
        assert isinstance(await one.call(agent="crawler"), Failure)
        assert [event.type for event in await one.store.events()].count("ceiling_reached") == 1
        clock.at += 16 * 3600
        assert isinstance(await one.call(agent="crawler"), ModelReply)


async def test_what_was_reserved_before_a_crash_stays_charged(tmp_path: Path) -> None:  # R3.9
    async with scene(tmp_path, CAP, prices=PRICED) as one:
        one.service.hold()
        call = asyncio.create_task(one.call(agent="crawler"))
        await one.spin(lambda: one.service.under_way == 1)
        reserved = (await one.store.day_costs("2027-01-15"))["agent/crawler"]
        assert 0.1 <= reserved < 0.2  # durable before the call
        one.service.let_go.set()
        await call
        settled = (await one.store.day_costs("2027-01-15"))["agent/crawler"]
        assert settled == pytest.approx(0.02)


async def test_reservations_of_others_make_a_call_wait_and_only_spent_money_refuses_it(tmp_path: Path) -> None:  # A3
    async with scene(tmp_path, CAP.replace("day: 1", "day: 0.15"), prices=PRICED) as one:
        one.service.hold()
        first, second = asyncio.create_task(one.call(agent="crawler")), asyncio.create_task(one.call(agent="crawler"))
        await one.spin(lambda: one.service.under_way == 1 and one.traffic.desk.waiting("agent/crawler") == 1)
        one.service.let_go.set()
        assert isinstance(await first, ModelReply)
        assert isinstance(await second, ModelReply)


async def test_a_failed_call_that_counted_tokens_is_charged(tmp_path: Path) -> None:  # R3.9
    async with scene(tmp_path, CAP, prices=PRICED) as one:
        one.service.script = [failed(200, usage=Usage(300, 0))]
        await one.call(agent="crawler")
        assert one.traffic.days.spent("agent/crawler") == pytest.approx(0.3)


# --- tasks at once ----------------------------------------------------------------------------------------------------


def test_concurrency_of_agents_labels_and_daemon_counts_tasks() -> None:  # R3.15, A19, A20
    text = 'kind: limits\nrules: [{for: "label/batch=*", concurrency: 2}, {for: daemon, concurrency: 5}]'
    running = [
        ("agent/builder", "label/batch=7"),
        ("agent/builder", "label/batch=7"),
        ("agent/builder", "label/batch=8"),
    ]
    assert seats(policies(text), running) == Seats(2, frozenset({"label/batch=7"}), one_by_one=True)
    assert seats(policies(), running) == Seats()
