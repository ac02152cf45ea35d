"""Images: what a disk may hold after a power cut at any moment of a recording.

Whatever was synced is there. Of the rest there is nothing, all, the first part, any part, or any 512-byte sectors of
any part: a disk writes sectors whole and in its own order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.disks.tracing import Operation, Recording

SECTOR = 512
WAYS = ("none", "all", "prefix", "subset", "torn")


@dataclass(slots=True)
class Disk:
    """Files by number, names by folder."""

    files: dict[int, bytearray] = field(default_factory=dict)
    names: dict[int, dict[str, int]] = field(default_factory=dict)

    def copy(self) -> Disk:
        return Disk(
            {number: bytearray(data) for number, data in self.files.items()},
            {folder: dict(names) for folder, names in self.names.items()},
        )

    def apply(self, one: Operation, pieces: Sequence[tuple[int, int]] | None = None) -> None:
        """`pieces`: the parts of a write that reached the disk; all of it without."""
        if one.kind == "name":
            names = self.names.setdefault(one.file, {})
            if one.target < 0:
                names.pop(one.name, None)
            else:
                names[one.name] = one.target
            return
        data = self.files.setdefault(one.file, bytearray())
        if one.kind == "cut":
            del data[one.at :]
            data.extend(bytes(one.at - len(data)))
            return
        for start, end in [(0, len(one.data))] if pieces is None else pieces:
            if len(data) < one.at + start:
                data.extend(bytes(one.at + start - len(data)))
            data[one.at + start : one.at + end] = one.data[start:end]

    def write(self, place: Path, folders: set[int], number: int = 0) -> None:
        """Lay it out below `place`."""
        place.mkdir(mode=0o700)
        for name, target in self.names.get(number, {}).items():
            if target in folders:
                self.write(place / name, folders, target)
            else:
                (place / name).write_bytes(self.files.get(target, b""))


class Cutter:
    """Images of one recording at ever later moments: what is durable is applied once, not for each image."""

    def __init__(self, recording: Recording) -> None:
        self._rest = list(recording.operations)
        self._disk = Disk()

    def at(self, line: int, way: str, luck: random.Random) -> Disk:
        """The disk after a cut behind `line` of the log; lines never go back."""
        pending: list[Operation] = []
        kept: list[Operation] = []
        for place, one in enumerate(self._rest):
            if one.begun > line:
                kept += self._rest[place:]
                break
            if one.durable <= line:
                self._disk.apply(one)
                continue
            kept.append(one)
            pending.append(one)
        self._rest = kept
        image = self._disk.copy()
        for one, pieces in _chosen(pending, way, luck):
            image.apply(one, pieces)
        return image


Chosen = list[tuple[Operation, list[tuple[int, int]] | None]]


def _chosen(pending: list[Operation], way: str, luck: random.Random) -> Chosen:
    match way:
        case "none":
            return []
        case "all":
            return [(one, None) for one in pending]
        case "prefix":
            some = pending[: luck.randint(0, len(pending))]
            return [(one, None) for one in some[:-1]] + [(one, _sectors(one, luck)) for one in some[-1:]]
        case "subset":
            return [(one, None) for one in pending if luck.random() < 0.5]
        case _:
            share = luck.choice((0.2, 0.5, 0.9))
            return [(one, _sectors(one, luck)) for one in pending if luck.random() < share]


def _sectors(one: Operation, luck: random.Random) -> list[tuple[int, int]] | None:
    """Which sectors of a write arrived: by where they lie in the file, not in the write."""
    if one.kind != "write":
        return None
    places, start = [], 0
    while start < len(one.data):
        end = min(len(one.data), start + SECTOR - (one.at + start) % SECTOR)
        if luck.random() < 0.5:
            places.append((start, end))
        start = end
    return places
