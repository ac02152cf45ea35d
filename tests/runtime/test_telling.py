"""Telling: incidents, reminders, ends and channels, by rules of policy and a clock in the test's hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessd.domain.durable.outbox import Alert, Delivery, Notifier, Outgoing, Told
from harnessd.domain.ports import Refused
from harnessd.domain.record import StoredEvent
from harnessd.domain.task import Task, TaskDraft, TaskState
from harnessd.policy.notify import NotifyPolicy
from harnessd.runtime.telling.courier import OPENS_AFTER, Courier
from harnessd.runtime.telling.ledger import Ledger
from harnessd.runtime.telling.teller import Teller
from harnessd.runtime.telling.words import duration, placeholders
from tests.policy.written import policy
from tests.stores.scenes import opened, submitted

NOW = 1_800_000_000.0
HOUR = 3600.0
# A2
LOUDER = """
kind: notify
channels: {ops: {log: info}, pager: {command: [/opt/page/send, agents]}}
rules:
  - {when: {event: [credential_dead, degraded], lasting: 4h}, to: [ops, pager], again_after: 1h}
  - {when: {event: [credential_dead, degraded]}, to: [ops], again_after: 12h}
  - {for: agent/crawler, to: []}
  - {to: [ops]}
"""


@dataclass
class Scene:
    """A ledger, and the number of the last event."""

    policy: NotifyPolicy = field(default_factory=lambda: policy("notify", LOUDER))
    lasts: bool = True
    down: set[str] = field(default_factory=set)
    seq: int = 0
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(lambda: self.policy, lambda _: self.lasts, self.down.__contains__)

    def event(self, type_: str, at: float = NOW, task: str | None = None, agent: str = "coder", **data: Any) -> None:
        self.seq += 1
        data |= {"class": data.pop("class_")} if "class_" in data else {}
        row = Task(task, TaskDraft("Do it", agent, ""), TaskState.RUNNING, NOW) if task else None
        self.ledger.take(StoredEvent(self.seq, at, task, None, type_, data, 7), row, at)

    def told(self) -> list[tuple[str, str, str]]:
        """Channel, event and state of what was told since the last look."""
        written = self.ledger.written(self.seq)
        alerts: tuple[Outgoing, ...] = tuple(written.alerts) if written else ()
        return [(one.channel, one.alert["event"], one.alert["state"]) for one in alerts]

    def at(self, at: float) -> list[tuple[str, str, str]]:
        self.ledger.look(at)
        return self.told()


def test_one_incident_is_one_message_and_louder_with_time() -> None:
    # R3.4: again while it lasts, to more people after hours, although nothing new happens
    scene = Scene()
    scene.event("degraded", task="t1", dependency="model/primary", link="model/second")
    assert scene.told() == [("ops", "degraded", "new")]
    for second in range(1, 50):
        scene.event("degraded", NOW + second, task="t1", dependency="model/primary")
    assert scene.told() == []
    assert round((scene.ledger.next_at or 0) - NOW) == 4 * HOUR  # before `again_after`: another rule fits then
    assert scene.at(NOW + 4 * HOUR + 0.01) == [("pager", "degraded", "still"), ("ops", "degraded", "still")]
    assert scene.at(NOW + 4.5 * HOUR) == []
    assert scene.at(NOW + 5 * HOUR + 0.02) == [("ops", "degraded", "still"), ("pager", "degraded", "still")]
    scene.event("recovered", NOW + 6 * HOUR, task="t1", dependency="model/primary")
    assert scene.told() == [("ops", "recovered", "ended"), ("pager", "recovered", "ended")]
    assert scene.ledger.next_at is None
    scene.event("recovered", NOW + 6 * HOUR, task="t2", dependency="model/primary")
    assert scene.told() == []


def test_other_dependency_or_class_is_another_incident() -> None:
    scene = Scene()
    scene.event("outage_started", task="t1", dependency="model/a", class_="overloaded")
    scene.event("outage_started", task="t2", dependency="model/a", class_="overloaded")
    scene.event("outage_started", task="t3", dependency="model/b", class_="overloaded")
    scene.event("outage_started", task="t3", dependency="model/b", class_="network")
    assert len(scene.told()) == 3


def test_an_outage_ends_with_an_answer_or_with_the_last_task_that_waits() -> None:
    scene = Scene()
    for task in ("t1", "t2"):
        scene.event("outage_started", task=task, dependency="model/a")
    scene.event("outage_ended", task="t1", dependency="model/a", answered=False)
    assert scene.told() == [("ops", "outage_started", "new")]
    scene.event("task_stopped", task="t2", reason="aborted")
    assert scene.told() == [("ops", "outage_ended", "ended"), ("ops", "task_stopped", "new")]


def test_a_dead_key_is_one_incident_until_its_dependency_answers() -> None:
    scene = Scene()
    for task in ("t1", "t2"):
        scene.event("credential_dead", task=task, dependency="model/a", sentence="model/a takes the key no longer.")
    scene.event("task_completed", task="t1")
    assert scene.told() == [("ops", "credential_dead", "new")]
    scene.event("recovered", task="t2", dependency="model/b")
    scene.event("recovered", task="t2", dependency="model/a")
    assert scene.told() == [("ops", "recovered", "ended")]


def test_a_question_is_told_once_and_its_answer_to_the_same_channels() -> None:
    scene = Scene()
    scene.event("approval_wanted", task="t1", question="a1", kind="approval", sentence="bash rm needs approval")
    scene.event("needs_human", task="t1", waits_for="approval", why="bash rm needs approval")
    scene.event("approval_wanted", task="t1", question="a2", kind="approval", sentence="bash mv needs approval")
    assert scene.told() == [("ops", "approval_wanted", "new")]
    assert scene.at(NOW + HOUR) == [("ops", "approval_wanted", "still")]
    scene.event("answered", NOW + HOUR, task="t1", question="a1", choice="allow", by="ann")
    assert scene.told() == []
    scene.event("answered", NOW + HOUR, task="t1", question="a2", choice="deny", by="ann")
    assert scene.told() == [("ops", "answered", "ended")]


def test_what_has_no_end_is_told_again_only_if_it_happened_again() -> None:
    scene = Scene()
    scene.event("internal_error", fault="KeyError")
    for second in range(30):
        scene.event("internal_error", NOW + second, fault="KeyError")
    assert scene.told() == [("ops", "internal_error", "new")]
    assert scene.at(NOW + HOUR) == [("ops", "internal_error", "still")]
    assert scene.at(NOW + 2 * HOUR) == []
    assert scene.ledger.next_at is None
    scene.event("task_stopped", task="t1", reason="error")
    scene.event("resumed", task="t1")
    scene.event("task_stopped", task="t1", reason="error")
    assert scene.told() == [("ops", "task_stopped", "new")] * 2


def test_rules_choose_and_nobody_is_nobody() -> None:
    scene = Scene()
    scene.event("task_stopped", task="t1", agent="crawler", reason="error")
    assert scene.told() == []


def test_a_channel_that_is_down_gets_no_reminders_and_never_hears_of_itself() -> None:
    # F39: what waits is bounded however long a target is away
    scene = Scene()
    scene.event("breaker_opened", dependency="model/a", why="10 failures in a row")
    scene.told()
    scene.down.add("ops")
    for hour in range(1, 200):
        assert scene.at(NOW + hour * HOUR) == []
    scene.event("notify_failed", NOW + 200 * HOUR, dependency="notify/ops", sentence="no")
    assert scene.told() == []
    scene.event("breaker_closed", NOW + 201 * HOUR, dependency="model/a")
    assert scene.told() == [("ops", "breaker_closed", "ended")]


def test_what_no_event_ends_is_asked_before_a_reminder() -> None:
    scene = Scene()
    scene.event("policy_invalid", count=2, stays=7, first="limits.yaml:2:5 no such key")
    assert scene.told() == [("ops", "policy_invalid", "new")]
    scene.lasts = False
    assert scene.at(NOW + HOUR) == []
    assert scene.ledger.next_at is None


def test_other_rules_reach_what_lasts_already() -> None:
    scene = Scene()
    scene.event("breaker_opened", dependency="model/a", why="w")
    scene.told()
    scene.policy = policy("notify", LOUDER.replace("{to: [ops]}", "{to: [ops, pager]}"))
    scene.ledger.look(NOW + 60, anew=True)
    assert scene.told() == [("pager", "breaker_opened", "still")]


def test_words_for_people() -> None:
    scene = Scene()
    scene.event(
        "task_stopped", NOW, "t1", reason="error", sentence="It failed.", next_steps=[["harnessctl", "retry", "t1"]]
    )
    written = scene.ledger.written(1)
    assert written is not None
    alert = written.alerts[0].alert
    assert (alert["title"], alert["sentence"]) == ("harnessd: task t1 stopped: error", "It failed.")
    assert (alert["next"], alert["agent"], alert["count"]) == ("harnessctl retry t1", "coder", 1)
    words = placeholders({**alert, "labels": {"team": "web"}, "lasting": 4 * HOUR + 300})
    assert (words["labels"], words["lasting"], words["at"]) == ("team=web", "4h 5m", "2027-01-15T08:00:00+00:00")
    assert [duration(seconds) for seconds in (0, 59, 3600, 90061)] == ["0s", "59s", "1h", "1d 1h"]


# --- with a real store ------------------------------------------------------------------------------------------------


@dataclass
class Hand:
    """A clock that the test moves."""

    at: float = NOW

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


@dataclass
class Target:
    """The world's edge: what it answers is the test's."""

    well: bool = True
    got: list[Alert] = field(default_factory=list)

    async def deliver(self, alert: Alert) -> Delivery:
        self.got.append(alert)
        return Delivery(self.well, "ok" if self.well else "status 500")


async def soon(true: Any) -> None:
    async with asyncio.timeout(10):
        while not await true():
            await asyncio.sleep(0.01)


async def test_events_of_a_store_are_told_also_those_from_before_a_crash(tmp_path: Path) -> None:
    # J20
    path, rules = tmp_path / "harnessd.db", policy("notify", LOUDER)
    async with opened(path) as store:
        task = await submitted(store)
        await store.log("breaker_opened", {"dependency": "model/a", "why": "w"}, NOW)
    for start in (1, 2):
        async with opened(path) as store:
            teller = Teller(store, Ledger(lambda: rules), Hand(), lambda: None)
            work = asyncio.create_task(teller.run())

            async def there(count: int = start) -> bool:
                return len(await store.outbox()) == count

            if start == 2:
                await store.log("breaker_closed", {"dependency": "model/a", "why": "a probe succeeded"}, NOW + 60)
            await soon(there)
            work.cancel()
            assert len(await store.incidents()) == 2 - start
            assert (await store.outbox())[-1].alert["event"] == ("breaker_opened", "breaker_closed")[start - 1]
    assert task.id


async def test_a_channel_has_its_own_breaker_and_the_failure_is_one_event(tmp_path: Path) -> None:
    # F39, policies.md notify: failed deliveries are retried from an outbox and are an event themselves
    ops, pager, clock = Target(well=False), Target(), Hand()
    targets: Mapping[str, Notifier] = {"ops": ops, "pager": pager}

    def notifier(name: str) -> Notifier | Refused:
        return targets.get(name) or Refused("not_found", f"There is no channel {name}")

    async with opened(tmp_path / "harnessd.db") as store:
        alerts = [Outgoing("ops", {"key": f"k{n}", "event": "drained"}) for n in range(10)]
        alerts += [
            Outgoing("pager", {"key": "k0", "event": "drained"}),
            Outgoing("gone", {"key": "k0", "event": "drained"}),
        ]
        await store.tell(Told(0, (), (), tuple(alerts)), NOW)
        courier = Courier(store, notifier, clock)
        work = asyncio.create_task(courier.run())

        async def failed() -> bool:
            return [entry.tries for entry in await store.outbox()] == [1] * OPENS_AFTER + [0] * (10 - OPENS_AFTER)

        await soon(failed)
        assert len(pager.got) == 1
        events = [(event.type, event.data["dependency"]) for event in await store.events()]
        assert sorted(events) == [("notify_failed", "notify/gone"), ("notify_failed", "notify/ops")]
        for _ in range(5):  # open: nobody is tried, whoever rings
            courier.wake()
            await asyncio.sleep(0.02)
        assert len(ops.got) == OPENS_AFTER
        clock.at += 1000
        courier.wake()

        async def probed() -> bool:
            return len(ops.got) == OPENS_AFTER + 1

        await soon(probed)
        ops.well, clock.at = True, clock.at + 2000
        courier.wake()

        async def empty() -> bool:
            return not await store.outbox()

        await soon(empty)
        assert {alert["key"] for alert in ops.got} == {f"k{n}" for n in range(10)}
        assert len(await store.events()) == 2
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_what_cannot_be_delivered_for_a_week_is_given_up(tmp_path: Path) -> None:
    ops, clock = Target(well=False), Hand(NOW + 8 * 86400)
    async with opened(tmp_path / "harnessd.db") as store:
        await store.tell(Told(0, (), (), (Outgoing("ops", {"key": "k", "event": "notify_failed"}),)), NOW)
        await store.tell(Told(0, (), (), (Outgoing("ops", {"key": "l", "event": "drained"}),)), NOW)
        work = asyncio.create_task(Courier(store, lambda _: ops, clock).run())

        async def empty() -> bool:
            return not await store.outbox()

        await soon(empty)
        (event,) = await store.events()  # none about the message that tells of a failed delivery
        assert "given up" in event.data["sentence"]
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
