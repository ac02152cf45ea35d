"""kill -9 inside checkpoints and rollbacks of random trees: exactly A or exactly B, and the record says which.

The record is the real one: a task in a store, its checkpoints as rows, its rollbacks carried out by the daemon's own
code. Whoever opens the store after the crash reads there which of the two trees the workspace is, or that a rollback
is under way; the next life ends it by itself.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harnessd.domain.ports import Refused, TaskFilter
from harnessd.domain.record import AppendNode, ChangeTask, KeepCheckpoint, Record
from harnessd.domain.session import Checkpoint
from harnessd.domain.task import Lease, StopReason, Verb
from harnessd.runtime.daemon import WallClock
from harnessd.runtime.rollbacks.carrying import Hands
from harnessd.runtime.rollbacks.desk import Rollbacks
from harnessd.runtime.rollbacks.targets import Wish
from harnessd.stores import SqlStore
from harnessd.workspace.checkpoints import Checkpoints
from tests.stores.scenes import NOW, assistant, opened, running, user
from tests.workspace.killing import NOBODY, Lived, fork, here, mark
from tests.workspace.trees import SCRATCH, Known, look, trees, turn_into

# 30 in every run of the tests; `make trees` asks for more.
KILLS = int(os.environ.get("HARNESSD_KILLS", "30"))
CUTS = 5  # of one pair of trees
TREES = trees(large=KILLS > 100)
ROOT_USER = os.geteuid() == 0

SEEN: Counter[str] = Counter()
Life = Callable[[SqlStore, Checkpoints], Awaitable[Any]]
Cut = tuple[str, float, float | None]
Said = tuple[str, str]

cuts = st.tuples(
    st.sampled_from(["inside", "inside", "change", "moment"]),
    st.floats(0, 1),  # where in a rollback
    st.one_of(st.none(), st.floats(0, 1)),  # and where in the life that carries it on
)
many = settings(
    max_examples=max(1, KILLS // CUTS),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    phases=[Phase.explicit, Phase.generate],  # a fault that hangs on a moment is not made smaller by trying again
)


class NoJobs:
    """A task that left nothing running."""

    async def end_task(self, task: str) -> int:
        del task
        return 0

    def running(self, task: str) -> tuple[str, ...]:
        del task
        return ()


async def _no_tool(*_: Any) -> Any:
    pytest.fail("no undo was chosen")


def readable(tree: dict[bytes, Any]) -> dict[bytes, Any]:
    """The same, but what a folder's owner may always read: nothing is left out for being unreadable."""
    found: dict[bytes, Any] = {}
    for name, node in tree.items():
        match node:
            case ("file", data, mode):
                found[name] = ("file", data, mode | 0o400)
            case ("folder", below, mode):
                found[name] = ("folder", readable(below), mode | 0o500)
            case _:
                found[name] = node
    return found


def _decided(point: str) -> None:
    if point == "J16-before":
        mark()


async def said(store: SqlStore) -> Said:
    """What the record says of the task: state and pointer."""
    (task,) = await store.list(TaskFilter())
    return task.state.value, str(task.pointer)


