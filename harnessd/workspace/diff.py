"""Diff: what changed between two states of a workspace, for people: one line a path, with lines added and removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from harnessd.workspace.manifest import Entry

What = Literal["added", "changed", "deleted", "mode", "type", "uncovered"]
TEXT_MAX = 1 << 20  # bytes of a file whose lines are counted
_EXACT_MAX = 2000  # lines between common beginning and end that are compared one by one
_BINARY_LOOK = 8000  # bytes in which a NUL says that a file is no text; the number git uses

Tree = Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class PathChange:
    """One path. `plus` and `minus` are lines, None where the file is no text or too large to count."""

    path: str
    what: What
    plus: int | None = None
    minus: int | None = None


def changes(old: Tree, new: Tree, read: Callable[[bytes], bytes], *, lines: bool = True) -> Iterator[PathChange]:
    """What turns `old` into `new`, by path. Folders are told only where they are new, gone or have another mode."""
    for path in sorted({*old, *new}):
        before, after = old.get(path), new.get(path)
        if before == after:
            continue
        what = _what(before, after)
        plus, minus = (
            _counted(before, after, read) if lines and what in ("added", "changed", "deleted") else (None, None)
        )
        yield PathChange(path, what, plus, minus)


def _what(old: Entry | None, new: Entry | None) -> What:
    if "uncovered" in (old.kind if old else "", new.kind if new else ""):
        return "uncovered"
    if old is None:
        return "added"
    if new is None:
        return "deleted"
    if old.kind != new.kind:
        return "type"
    return "mode" if old.holds == new.holds else "changed"


def _counted(old: Entry | None, new: Entry | None, read: Callable[[bytes], bytes]) -> tuple[int | None, int | None]:
    texts = []
    for entry in (old, new):
        if entry is None:
            texts.append(b"")
            continue
        if entry.kind != "file" or entry.size > TEXT_MAX:
            return None, None
        texts.append(read(entry.holds))
    if any(b"\0" in text[:_BINARY_LOOK] for text in texts):
        return None, None
    return line_counts(texts[0].splitlines(), texts[1].splitlines())


def line_counts(old: list[bytes], new: list[bytes]) -> tuple[int, int]:
    """Lines added and removed. Between very different texts moved lines count as unchanged."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    if len(old) > _EXACT_MAX or len(new) > _EXACT_MAX:
        before, after = Counter(old), Counter(new)
        return (after - before).total(), (before - after).total()
    same = sum(block.size for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks())
    return len(new) - same, len(old) - same
