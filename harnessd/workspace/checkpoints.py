"""Checkpoints: take, compare, restore and give back what workspaces held; the `Workspace` port over this room.

Each workspace has a folder of contents of its own below the daemon's state, named by the hash of its path, so that one
workspace's history is found, counted and thrown away without looking at another's. A checkpoint is the digest of its
manifest; it counts once the caller has made that digest durable in a row. Not for the event loop's thread.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harnessd.domain.failure import HarnessError
from harnessd.domain.workspace import Restored, RestoreState, TakenCheckpoint, Uncovered, WorkspaceChange
from harnessd.workspace import diff, repositories
from harnessd.workspace.content import SEGMENT_MAX
from harnessd.workspace.coverage import Limits
from harnessd.workspace.handles import Handles
from harnessd.workspace.manifest import (
    FULL_EVERY,
    Change,
    DamagedContent,
    Manifest,
    Tree,
    difference,
    encode,
    needed_by,
)
from harnessd.workspace.plan import Plan, plan
from harnessd.workspace.restore import Restore, clear_staging
from harnessd.workspace.vaults import Vault, Vaults
from harnessd.workspace.walk import TICK_NS, Cache, RootGone, Stopped, Walk

__all__ = ["Checkpoints", "Limits"]

_STEADY_TRIES = 3


class Checkpoints:
    """The `Workspace` port."""

    def __init__(
        self,
        folder: Path,
        limits: Limits | None = None,
        crashpoint: Callable[[str], None] = lambda _: None,
        segment_max: int = SEGMENT_MAX,
    ) -> None:
        """`folder` is made when it is first needed. `crashpoint` is called with the name of each point passed.

        `segment_max`: bytes of a file of contents after which the next one begins.
        """
        self._vaults = Vaults(folder, segment_max)
        self._limits = limits or Limits()
        self._crashpoint = crashpoint

    def close(self) -> None:
        self._vaults.close()

    # --- take ---------------------------------------------------------------------------------------------------------

    def take(
        self, root: str, dirty: Collection[str] | None = None, stop: Callable[[], bool] = lambda: False
    ) -> TakenCheckpoint:
        with self._vaults.of(root) as vault, _opened(vault.root) as handles:
            return self._take(vault, handles, dirty, stop)

    def _take(
        self, vault: Vault, handles: Handles, dirty: Collection[str] | None, stop: Callable[[], bool]
    ) -> TakenCheckpoint:
        walk = Walk(handles, self._limits, vault.cache, vault.contents, stop)
        stored = vault.contents.written
        try:
            change = walk.whole() if dirty is None or not vault.last else walk.only(dirty)
            self._write(vault, change)
        except (Stopped, HarnessError, OSError) as error:
            vault.fresh()
            if isinstance(error, Stopped):
                raise HarnessError("The checkpoint was stopped before it was whole.") from error
            if isinstance(error, RootGone):
                raise _unreadable(vault.root, error) from error
            if isinstance(error, OSError):
                raise HarnessError(f"No checkpoint could be made of {vault.root}: {error}.") from error
            raise
        self._crashpoint("J15")
        tree = vault.cache.tree
        return TakenCheckpoint(
            manifest=vault.last.hex(),
            changed=len(change.entries) + len(change.removed),
            root=vault.root,
            files=sum(entry.kind == "file" for entry in tree.values()) if change else None,
            stored=vault.contents.written - stored,
            read_files=walk.read_files,
            uncovered=_uncovered(tree) if change else None,
            notes=_notes(change, vault) if change else (),
        )

    def _write(self, vault: Vault, change: Change) -> None:
        """The manifest of what the walk found, and one sync for it and all contents."""
        if not vault.last or vault.last not in vault.contents:
            manifest, vault.grown = Manifest(b"", 0, Change(dict(vault.cache.tree), ())), 0
        elif not change:
            return
        elif vault.place + 1 >= FULL_EVERY or vault.grown > len(vault.cache.tree):
            manifest, vault.grown = Manifest(b"", 0, Change(dict(vault.cache.tree), ())), 0
        else:
            manifest = Manifest(vault.last, vault.place + 1, change)
            vault.grown += len(change.entries) + len(change.removed)
        digest = vault.contents.put(encode(manifest))
        self._crashpoint("J15-before")
        vault.contents.sync()
        vault.last, vault.place = digest, manifest.place

    # --- look ---------------------------------------------------------------------------------------------------------

    def compare(self, root: str, old: str, new: str, *, lines: bool = True) -> tuple[WorkspaceChange, ...]:
        with self._vaults.of(root) as vault:
            before, after = vault.tree(old), vault.tree(new)
            found = diff.changes(before, after, vault.contents.get, lines=lines)
            return tuple(WorkspaceChange(one.path, one.what, one.plus, one.minus) for one in found if one.path)

    def conflicts(self, root: str, last: str, now: str, target: str) -> tuple[str, ...]:
        with self._vaults.of(root) as vault:
            known, mine, wanted = (vault.tree(one) for one in (last, now, target))
            changed = difference(known, mine)
            planned = plan(mine, wanted, vault.contents.get)
            others = {*changed.entries, *changed.removed}
            touched = others & {*planned.touched, *planned.blocked}
            return tuple(sorted(path for path in touched if not repositories.quiet(path) and path))

    def uncovered(self, root: str, manifest: str) -> tuple[Uncovered, ...]:
        with self._vaults.of(root) as vault:
            return _uncovered(vault.tree(manifest))

    def plan(
        self, root: str, now: str, target: str, keep: Collection[str] = (), overwrite: Collection[str] = ()
    ) -> Restored:
        with self._vaults.of(root) as vault:
            mine, wanted = vault.tree(now), vault.tree(target)
            planned = plan(mine, wanted, vault.contents.get, keep, overwrite)
            return _report("refused" if planned.blocked else "planned", planned, now, ())

    def read(self, root: str, manifest: str, path: str) -> bytes | None:
        with self._vaults.of(root) as vault:
            entry = vault.tree(manifest).get(path)
            return vault.contents.get(entry.holds) if entry is not None and entry.kind == "file" else None

    # --- restore ------------------------------------------------------------------------------------------------------

    def restore(
        self,
        root: str,
        target: str,
        safety: str,
        token: str,
        keep: Collection[str] = (),
        overwrite: Collection[str] = (),
    ) -> Restored:
        if not re.fullmatch(r"[0-9A-Za-z-]{1,64}", token):
            message = f"{token!r} cannot name a restore"
            raise ValueError(message)
        with self._vaults.of(root) as vault, _opened(vault.root) as handles:
            wanted, before = vault.tree(target), vault.tree(safety)
            clear_staging(handles, token)
            now = self._settled(vault, handles)
            mine = dict(vault.cache.tree)
            planned = plan(mine, wanted, vault.contents.get, keep, overwrite, token)
            if planned.blocked:
                return _report("refused", planned, now, ())
            others = tuple(sorted(p for p in planned.touched if mine.get(p) not in (before.get(p), wanted.get(p))))
            work = Restore(handles, vault.contents, vault.cache, wanted, planned, token, self._step)
            work.check()
            work.run()
            if work.failed:
                return self._back(vault, handles, before, planned, work, now)
            self._take(vault, handles, None, _never)
            odd = _odd(vault.cache.tree, wanted, planned)
            state: RestoreState = "disturbed" if odd else "done"
            return _report(state, planned, now, others, failed=odd, stripped=tuple(work.stripped))

    def _back(self, vault: Vault, handles: Handles, before: Tree, planned: Plan, work: Restore, now: str) -> Restored:
        """It could not be done whole: what was done is taken back, so that the workspace is what it was."""
        self._settled(vault, handles)
        back = plan(dict(vault.cache.tree), before, vault.contents.get, token=work.token)
        again = Restore(handles, vault.contents, vault.cache, before, back, work.token, self._step)
        try:
            again.check()
            again.run()
            self._take(vault, handles, None, _never)
        except HarnessError as error:
            return _report("stuck", planned, now, (), failed={**work.failed, ".": error.sentence})
        odd = _odd(vault.cache.tree, before, back)
        state: RestoreState = "stuck" if odd else "reverted"
        return _report(state, planned, now, (), failed=work.failed | odd)

    def _settled(self, vault: Vault, handles: Handles) -> str:
        """A checkpoint in which nothing is racily clean: everything can be recognised by its times."""
        taken = self._take(vault, handles, None, _never)
        for _ in range(_STEADY_TRIES):
            if not _racy(vault.cache):
                break
            time.sleep(2 * TICK_NS / 1e9)
            taken = self._take(vault, handles, None, _never)
        return taken.manifest

    def _step(self, path: str) -> None:
        del path
        self._crashpoint("J16-file")

    # --- room ---------------------------------------------------------------------------------------------------------

    def forget(self, root: str) -> None:
        self._vaults.forget(root)

    def size(self) -> int:
        return self._vaults.size()

    def collect(self, live: Mapping[str, Collection[str]], grace_s: float = 86400.0) -> int:
        freed = 0
        for root in self._vaults.roots():
            manifests = live.get(root, ())
            with self._vaults.of(root, resolve=False) as vault:
                freed += _collect(vault, manifests, grace_s)
                empty = not manifests and not vault.contents.size()
            if empty:
                self._vaults.forget(root, contents=True)
        return freed


def _collect(vault: Vault, manifests: Collection[str], grace_s: float) -> int:
    try:
        needed = needed_by([bytes.fromhex(one) for one in manifests], vault.contents.get)
    except DamagedContent:
        return 0  # nobody can say what is needed: nothing is thrown away, and a restore will tell
    freed = vault.contents.compact(needed.__contains__, time.time() - grace_s)
    if freed and vault.last not in vault.contents:
        vault.fresh()
    return freed


def _never() -> bool:
    return False


@contextmanager
def _opened(root: str) -> Iterator[Handles]:
    try:
        handles = Handles(root)
    except OSError as error:
        raise _unreadable(root, error) from error
    with handles:
        yield handles


def _unreadable(root: str, error: OSError) -> HarnessError:
    gone = error.errno == errno.ENOENT
    what = "is not there any more" if gone else f"cannot be read: {error.strerror or error}"
    return HarnessError(f"The workspace {root} {what}.", remedy="Put the folder back, or make it readable.")


def _uncovered(tree: Tree) -> tuple[Uncovered, ...]:
    found = [(path, entry) for path, entry in tree.items() if entry.kind == "uncovered"]
    return tuple(Uncovered(path, entry.holds.decode("utf-8", "replace")) for path, entry in sorted(found))


def _racy(cache: Cache) -> bool:
    return any(not seen[0] and seen[4].kind == "file" for names in cache.folders.values() for seen in names.values())


def _odd(now: Tree, wanted: Tree, planned: Plan) -> dict[str, str]:
    """Where the workspace is not what it was made to be: somebody goes on writing to it."""
    rescued = {path for one in planned.rescued for path in _way(one.path)}
    # The staging folder is gone by now, and the root's times are not covered: nothing else may differ.
    change = difference(now, wanted)
    odd = {*change.entries, *change.removed} - planned.left.keys() - rescued
    for path in planned.left:
        odd -= {other for other in odd if other.startswith(path + "/") or path.startswith(other + "/")}
    return dict.fromkeys(sorted(odd), "it is not as at the checkpoint: something goes on writing there")


def _way(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _notes(change: Change, vault: Vault) -> tuple[str, ...]:
    """What people should know of a workspace: a `.git` file that sends git to a place outside."""
    notes = []
    for path, entry in change.entries.items():
        if entry.kind == "file" and entry.size < 8192 and (path == ".git" or path.endswith("/.git")):
            text = vault.contents.get(entry.holds)
            if text.startswith(b"gitdir:"):
                where = os.fsdecode(text[7:].strip())
                above = os.path.join(vault.root, os.path.dirname(path))  # noqa: PTH118, PTH120 - text alone
                there = os.path.normpath(os.path.join(above, where))  # noqa: PTH118
                if not f"{there}/".startswith(vault.root.rstrip("/") + "/"):
                    notes.append(f"{path} is a file that points outside the workspace: {where}")
    return tuple(notes)


def _report(
    state: RestoreState,
    planned: Plan,
    now: str,
    others: tuple[str, ...],
    *,
    failed: Mapping[str, str] | None = None,
    stripped: tuple[str, ...] = (),
) -> Restored:
    return Restored(
        state=state,
        removed=tuple(path for path in sorted(planned.remove) if path not in set(planned.make) | set(planned.put)),
        written=tuple(sorted({*planned.make, *planned.put})),
        modes=tuple(path or "." for path in sorted(planned.modes)),
        left=planned.left,
        blocked=planned.blocked,
        failed=dict(failed or {}),
        rescued={one.commit: one.was for one in planned.rescued},
        others=others,
        stripped=stripped,
        before=now,
    )
