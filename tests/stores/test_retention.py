"""What policy keeps no longer goes, in short steps; what is needed stays, and a cut in the middle is finished later."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from harnessd.domain.effect import EffectState
from harnessd.domain.record import AppendNode, ChangeTask, KeepCheckpoint, PlanEffect, RecordEvent, SettleEffect
from harnessd.domain.session import Checkpoint
from harnessd.domain.task import Verb
from harnessd.runtime.upkeep.keeping import Keeping, dry
from harnessd.runtime.workspaces.collecting import Collector
from harnessd.stores import SqlStore
from harnessd.workspace.checkpoints import Checkpoints
from tests.engine.scenery import policy_set
from tests.stores.scenes import NOW, a_task, effect, opened, refused, running, submitted, user

DAY = 86400.0
SHORT = "sessions: 10d\nartifacts: 2d\ncheckpoints: 5d\n"


class Later:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return time.monotonic()


def keeping(store: SqlStore, folder: Path, clock: Later, text: str = SHORT) -> Keeping:
    known = policy_set(f"kind: retention\n{text}")
    collector = Collector(store, Checkpoints(folder / "checkpoints"), lambda: known.retention, clock)
    return Keeping(store, collector, folder / "artefacts", lambda: known.retention, clock, lambda: True)


async def ended(store: SqlStore, folder: Path, nodes: int = 3, **facts: Any) -> str:
    """A task with history, a checkpoint and an artefact, completed at NOW."""
    task, lease = await running(store, **facts)
    above = None
    for number in range(1, nodes + 1):
        await store.record(lease, [AppendNode(user(f"n{number}", above))], NOW)
        above = f"n{number}"
    await store.record(lease, [PlanEffect(effect("e1")), RecordEvent("progress", {"x": 1})], NOW)
    await store.record(lease, [SettleEffect("e1", EffectState.DONE, {"ok": 1})], NOW)
    await store.record(lease, [KeepCheckpoint(Checkpoint("n1", "c1", "ab" * 32, "/w", NOW))], NOW)
    await store.record(lease, [ChangeTask(Verb.COMPLETE, sentence="Done.")], NOW)
    artefact(folder, task.id)
    return task.id


def artefact(folder: Path, task: str, size: int = 10_000) -> Path:
    file = folder / "artefacts" / task / "a.out"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * size)
    return file


async def rows_of(store: SqlStore, task: str) -> int:
    return len(await store.nodes(task)) + len(await store.effects(task)) + len(await store.events(0, task))


async def test_each_thing_goes_after_its_own_time_and_the_dry_run_says_so_before(tmp_path: Path) -> None:  # R6.3
    clock = Later()
    async with opened(tmp_path / "harnessd.db") as store:
        old = await ended(store, tmp_path)
        keeper = keeping(store, tmp_path, clock)
        for days, artefacts, checkpoints, tasks in (
            (1, [], [], []),
            (3, [old], [], []),
            (6, [], [old], []),
            (11, [], [], [old]),
        ):
            clock.at = NOW + days * DAY
            would = dry(await keeper.plan())
            assert [one["task"] for one in would["artefacts"]] == artefacts, days
            assert [one["task"] for one in would["checkpoints"]] == checkpoints, days
            assert [one["task"] for one in would["tasks"]] == tasks, days
            done = await keeper.collect()
            assert {**done, "freed_bytes": 0, "dry_run": True} == {**would, "freed_bytes": 0}
            assert (tmp_path / "artefacts" / old).exists() is (days == 1)
            assert bool(await store.checkpoints(old)) is (days < 6)
        assert refused(await store.find(old)).code == "not_found"
        assert await rows_of(store, old) == 0
        newest = (await store.events(0))[-1]
        assert newest.type == "collected"
        assert (await keeper.plan()).empty


async def test_what_is_needed_stays(tmp_path: Path) -> None:  # R6.3, R3.13
    clock = Later()
    async with opened(tmp_path / "harnessd.db") as store:
        first = await ended(store, tmp_path)
        wanted = await ended(store, tmp_path)
        kept = await ended(store, tmp_path)
        await submitted(store, after=(wanted,))
        live, lease = await running(store, workspace=str(tmp_path / "w"))
        await store.record(lease, [AppendNode(user("n1", None))], NOW)
        a_task(await store.change(kept, NOW, "oncall", {"keep_s": 90 * DAY}))
        for task in (live.id, "9gone9"):
            file = artefact(tmp_path, task)
            os.utime(file, (NOW, NOW))
            os.utime(file.parent, (NOW, NOW))
        clock.at = NOW + 40 * DAY
        done = await keeping(store, tmp_path, clock).collect()
        assert [one["task"] for one in done["tasks"]] == [first]
        assert {path.name for path in (tmp_path / "artefacts").iterdir()} == {wanted, kept, live.id}
        assert await store.checkpoints(kept)
        assert len((await store.history(live.id)).path) == 1
        clock.at = NOW + 91 * DAY
        done = await keeping(store, tmp_path, clock).collect()
        assert [one["task"] for one in done["tasks"]] == [kept]


async def test_outcomes_of_effects_are_kept_a_day_whatever_else_is_said(tmp_path: Path) -> None:  # R3.13
    clock = Later()
    async with opened(tmp_path / "harnessd.db") as store:
        task = await ended(store, tmp_path)
        keeper = keeping(store, tmp_path, clock, "sessions: 1h\nartifacts: 1h\ncheckpoints: 1h\n")
        clock.at = NOW + 23 * 3600
        await keeper.collect()
        assert len(await store.effects(task)) == 1
        clock.at = NOW + 25 * 3600
        await keeper.collect()
        assert await store.effects(task) == []


async def test_a_cut_in_the_middle_is_finished_by_the_next_start(tmp_path: Path) -> None:  # R6.3, I4
    clock = Later()
    async with opened(tmp_path / "harnessd.db") as store:
        task = await ended(store, tmp_path, nodes=40)
        clock.at = NOW + 11 * DAY
        assert await store.forget(task, NOW)
        assert await store.strip(task, 10) > 0
    async with opened(tmp_path / "harnessd.db") as store:
        assert refused(await store.find(task)).code == "not_found"
        keeper = keeping(store, tmp_path, clock)
        assert (await keeper.plan()).orphans == (task,)
        await keeper.collect()
        assert await rows_of(store, task) == 0
        new = await submitted(store, now=clock.at)  # and numbers go on from where they were
        assert (await store.events(0, new.id))[-1].seq > 40


async def test_a_task_that_went_on_meanwhile_is_not_touched(tmp_path: Path) -> None:
    clock = Later()
    async with opened(tmp_path / "harnessd.db") as store:
        task = await ended(store, tmp_path)
        clock.at = NOW + 11 * DAY
        keeper = keeping(store, tmp_path, clock)
        wanted = await keeper.plan()
        a_task(await store.apply(task, Verb.RETRY, clock.at, "oncall"))
        assert [one.id for one in wanted.tasks] == [task]
        assert not await store.forget(task, NOW)
        assert not await store.drop_checkpoints_of(task, NOW)
        assert (await keeper.collect())["tasks"] == []
        assert await store.checkpoints(task)
        assert (tmp_path / "artefacts" / task / "a.out").exists()


async def test_the_oldest_artefacts_go_first_where_all_are_too_large(tmp_path: Path) -> None:  # R6.3
    clock = Later()
    async with opened(tmp_path / "harnessd.db") as store:
        old, new = await ended(store, tmp_path), await ended(store, tmp_path)
        for task in (old, new):
            (tmp_path / "artefacts" / task / "a.out").write_bytes(b"x" * (60 << 20))
        done = await keeping(store, tmp_path, clock, "max_size: {artifacts: 100MiB}\n").collect()
        assert [one["task"] for one in done["artefacts"]] == [old]
        assert done["freed_bytes"] >= 60 << 20
        assert (tmp_path / "artefacts" / new / "a.out").exists()


async def test_no_step_keeps_the_writer_from_others(tmp_path: Path) -> None:
    async with opened(tmp_path / "harnessd.db") as store:
        task = await ended(store, tmp_path, nodes=300)
        assert await store.forget(task, NOW)
        taken = [await store.strip(task, 50) for _ in range(3)]
        assert max(taken) <= 50


async def test_an_event_that_is_too_large_is_told_short(tmp_path: Path) -> None:  # G19
    async with opened(tmp_path / "harnessd.db") as store:
        await store.log("progress", {"sentence": "x" * 3_000_000, "count": 7, "list": ["y" * 10] * 10}, NOW)
        await store.log("progress", {"sentence": "x" * 1_000_000}, NOW)
        short, whole = await store.events(0)
        assert short.data["cut_bytes"] > 3_000_000
        assert len(short.data["sentence"]) == 2_000
        assert short.data["count"] == 7
        assert len(whole.data["sentence"]) == 1_000_000