@dataclass
class World:
    """A workspace, a store and checkpoints in one folder. Everything that touches them runs in a child."""

    folder: Path
    as_nobody: bool
    forks: bool = True
    lease: Lease | None = None

    @property
    def root(self) -> Path:
        return self.folder / "ws"

    def _run(self, work: Callable[[], Any], **death: Any) -> Lived:
        return fork(work, as_nobody=self.as_nobody, **death) if self.forks else here(work)

    def live(self, life: Life, **death: Any) -> Lived:
        """One life of a daemon, as far as this workspace is concerned: store and room opened, work, the end."""

        async def whole() -> Any:
            async with opened(self.folder / "db" / "harnessd.db") as store:
                with closing(Checkpoints(self.folder / "state")) as room:
                    return await life(store, room)

        return self._run(lambda: asyncio.run(whole()), **death)

    def become(self, tree: dict[bytes, Any]) -> Known:
        """Another tree, made by whom the workspace belongs to."""
        self._run(lambda: turn_into(self.root, tree))
        return look(self.root)

    def begin(self) -> None:
        """A task that works in the workspace, and its first node."""

        async def life(store: SqlStore, _: Checkpoints) -> Lease:
            _task, lease = await running(store, workspace=str(self.root))
            await store.record(lease, [AppendNode(user("n1", None))], NOW)
            return lease

        self.lease = self.live(life).gave

    def take(self, ref: str, node: str, *after: Record, **death: Any) -> Lived:
        """A checkpoint and its row, as around a call that can write."""

        async def life(store: SqlStore, room: Checkpoints) -> None:
            assert self.lease is not None
            mark()
            taken = room.take(str(self.root))
            one = Checkpoint(node, ref, taken.manifest, taken.root, NOW, "after", taken.changed, 0)
            await store.record(self.lease, [*after, KeepCheckpoint(one)], NOW)

        return self.live(life, **death)

    def rows(self) -> dict[str, str]:
        """What the record says: manifests by the name of their checkpoint."""

        async def life(store: SqlStore, _: Checkpoints) -> dict[str, str]:
            (task,) = await store.list(TaskFilter())
            return {one.ref: one.manifest for one in await store.checkpoints(task.id)}

        rows: dict[str, str] = self.live(life).gave
        return rows

    def carry_on(self, to: str = "", **death: Any) -> Lived:
        """A daemon starts, ends what a crash cut off, and takes the task to a node if one is wished for.

        Gives what the record said when it came, and what it says when it goes.
        """

        async def life(store: SqlStore, room: Checkpoints) -> tuple[Said, Said]:
            found = await said(store)
            desk = Rollbacks(store, room, NoJobs(), WallClock(), Hands(_no_tool, lambda: None, _decided))
            await desk.begin()
            if to:
                (task,) = await store.list(TaskFilter())
                answer = await desk.wanted(task, Wish(to=to), "a test", dry=False)
                assert not isinstance(answer, Refused), answer
                assert answer[1] is None, answer
                assert answer[0]["rolled_back"], answer
            return found, await said(store)

        return self.live(life, **death)

    def stop(self) -> None:
        """The task ends."""

        async def life(store: SqlStore, _: Checkpoints) -> None:
            assert self.lease is not None
            await store.record(self.lease, [ChangeTask(Verb.STOP, reason=StopReason.ERROR)], NOW)

        self.live(life)

    def put_back(self, manifest: str, rows: set[str]) -> None:
        """What no row names is thrown away, and a checkpoint is put back."""

        def life() -> None:
            with closing(Checkpoints(self.folder / "state")) as room:
                now = room.take(str(self.root)).manifest
                room.collect({str(self.root): {*rows, now}}, grace_s=0)
                assert room.restore(str(self.root), manifest, now, "t").state == "done"

        self._run(life)


@contextmanager
def world(first: dict[bytes, Any], *, as_nobody: bool, forks: bool = True) -> Iterator[World]:
    with tempfile.TemporaryDirectory(dir=SCRATCH, prefix="kills-") as folder:
        one = World(Path(folder), as_nobody and ROOT_USER, forks)
        one.root.mkdir()
        if one.as_nobody:
            os.chown(folder, NOBODY, NOBODY)
            os.chown(one.root, NOBODY, NOBODY)
        one.become(first)
        one.begin()
        yield one


def death_of(how: str, where: float, whole: Lived) -> dict[str, Any]:
    """SIGKILL before a change (of the work alone, or of the whole life), or at a moment.

    `whole` is a life that did the same and was not killed.
    """
    if how == "moment":
        return {"after_s": where * whole.lasted_s}
    begins = whole.marked if how == "inside" else 0
    return {"before": 1 + begins + int(where * (whole.changes - begins))}


@pytest.fixture(scope="module", autouse=True)
def tally() -> Iterator[Counter[str]]:
    """What was seen; `make trees` shows it. First one world in this process, so that forks find everything loaded."""
    with world({b"a": ("file", b"a", 0o644)}, as_nobody=False, forks=False) as one:
        one.take("c1", "n1")
        one.become({b"\xff": ("file", b"", 0o644)})
        one.take("c2", "n1")
        one.stop()
        one.carry_on("n1")
        for name in ("utf-16-le", "unicode_escape"):
            codecs.lookup(name)  # loaded where a name is no text
        one.put_back((rows := one.rows())["c1"], set(rows.values()))
    yield SEEN
    print("\n" + ", ".join(f"{count} {what}" for what, count in sorted(SEEN.items())))


