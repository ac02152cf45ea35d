"""Repositories: what a restore may do to git's own folders, by their file names alone; git itself is never asked.

A repository's folder is covered and put back like any other, with two exceptions, so that no commit is ever lost:
objects that were written since stay (they are named by their content and change nothing), and a reflog that only grew
stays as it is. Where a branch, a tag or HEAD would lose its newest commit, a reference under `refs/harnessd/` keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from harnessd.workspace.manifest import Entry

_OBJECT = re.compile(
    r"objects/(?:[0-9a-f]{2}(?:/[0-9a-f]{38}(?:[0-9a-f]{24})?)?"
    r"|pack(?:/(?:pack-[0-9a-f]{40,64}\.[a-z]+|multi-pack-index\S*))?"
    r"|info(?:/[\w./-]*)?)\Z"
)
_HASH = re.compile(rb"[0-9a-f]{64}|[0-9a-f]{40}")
_PACKED = re.compile(rb"^([0-9a-f]{40,64}) (refs/\S+)$", re.MULTILINE)
# What git, editors and background fetches write without anybody having changed anything.
_QUIET = re.compile(
    r"(?:index|FETCH_HEAD|ORIG_HEAD|COMMIT_EDITMSG|gc\.log|gc\.pid|(?:objects|logs|refs/remotes)(?:/.*)?|.*\.lock)\Z",
    re.DOTALL,
)
# What we keep of a commit in a restore: no edit of anybody's. Bare and inner repositories have it too.
_OURS = re.compile(r".*\.git/(?:.*/)?refs/harnessd(?:/.*)?\Z", re.DOTALL)
_LOCK = ".lock"
_TIP_MAX = 4096  # a reference is one line
RESCUE = "refs/harnessd"

Tree = Mapping[str, Entry]
Read = Callable[[bytes], bytes]


class Rescued(NamedTuple):
    """A commit that a reference of ours keeps: the file to write, and what it was known as."""

    path: str
    commit: str
    was: str


def repositories(tree: Tree) -> tuple[str, ...]:
    """The folders that git would take for a repository's own, as it does: HEAD, objects and refs are there."""
    return tuple(path for path, entry in tree.items() if entry.kind == "folder" and _named(path) and _whole(tree, path))


def _named(path: str) -> bool:
    """`.git`, `name.git`, or a submodule's own folder within one."""
    return path.endswith(".git") or ".git/modules/" in f"/{path}"


def _whole(tree: Tree, path: str) -> bool:
    def kind(name: str) -> str | None:
        entry = tree.get(f"{path}/{name}")
        return entry.kind if entry else None

    return kind("HEAD") in ("file", "link") and kind("objects") == "folder" and kind("refs") == "folder"


def home_of(path: str, homes: tuple[str, ...]) -> str | None:
    """The repository's folder that a path lies in: the innermost one."""
    found = [home for home in homes if path.startswith(home + "/")]
    return max(found, key=len) if found else None


def stays(path: str, home: str, now: Tree, target: Tree, read: Read) -> bool:
    """A path that differs is left as it is: an object that is new, or a reflog that only grew."""
    inner = path[len(home) + 1 :]
    mine, wanted = now.get(path), target.get(path)
    if inner.startswith("objects/") and wanted is None:
        return bool(_OBJECT.match(inner))
    if inner.endswith(_LOCK) and mine is None:
        return True  # a git that ran then; put back, it would lock everybody out
    if not inner.startswith("logs/") or mine is None or wanted is None or mine.kind != "file" or wanted.kind != "file":
        return False
    return mine.size >= wanted.size and mine.mode == wanted.mode and read(mine.holds).startswith(read(wanted.holds))


def quiet(path: str) -> bool:
    """A change of this path says nothing of what a person did."""
    _, git, inner = f"/{path}".rpartition("/.git/")
    return bool(git and _QUIET.match(inner)) or bool(_OURS.match(path))


def rescues(home: str, now: Tree, target: Tree, read: Read, token: str) -> Iterator[Rescued]:
    """References that keep the newest commits which nothing in the target names any more."""
    if f"{home}/reftable" in now:
        return  # references in a format of its own: they are put back, and the reflog keeps the rest
    known = _known(home, target, read)
    for name, commit in sorted(tips(home, now, read).items()):
        if commit not in known:
            known.add(commit)
            # Named by the commit: a reference's own name is the agent's word, and no path is made of it.
            yield Rescued(f"{home}/{RESCUE}/{token}/{commit}", commit, name)


def tips(home: str, tree: Tree, read: Read) -> dict[str, str]:
    """Every reference of a repository with the commit it names, HEAD included."""
    found: dict[str, str] = {}
    packed = tree.get(f"{home}/packed-refs")
    if packed is not None and packed.kind == "file":
        found |= {
            name.decode("utf-8", "replace"): commit.decode() for commit, name in _PACKED.findall(read(packed.holds))
        }
    for path, entry in tree.items():
        inner = path[len(home) + 1 :]
        if not path.startswith(home + "/") or entry.kind != "file" or entry.size > _TIP_MAX:
            continue
        if inner == "HEAD" or inner.startswith("refs/"):
            text = read(entry.holds).strip()
            if _HASH.fullmatch(text):
                found[inner] = text.decode()
            elif inner != "HEAD":
                found.pop(inner, None)
    return found


def head(home: str, tree: Tree, read: Read) -> str:
    """What HEAD says: a branch's name, or a commit."""
    entry = tree.get(f"{home}/HEAD")
    if entry is None or entry.kind != "file" or entry.size > _TIP_MAX:
        return ""
    return read(entry.holds).strip().decode("utf-8", "replace").removeprefix("ref: ").removeprefix("refs/heads/")


def _known(home: str, target: Tree, read: Read) -> set[str]:
    """Every commit that the target names itself: in references and reflogs."""
    known = set(tips(home, target, read).values())
    for path, entry in target.items():
        if path.startswith(f"{home}/logs/") and entry.kind == "file":
            known |= {commit.decode() for commit in _HASH.findall(read(entry.holds))}
    return known
