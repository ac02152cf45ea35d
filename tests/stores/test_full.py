"""A full disk: said plainly, nothing half-written, and it goes on by itself once there is room."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harnessd.domain.effect import EffectState
from harnessd.domain.failure import HarnessError, StorageFull
from harnessd.domain.ports import Submitted, TaskFilter
from harnessd.domain.record import AppendNode, PlanEffect, SettleEffect
from harnessd.domain.task import Lease
from harnessd.stores import SqlStore
from tests.stores.scenes import NOW, draft, effect, opened, result, running, submitted, user

BIG = "x" * 20_000


async def fill(store: SqlStore, lease: Lease) -> int:
    """Append nodes with their effects until one is refused; give how many were acknowledged."""
    parent = None
    for n in range(1, 100_000):
        intent, node = PlanEffect(effect(f"e{n}", node=f"n{n}")), AppendNode(user(f"n{n}", parent, BIG))
        try:
            await store.record(lease, [intent, node, SettleEffect(f"e{n}", EffectState.DONE)], NOW)
        except StorageFull:
            return n - 1
        parent = f"n{n}"
    raise AssertionError("the disk never became full")


async def whole(store: SqlStore, task: str, count: int) -> None:
    """What is there is exactly what was acknowledged."""
    assert [node.id for node in await store.nodes(task)] == [f"n{n}" for n in range(1, count + 1)]
    assert [one.id for one in await store.effects(task)] == [f"e{n}" for n in range(1, count + 1)]
    assert await store.verify(task) is None


async def test_a_limit_on_pages_fails_who_is_too_big_and_nobody_else(tmp_path: Path) -> None:  # e01, F10, G11
    async with opened(tmp_path / "harnessd.db", pragmas=("PRAGMA max_page_count = 120",)) as store:
        task, lease = await running(store)
        other, other_lease = await running(store)
        count = await fill(store, lease)
        assert 0 < count < 30
        await whole(store, task.id, count)
        small, big = await asyncio.gather(
            store.record(other_lease, [AppendNode(user("n1", None, "small"))], NOW),
            store.record(lease, [AppendNode(user("big", f"n{count}", BIG * 5))], NOW),
            return_exceptions=True,
        )
        assert small is None
        assert isinstance(big, StorageFull)
        assert "nothing of this step was written" in big.sentence
        assert big.remedy
        assert [node.id for node in await store.nodes(other.id)] == ["n1"]
        writer = store._database._writer  # type: ignore[attr-defined]
        await writer.hop(lambda connection: connection.execute("PRAGMA max_page_count = 100000").fetchall())
        await store.record(lease, [AppendNode(result("after", f"n{count}", "c1"))], NOW)
        assert (await store.history(task.id)).path[-1].id == "after"
    async with opened(tmp_path / "harnessd.db") as store:
        assert await store.verify(task.id) is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 600 KB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this user cannot mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_real_disk_that_fills_up_and_is_freed_again(small_disk: Path) -> None:  # e01, F10, G11
    async with opened(small_disk / "harnessd.db") as store:
        task, lease = await running(store)
        count = await fill(store, lease)
        await whole(store, task.id, count)
        answers = await asyncio.gather(
            *(store.submit(draft("y" * 50_000), NOW) for _ in range(5)), return_exceptions=True
        )
        assert {type(answer) for answer in answers} == {StorageFull}
        subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
        await store.record(lease, [AppendNode(user("after", f"n{count}" if count else None))], NOW)
        assert isinstance(await store.submit(draft(), NOW), Submitted)
    async with opened(small_disk / "harnessd.db") as store:
        assert await store.verify(task.id) is None
        assert len(await store.nodes(task.id)) == count + 1
        assert len(await store.list(TaskFilter())) == 2


async def test_a_disk_without_room_for_a_store_is_one_sentence(small_disk: Path) -> None:  # I10
    (small_disk / "ballast").write_bytes(bytes(590_000))
    with pytest.raises(HarnessError) as caught:
        async with opened(small_disk / "harnessd.db"):
            pass
    assert caught.value.remedy
    (small_disk / "ballast").unlink()
    async with opened(small_disk / "harnessd.db") as store:
        await submitted(store)


LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from harnessd.domain.failure import StorageFull
from tests.stores.scenes import opened, draft, submitted, NOW
async def main():
    async with opened(Path(sys.argv[1])) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, resource.RLIM_INFINITY))
        done = 0
        try:
            while True:
                await submitted(store, "z" * 20_000)
                done += 1
        except StorageFull as full:
            print(done, full)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await submitted(store)
        assert (await store.counts())["queued"] == done + 1, (done, await store.counts())
        print("went on")
asyncio.run(main())
"""


async def test_a_limit_on_file_sizes_is_a_full_disk_too(tmp_path: Path) -> None:  # F10
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", LIMITED, str(tmp_path / "harnessd.db")],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "There is no room left" in done.stdout
    assert done.stdout.endswith("went on\n")
