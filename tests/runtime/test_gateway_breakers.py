"""Breakers at work: what counts, probes, restarts, hands, and what a caller is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harnessd.domain.failure import Failure
from harnessd.domain.messages import ModelReply, Usage
from harnessd.runtime.traffic.breakers import state_from
from tests.runtime.traffic_scene import Clock, Scene, failed, scene

QUICK = """
kind: breaker
rules: [{for: "model/*", consecutive: 3, failure_rate: none, open: 60s, open_max: 200s, ramp: 0s}]
"""


async def opened(one: Scene) -> None:
    """Three failures in a row."""
    one.service.script = [failed(503), failed(503), failed(529)]
    for _ in range(3):
        await one.call()


def word(one: Scene, name: str = "model/primary") -> str:
    breaker = one.traffic.breakers.find(name)
    return breaker.word if breaker is not None else "none"


async def test_an_open_breaker_answers_at_once_without_an_attempt(tmp_path: Path) -> None:  # R3.5
    async with scene(tmp_path, QUICK) as one:
        await opened(one)
        one.clock.at += 10
        refused = await one.call()
        assert isinstance(refused, Failure)
        assert (refused.source, refused.dependency, refused.code) == ("model", "model/primary", "breaker_open")
        assert refused.retry_after_s == 50
        assert refused.message == (
            "the breaker of model/primary is open for 50s more: 3 failures in a row, last: overloaded (529)"
        )
        assert len(one.service.calls) == 3
        assert isinstance(await one.call("second"), ModelReply)  # each dependency has its own
        assert one.traffic.health("primary").open_for_s == 50
        await one.traffic.breakers.flush()
        (event,) = [event for event in await one.store.events() if event.type == "breaker_opened"]
        assert event.data["why"] == "3 failures in a row, last: overloaded (529)"


async def test_a_good_probe_closes_it_and_says_so(tmp_path: Path) -> None:  # R3.5
    async with scene(tmp_path, QUICK) as one:
        await opened(one)
        one.clock.at += 60
        assert isinstance(await one.call(), ModelReply)
        assert word(one) == "closed"
        assert await one.events() == ["breaker_opened", "breaker_closed"]


async def test_a_failed_probe_opens_it_for_twice_as_long_up_to_the_most(tmp_path: Path) -> None:  # R3.5
    async with scene(tmp_path, QUICK) as one:
        await opened(one)
        since = one.clock.at
        for open_s in (60, 120, 200, 200):
            shut = one.traffic.breakers.shut("model/primary")
            assert shut is not None
            assert shut.wait_s == open_s
            one.clock.at += open_s
            one.service.script = [failed(529)]
            await one.call()
        breaker = one.traffic.breakers.find("model/primary")
        assert breaker is not None
        row = one.traffic.breakers.row(breaker)
        assert (row["state"], row["since"], row["next"]) == ("open", since, "probe in 3m20s, 4 failed")


async def test_half_open_lets_one_through_and_turns_the_others_away(tmp_path: Path) -> None:  # R3.5, c18
    async with scene(tmp_path, QUICK) as one:
        await opened(one)
        one.clock.at += 60
        one.service.hold()
        calls = [asyncio.create_task(one.call()) for _ in range(20)]
        await one.spin(lambda: sum(call.done() for call in calls) == 19)
        assert one.service.under_way == 1
        one.service.let_go.set()
        answers = await asyncio.gather(*calls)
        assert sum(isinstance(answer, ModelReply) for answer in answers) == 1
        assert {answer.code for answer in answers if isinstance(answer, Failure)} == {"breaker_open"}
        assert word(one) == "closed"


@pytest.mark.parametrize("end", ["invalid request", "cancelled", "quota"])
async def test_a_probe_that_says_nothing_of_the_service_cannot_wedge_it(tmp_path: Path, end: str) -> None:
    # R3.5, c17
    async with scene(tmp_path, QUICK) as one:
        await opened(one)
        one.clock.at += 60
        if end == "cancelled":
            one.service.hold()
            probe = asyncio.create_task(one.call())
            await one.spin(lambda: one.service.under_way == 1)
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)
            one.service.let_go.set()
        else:
            one.service.script = [failed(400) if end == "invalid request" else failed(429, code="insufficient_quota")]
            await one.call()
        one.clock.at += 200
        assert isinstance(await one.call(), ModelReply)
        assert word(one) == "closed"


async def test_what_is_not_the_dependencys_fault_counts_neither_way(tmp_path: Path) -> None:  # R3.5
    async with scene(tmp_path, QUICK) as one:
        one.service.script = [failed(503), failed(503), failed(400), failed(400), failed(413), failed(503)]
        for _ in range(5):
            await one.call()
        assert word(one) == "closed"
        await one.call()  # the third 503 in a row: what stood between did not speak for the service
        assert word(one) == "open"


async def test_the_tasks_own_rules_say_what_an_answer_is(tmp_path: Path) -> None:  # R3.5, A22
    text = (
        QUICK + "---\nkind: retry\nrules: [{name: gw-busy, for: model/primary, when: {status: 400}, class: overloaded}]"
    )
    async with scene(tmp_path, text) as one:
        one.service.script = [failed(400)] * 3
        for _ in range(3):
            await one.call()
        assert word(one) == "open"


async def test_slow_answers_count_as_failed_where_policy_says_so(tmp_path: Path) -> None:  # R3.5, A1
    text = QUICK.replace("ramp: 0s", "ramp: 0s, slow_over: 60s")
    async with scene(tmp_path, text) as one:
        for _ in range(3):
            one.service.hold()
            call = asyncio.create_task(one.call())
            await one.spin(lambda: one.service.under_way == 1)
            one.clock.at += 61
            one.service.let_go.set()
            assert isinstance(await call, ModelReply)
        assert word(one) == "open"
        assert one.traffic.breakers.row(next(iter(one.traffic.breakers.all())))["why"].endswith("slower than 1m")


async def test_it_stays_open_over_a_restart(tmp_path: Path) -> None:  # R3.5, R6.2
    clock = Clock()
    async with scene(tmp_path, QUICK, clock=clock) as one:
        await opened(one)
    clock.at += 20
    async with scene(tmp_path, QUICK, clock=clock) as one:
        refused = await one.call()
        assert isinstance(refused, Failure)
        assert refused.retry_after_s == 40


async def test_counts_survive_a_restart_too_and_a_lost_probe_is_forgotten(tmp_path: Path) -> None:  # R3.5
    clock = Clock()
    async with scene(tmp_path, QUICK, clock=clock) as one:
        one.service.script = [failed(503), failed(503)]
        await one.call()
        await one.call()
    async with scene(tmp_path, QUICK, clock=clock) as one:
        one.service.script = [failed(503)]
        await one.call()
        assert word(one) == "open"
        clock.at += 60
        one.service.hold()
        lost = asyncio.create_task(one.call())
        await one.spin(lambda: one.service.under_way == 1)
        await one.traffic.breakers.flush()
        kept = {stored.name: stored for stored in await one.store.breakers()}
        assert kept["model/primary"].state["probing"] == 1
        one.service.let_go.set()
        await lost
        await one.traffic.breakers.flush()
        await one.store.save_breakers([kept["model/primary"]], clock.at)  # as a crash leaves it
        await one.traffic.breakers.load()
        assert isinstance(await one.call(), ModelReply)


def test_a_stored_state_that_cannot_be_read_begins_anew() -> None:
    assert state_from({"phase": "ajar"}) is None
    assert state_from({"window": [[1]]}) is None
    kept = state_from({"phase": "open", "window": [[1, 2, 3]], "of_a_later_version": 1})
    assert kept is not None
    assert kept.window == ((1, 2, 3),)


async def test_counts_are_written_about_once_a_second_and_a_transition_at_once(tmp_path: Path) -> None:  # R3.5
    async with scene(tmp_path, QUICK) as one:
        keeping = asyncio.create_task(one.traffic.breakers.keep())
        one.service.script = [failed(503), failed(503), failed(503)]
        await one.call()
        await asyncio.sleep(0.05)
        assert await one.store.breakers() == []
        await one.call()
        await one.call()
        async with asyncio.timeout(0.9):
            while not (found := await one.store.breakers()):
                await asyncio.sleep(0.01)
        assert found[0].state["phase"] == "open"
        keeping.cancel()


async def test_tripped_by_hand_it_stays_open_for_its_time_and_reset_closes_it(tmp_path: Path) -> None:  # A1
    async with scene(tmp_path, QUICK) as one:
        one.traffic.breakers.trip("model/primary", 7200, "oncall", "status page 4711")
        one.clock.at += 7000
        refused = await one.call()
        assert isinstance(refused, Failure)
        assert refused.retry_after_s == 200
        assert refused.message.endswith('open for 3m20s more: by oncall: "status page 4711"')
        assert word(one) == "tripped"
        one.traffic.breakers.reset("model/primary", "oncall")
        assert isinstance(await one.call(), ModelReply)
        assert await one.events() == ["breaker_opened", "breaker_closed"]


async def test_those_in_line_are_told_when_it_opens(tmp_path: Path) -> None:  # R3.5
    text = QUICK + "---\nkind: limits\nrules: [{for: model/primary, concurrency: 1}]"
    async with scene(tmp_path, text) as one:
        one.service.hold()
        first, second = asyncio.create_task(one.call()), asyncio.create_task(one.call())
        await one.spin(lambda: one.service.under_way == 1 and one.traffic.desk.waiting("model/primary") == 1)
        one.traffic.breakers.trip("model/primary", 60, "oncall", "")
        answer = await asyncio.wait_for(second, 5)
        assert isinstance(answer, Failure)
        assert answer.code == "breaker_open"
        one.service.let_go.set()
        assert isinstance(await first, ModelReply)


async def test_after_an_outage_concurrency_grows_back(tmp_path: Path) -> None:  # R3.2a, R3.16
    text = QUICK.replace("ramp: 0s", "ramp: 60s") + "---\nkind: limits\nrules: [{for: model/primary, concurrency: 4}]"
    async with scene(tmp_path, text) as one:
        await opened(one)
        one.clock.at += 60
        await one.call()
        one.service.hold()
        calls = [asyncio.create_task(one.call()) for _ in range(6)]
        for after_s, admitted in ((1, 1), (20, 2), (20, 3), (20, 4)):
            one.clock.at += after_s
            one.traffic.desk.look()
            await one.spin(lambda count=admitted: one.service.under_way == count)  # type: ignore[misc]
        one.service.let_go.set()
        await asyncio.gather(*calls)


async def test_the_median_time_to_the_first_event_is_known(tmp_path: Path) -> None:  # R3.16
    async with scene(tmp_path) as one:
        assert one.traffic.health("primary").median_first_event_s is None
        one.service.script = [Usage(1, 1)] * 3
        for _ in range(3):
            await one.call()
        found = one.traffic.health("primary").median_first_event_s
        assert found is not None
        assert 0 <= found < 1
        one.clock.at += 1000
        assert one.traffic.health("primary").median_first_event_s is None  # too long ago to say anything