# R5.3: most daemons do not run as root, and what a folder's mode forbids, its owner cannot do at once.
def test_nested_and_locked_folders_come_back_to_a_user_who_is_not_root() -> None:
    locked = {b"f": ("folder", {b"x": ("file", b"x", 0o400), b"y": ("folder", {b"z": ("link", b"x")}, 0o500)}, 0o555)}
    tree = {b"a": ("folder", {b"b": ("folder", {b"c": ("file", b"c", 0o644), **locked}, 0o755)}, 0o700)}
    with world(tree, as_nobody=True) as one:
        there = look(one.root)
        one.take("c1", "n1")
        gone = one.become({})
        one.take("c2", "n1")
        rows = one.rows()
        for ref, wanted in (("c1", there), ("c2", gone)):
            one.put_back(rows[ref], set(rows.values()))
            assert look(one.root) == wanted


# R5.2, R5.3, I6, J16: between any two changes of a rollback, and in the life that carries it on.
@many
@given(first=TREES, second=TREES, kills=st.lists(cuts, min_size=CUTS, max_size=CUTS), as_nobody=st.booleans())
def test_a_rollback_that_is_cut_off_anywhere_is_one_tree_or_the_other(
    first: dict[bytes, Any], second: dict[bytes, Any], kills: list[Cut], as_nobody: bool
) -> None:
    if as_nobody:
        first, second = readable(first), readable(second)
    with world(first, as_nobody=as_nobody) as one:
        sides = {"n1": look(one.root)}
        one.take("c1", "n1")
        sides["n2"] = one.become(second)
        one.take("c2", "n2", AppendNode(assistant("n2", "n1")))
        one.stop()
        whole = one.carry_on("n1", counted=True)
        assert whole.gave[1] == ("paused", "n1")
        assert look(one.root) == sides["n1"]
        for how, where, again in kills:
            target = "n2" if whole.gave[1][1] == "n1" else "n1"
            SEEN["rollbacks killed"] += one.carry_on(target, **death_of(how, where, whole)).killed
            left = look(one.root)
            if again is not None:
                SEEN["lives killed that carry one on"] += one.carry_on(**death_of(how, again, whole)).killed
            now = one.carry_on()
            (state, pointer), after = now.gave
            SEEN[f"found {state}"] += 1
            if state != "rolling_back":
                assert after == (state, pointer)
                assert again is not None or left == sides[pointer]
            elif again is None:
                assert after == ("paused", target)
            assert look(one.root) == sides[after[1]]
            whole = replace(whole, gave=now.gave)


# R5.3, J15: contents without a row are rubbish that does no harm; a row is a tree, whole.
@many
@given(pair=st.tuples(TREES, TREES), kills=st.lists(cuts, min_size=CUTS, max_size=CUTS), as_nobody=st.booleans())
def test_a_checkpoint_that_is_cut_off_anywhere_is_there_whole_or_not_at_all(
    pair: tuple[dict[bytes, Any], dict[bytes, Any]], kills: list[Cut], as_nobody: bool
) -> None:
    if as_nobody:
        pair = readable(pair[0]), readable(pair[1])
    with world(pair[0], as_nobody=as_nobody) as one:
        looked = {"c1": look(one.root)}
        whole = one.take("c1", "n1", counted=True)
        for number, (how, where, _) in enumerate(kills):
            tree = pair[1 - number % 2] | {b"fresh": ("file", b"%d" % number * 3000, 0o644)}
            looked[ref := f"c{number + 2}"] = one.become(tree)
            SEEN["checkpoints killed"] += one.take(ref, "n1", **death_of(how, where, whole)).killed
            assert look(one.root) == looked[ref]
        rows = one.rows()
        SEEN["checkpoints found"] += len(rows) - 1
        for ref, manifest in rows.items():
            one.put_back(manifest, set(rows.values()))
            assert look(one.root) == looked[ref], ref
