"""Tree: records of a session file with parents; the path to the head, and what is not on it.

An append-only file tells its head by order, or by a pointer that it stores, never by a time stamp: a sub-task may write
last. Where a parent is missing, nothing is guessed: the path begins there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harnessd.cli.session.remarks import Remark

# Under which names agents keep a record's own id and its parent's.
NAMES = (("uuid", "parentUuid"), ("id", "parentId"), ("id", "parent_id"), ("id", "parent"))
_POINTERS = ("pointer", "leafId", "currentLeafId", "head", "leaf")


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a session file. `speaks`: it is part of the talk, and may be its head."""

    line: int
    id: str
    parent: str | None
    row: Mapping[str, Any]
    speaks: bool


def names_in(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The names of id and parent in these rows; None: they are no tree."""
    return next((pair for pair in NAMES if any(pair[1] in row and pair[0] in row for row in rows)), None)


def pointer_in(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The head that a line without a record of its own names, the newest one."""
    for row in reversed(rows):
        if row.get("type") == "leaf" and isinstance(row.get("targetId"), str):
            return str(row["targetId"])
        if "message" not in row and "role" not in row:
            found = next((row[name] for name in _POINTERS if isinstance(row.get(name), str)), None)
            if found is not None:
                return str(found)
    return None


def torn_record(line: int, text: str, names: tuple[str, str]) -> Record | None:
    """A torn line whose own id and parent can still be read: the path goes on through it, without its words."""
    own, parent = (re.search(rf'"{name}"\s*:\s*(?:"([^"\\]+)"|null)', text) for name in names)
    if own is None or own.group(1) is None or parent is None:
        return None
    return Record(line, own.group(1), parent.group(1), {}, speaks=False)


def path(
    records: Sequence[Record], head: str | None, problems: list[Remark], remarks: list[Remark]
) -> tuple[list[Record], list[Record]]:
    """The records from the first to the head, and those that are on no way to it."""
    by_id: dict[str, Record] = {}
    for record in records:
        if record.id in by_id:
            remarks.append(Remark("duplicate_record", 0, f"line {record.line} repeats record {record.id[:60]}"))
        else:
            by_id[record.id] = record
    for record in list(by_id.values()):
        if record.parent == record.id:
            problems.append(Remark("self_reference", 0, f"line {record.line}: a record is its own parent: left out"))
            del by_id[record.id]
    start = by_id.get(head or "") or next((r for r in reversed(records) if r.speaks and r.id in by_id), None)
    if head is not None and head not in by_id:
        problems.append(Remark("missing_parent", 0, f"the pointer names {head[:60]}, which the file does not hold"))
    way = _walk(start, by_id, problems)
    on_it = {record.id for record in way}
    return way, [record for record in by_id.values() if record.id not in on_it]


def _walk(start: Record | None, by_id: Mapping[str, Record], problems: list[Remark]) -> list[Record]:
    way: list[Record] = []
    seen: set[str] = set()
    here = start
    while here is not None:
        seen.add(here.id)
        way.append(here)
        if here.parent is None:
            break
        above = by_id.get(here.parent)
        if above is None:
            said = f"line {here.line}: its parent {here.parent[:60]} is not in the file: what was before is left out"
            problems.append(Remark("missing_parent", 0, said))
        elif above.id in seen:
            said = f"line {here.line}: its parents run in a circle: the talk begins here"
            problems.append(Remark("parent_cycle", 0, said))
            break
        here = above
    way.reverse()
    return way
