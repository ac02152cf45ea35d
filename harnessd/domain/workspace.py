"""Workspace: checkpoints of the files a task works on: what is known of one, what differs, what a restore did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from harnessd.domain.session import Checkpoint

RestoreState = Literal["planned", "refused", "done", "reverted", "disturbed", "stuck"]
Touches = Literal["nothing", "path", "anything"]  # what of a workspace a tool may write; `path`: of its argument
ChangeKind = Literal["added", "changed", "deleted", "mode", "type", "uncovered"]


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A name that no checkpoint holds, and why: it is never deleted. Lone surrogates stand for bytes of no UTF-8."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class TakenCheckpoint:
    """What a look at a workspace gave. It counts once `manifest` stands in a row.

    `files` and `uncovered` are None where nothing changed since the last one: they are as they were. `stored` are the
    bytes written; `read_files` how many files had to be read; `notes` are sentences for people.
    """

    manifest: str
    changed: int
    root: str = ""  # the workspace's path, its links resolved: what a row says, and what `collect` asks for
    files: int | None = None
    stored: int = 0
    read_files: int = 0
    uncovered: tuple[Uncovered, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkspaceChange:
    """One path that differs; `plus` and `minus` count lines, None where it is no text."""

    path: str
    what: ChangeKind
    plus: int | None = None
    minus: int | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did, or would do.

    Attributes:
        state: `done`; `planned` and `refused` (blocked): nothing was touched; `reverted`: it failed, and the workspace
            is what it was; `disturbed`: it was done, and somebody goes on writing; `stuck`: it could neither be done
            nor taken back, see `failed`.
        removed, written, modes: paths, in order.
        left: what differs and stays as it is, with the reason.
        blocked: what stands in the way, with the reason; `keep` or `overwrite` by name is the choice.
        failed: what could not be done, with the reason.
        rescued: commits that nothing else would name any more, kept as `refs/harnessd/...`, and what named them.
        others: paths that were neither as at the safety snapshot nor as at the target: changed while it was under way.
        stripped: files that came back without set-id bits, because their owner could not be given back.
        before: manifest of what was there when it began.
    """

    state: RestoreState
    removed: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    blocked: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    rescued: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    stripped: tuple[str, ...] = ()
    before: str = ""


@dataclass(frozen=True, slots=True)
class KeptRestore:
    """The intent of a restore as a row, durable before the first file is touched; later what became of it.

    `about` is whatever its beginner wants to find again after a crash. `state` is `open` until it ends.
    """

    task: str
    token: str
    root: str
    target: str
    safety: str
    about: Mapping[str, Any] = field(default_factory=dict)
    at: float = 0.0
    state: str = "open"
    report: Mapping[str, Any] = field(default_factory=dict)
    ended_at: float | None = None


class CheckpointStore(Protocol):
    """The rows that make checkpoints count, and the journal of restores."""

    async def checkpoints(self, task: str) -> Sequence[Checkpoint]:
        """A task's checkpoints, in order of taking."""

    async def add_checkpoint(self, task: str, checkpoint: Checkpoint) -> None:
        """One of a task that nobody works on: before a restore. A running one's come with its records."""

    async def live_manifests(self) -> Mapping[str, frozenset[str]]:
        """Every manifest that a row needs, by workspace: checkpoints, and both ends of restores under way."""

    async def expire_checkpoints(self, before: float) -> int:
        """Forget the checkpoints of tasks that ended before this time (epoch seconds); gives how many."""

    async def drop_oldest_checkpoints(self, spared: Collection[str] = ()) -> str | None:
        """Forget those of the task that ended longest ago, never of `spared`; its id, None where there is none."""

    async def begin_restore(self, restore: KeptRestore) -> None:
        """The intent, before the first file is touched."""

    async def end_restore(self, token: str, state: str, report: Mapping[str, Any], now: float) -> None:
        """What became of it."""

    async def open_restores(self) -> Sequence[KeptRestore]:
        """Those that a crash cut off, oldest first."""

    async def restores(self, task: str) -> Sequence[KeptRestore]:
        """All of a task, in order."""


class Workspace(Protocol):
    """Checkpoints of workspaces. Everything may block on the disk: not for the event loop's thread.

    `root` is a workspace's path, `manifest` (and `old`, `new`, `now`, `target`, ...) a checkpoint's, as `take` gave it.
    One call at a time is done for one workspace; others wait. Raises HarnessError children: DamagedContent where a
    content is not what was written (nothing was touched), StorageFull, HarnessError where the workspace is gone.
    """

    def take(
        self, root: str, dirty: Collection[str] | None = None, stop: Callable[[], bool] = lambda: False
    ) -> TakenCheckpoint:
        """Look at the workspace and keep what changed, durable when this returns.

        `dirty` are the only paths that can have changed since the last look (relative to the root); None: look at all.
        After a restart everything is looked at. `stop` is asked on the way; HarnessError where it says so.
        """

    def compare(self, root: str, old: str, new: str, *, lines: bool = True) -> tuple[WorkspaceChange, ...]:
        """What differs between two checkpoints. To compare with what is there now, `take` first."""

    def conflicts(self, root: str, last: str, now: str, target: str) -> tuple[str, ...]:
        """Paths that a restore of `target` would change, and that somebody changed since `last`."""

    def uncovered(self, root: str, manifest: str) -> tuple[Uncovered, ...]:
        """What a checkpoint does not cover."""

    def plan(
        self, root: str, now: str, target: str, keep: Collection[str] = (), overwrite: Collection[str] = ()
    ) -> Restored:
        """What `restore` would do from `now`: `planned` or `refused`. Nothing is touched."""

    def restore(
        self,
        root: str,
        target: str,
        safety: str,
        token: str,
        keep: Collection[str] = (),
        overwrite: Collection[str] = (),
    ) -> Restored:
        """Make the workspace what it was at `target`.

        `safety` is a checkpoint of what is there now, recorded before; `token` names this restore (letters, digits, -).
        Cut off at any moment, the same call again ends it; a failure takes everything back. `keep` (with all below)
        stays as it is; `overwrite` may be replaced though no checkpoint holds it.
        """

    def read(self, root: str, manifest: str, path: str) -> bytes | None:
        """The bytes of a file in a checkpoint; None where it is no file, or not covered."""

    def size(self) -> int:
        """Bytes that all checkpoints take up on disk."""

    def collect(self, live: Mapping[str, Collection[str]], grace_s: float = 86400.0) -> int:
        """Give back what no live manifest needs, by workspace root; gives the bytes freed.

        What was written less than `grace_s` seconds ago stays: its row may be on its way.
        """

    def forget(self, root: str) -> None:
        """Give back the memory that a workspace's look-ups take."""

    def close(self) -> None:
        """Give all descriptors back."""
