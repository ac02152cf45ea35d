"""Plan: what a restore would do, judged before any file is touched; a pure function of two trees.

Law: what no checkpoint holds is never deleted or replaced. A name that is not covered now, or was not covered then, is
left as it is and said; where it stands in the way of something that is to come back, nothing is done at all and the
choice is named.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from harnessd.domain.effect import well_formed
from harnessd.workspace import repositories
from harnessd.workspace.coverage import EXCLUDED, OTHER_FILE_SYSTEM, UNREADABLE
from harnessd.workspace.manifest import Entry
from harnessd.workspace.repositories import Read, Rescued

KEPT = "kept, as asked"
_CLOSED = (EXCLUDED, OTHER_FILE_SYSTEM, UNREADABLE)  # what may hold names of its own: no word replaces it

Tree = Mapping[str, Entry]


@dataclass(slots=True)
class Plan:
    """Paths by what happens to them, each in the order in which it can be done."""

    remove: list[str] = field(default_factory=list)  # deepest first
    make: list[str] = field(default_factory=list)  # folders, the outer ones first
    put: list[str] = field(default_factory=list)  # files and links that are written anew
    modes: list[str] = field(default_factory=list)  # same content, other mode or owner
    left: dict[str, str] = field(default_factory=dict)  # differs and stays, with the reason
    blocked: dict[str, str] = field(default_factory=dict)  # stands in the way, with the reason
    rescued: list[Rescued] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Nothing is to be done."""
        return not (self.remove or self.make or self.put or self.modes or self.rescued)

    @property
    def touched(self) -> tuple[str, ...]:
        """Every path that will be other than it is."""
        return tuple(sorted({*self.remove, *self.make, *self.put, *self.modes}))


def plan(
    now: Tree,
    target: Tree,
    read: Read,
    keep: Collection[str] = (),
    overwrite: Collection[str] = (),
    token: str = "",
) -> Plan:
    """How `now` becomes `target`. `keep` stays as it is, with all that lies below; `overwrite` may be replaced.

    Both are names as people are shown them: a byte that is no UTF-8 is U+FFFD there. The empty name is the root.
    `token` names the restore in references that keep commits.
    """
    made = _Planner(now, target, read, frozenset(keep), frozenset(overwrite))
    return made.whole(token)


@dataclass(slots=True)
class _Planner:
    now: Tree
    target: Tree
    read: Read
    keep: frozenset[str]
    overwrite: frozenset[str]
    out: Plan = field(default_factory=Plan)
    homes: tuple[str, ...] = ()

    def whole(self, token: str) -> Plan:
        """Judge every path, the outer ones first."""
        then = repositories.repositories(self.target)
        self.homes = tuple(home for home in then if self.now.get(home, _NONE).kind == "folder")
        for path in sorted({*self.now, *self.target}):
            mine, wanted = self.now.get(path), self.target.get(path)
            if mine != wanted:
                self._one(path, mine, wanted)
        for home in self.homes:
            if not self._kept(home):
                self.out.rescued += repositories.rescues(home, self.now, self.target, self.read, token or "restore")
        self._stand()
        self.out.remove.sort(reverse=True)
        return self.out

    def _one(self, path: str, mine: Entry | None, wanted: Entry | None) -> None:
        out = self.out
        if self._kept(path):
            out.left[path] = KEPT
        elif (closed := self._closed_above(path, self.target)) is not None:
            # Not even its names were known then: nothing can be said of what is new in it.
            out.left.setdefault(closed, f"was not covered: {_why(self.target[closed])}")
        elif (closed := self._closed_above(path, self.now)) is not None and not self._may_go(closed):
            out.blocked.setdefault(closed, f"is not covered now: {_why(self.now[closed])}")
        elif wanted is not None and wanted.kind == "uncovered":
            gone = " and is gone" if mine is None else ""
            out.left[path] = f"was not covered{gone}: {_why(wanted)}"
        elif mine is not None and mine.kind == "uncovered":
            self._uncovered(path, mine, wanted)
        elif (home := repositories.home_of(path, self.homes)) and repositories.stays(
            path, home, self.now, self.target, self.read
        ):
            locked = mine is None and path.endswith(".lock")
            out.left[path] = "the lock of a git that ran then" if locked else "git's own history, which only grows"
        else:
            self._covered(path, mine, wanted)

    def _covered(self, path: str, mine: Entry | None, wanted: Entry | None) -> None:
        out = self.out
        if wanted is None:
            out.remove.append(path)
        elif wanted.kind == "folder":
            if mine is not None and mine.kind == "folder":
                out.modes.append(path)
                return
            if mine is not None:
                out.remove.append(path)
            out.make.append(path)
        elif mine is not None and mine.kind == "folder":
            out.remove.append(path)
            out.put.append(path)
        elif mine is not None and (mine.kind, mine.holds) == (wanted.kind, wanted.holds) and wanted.kind == "file":
            out.modes.append(path)
        else:
            out.put.append(path)

    def _uncovered(self, path: str, mine: Entry, wanted: Entry | None) -> None:
        why = f"is not covered now: {_why(mine)}"
        if wanted is None:
            self.out.left[path] = why
        elif self._may_go(path):
            if wanted.kind == "folder":
                self.out.remove.append(path)
                self.out.make.append(path)
            else:
                self.out.put.append(path)
        else:
            self.out.blocked[path] = why

    def _stand(self) -> None:
        """Folders that hold something which stays, stay too; if a file is to come in their place, they block it."""
        out = self.out
        wanted = set(out.put)
        staying = {above for path in out.left if path in self.now for above in _above(path)}
        held = {path for path in out.remove if path in staying and self.now[path].kind == "folder"}
        out.remove = [path for path in out.remove if path not in held]
        for path in sorted(held):
            if path in wanted:
                out.put.remove(path)
                kept = any(why == KEPT and path in _above(one) for one, why in out.left.items())
                out.blocked[path] = f"holds something that {'is kept' if kept else 'no checkpoint covers'}"
            else:
                out.left[path] = "holds something that stays"

    def _may_go(self, path: str) -> bool:
        """A name that is not covered now, and that somebody gave up by name; never what may hold names of its own."""
        return well_formed(path) in self.overwrite and self.now[path].holds not in _CLOSED

    def _kept(self, path: str) -> bool:
        return bool(self.keep) and any(well_formed(one) in self.keep for one in ("", *_above(path), path))

    def _closed_above(self, path: str, tree: Tree) -> str | None:
        for above in _above(path):
            entry = tree.get(above)
            if entry is not None and entry.kind == "uncovered":
                return above
        return None


_NONE = Entry("uncovered", 0, 0, 0, 0, b"")


def _above(path: str) -> list[str]:
    """The folders a path lies in, the outermost first, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _why(entry: Entry) -> str:
    return entry.holds.decode("utf-8", "replace")
