"""Content: what checkpoints hold, by SHA-256, in append-only segment files outside every workspace; one sync for all.

A record is a header (digest, length, checksum of the header) and the bytes. Nothing is ever changed in place. Before a
checkpoint counts, its records are synced once (`sync`); the next record written after that is a *mark*: whoever finds
it knows that all before it was on disk. After a crash whatever lies behind the last mark is read and compared with its
digest before it may be used again, and what does not fit is cut off: a later checkpoint must never lean on bytes that a
power failure left unwritten.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from harnessd.domain.failure import HarnessError, StorageFull
from harnessd.workspace.manifest import DamagedContent

SEGMENT_MAX = 128 << 20
BLOCK = 1 << 20
OPEN_MAX = 8  # segment files held open beside the newest
_HEAD = struct.Struct(">4s32sQ")
_SUM = struct.Struct(">I")
HEAD_SIZE = _HEAD.size + _SUM.size
_RECORD, _MARK = b"hdc1", b"hdm1"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Place(NamedTuple):
    """Where a content lies: segment number, offset of its bytes, their count."""

    segment: int
    offset: int
    length: int


class Contents:
    """The contents of one workspace's checkpoints. For one thread at a time."""

    def __init__(self, folder: Path, segment_max: int = SEGMENT_MAX) -> None:
        """Open the folder, made if it is missing; what a crash left behind is cut off. Raises OSError.

        `segment_max`: bytes of a file after which the next record begins a new one.
        """
        self.folder = folder
        self._segment_max = segment_max
        self.syncs = 0  # since it was opened, as are the bytes written
        self.written = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._places: dict[bytes, Place] = {}
        self._files: dict[int, int] = {}
        self._segment = 0
        self._end = 0
        self._synced = (0, 0)
        self._mark_due = False
        for number in self.segments():
            self._load(number)

    def close(self) -> None:
        """Give all descriptors back."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def __contains__(self, digest: object) -> bool:
        return digest in self._places

    def digests(self) -> Iterator[tuple[bytes, Place]]:
        """Everything that is there, with its place."""
        return iter(self._places.items())

    def segments(self) -> list[int]:
        """Numbers of the segment files, oldest first."""
        names = (name.removesuffix(".segment") for name in os.listdir(self.folder) if name.endswith(".segment"))  # noqa: PTH208
        return sorted(int(name) for name in names if name.isdigit())

    def path(self, number: int) -> Path:
        """The file of a segment."""
        return self.folder / f"{number:08}.segment"

    # --- write ------------------------------------------------------------------------------------------------------

    def put(self, data: bytes) -> bytes:
        """Keep a content unless it is there; gives its digest. Not durable before `sync`. Raises StorageFull."""
        digest = sha256(data).digest()
        if digest not in self._places:
            self._append(digest, data)
        return digest

    def sync(self) -> None:
        """Everything put until now is on disk when this returns; nothing happens where nothing was put."""
        if self._synced == (self._segment, self._end):
            return
        try:
            os.fdatasync(self._files[self._segment])
        except OSError as error:
            # After a failed sync the kernel may have dropped the pages: what was written since counts as lost.
            self.revert()
            raise _explained(error, self.folder) from error
        self.syncs += 1
        self._synced = (self._segment, self._end)
        self._mark_due = True

    def revert(self) -> None:
        """Take back what was put since the last sync: a checkpoint that did not come about leaves nothing behind."""
        segment, end = self._synced
        self._places = {d: p for d, p in self._places.items() if (p.segment, p.offset) < (segment, end)}
        for number in [number for number in self.segments() if number > segment]:
            self._forget(number)
            self.path(number).unlink(missing_ok=True)
        if segment in self._files:
            with contextlib.suppress(OSError):
                os.ftruncate(self._files[segment], end)
        self._segment, self._end = segment, end

    def put_from(self, read: Callable[[int], bytes], most: int) -> tuple[bytes, int] | None:
        """Keep what `read(count)` gives until it gives nothing; its digest and length, None where it is over `most`.

        For contents that shall not stand in memory whole. Not durable before `sync`. Raises StorageFull, and what
        `read` raises.
        """
        found, length = sha256(), 0
        with self._writing():
            self._begin()
        while length <= most:
            try:
                piece = read(BLOCK)
            except BaseException:
                self._cut()
                raise
            if not piece:
                break
            with self._writing():
                _write_all(self._files[self._segment], piece, self._end + HEAD_SIZE + length)
            found.update(piece)
            length += len(piece)
        digest = found.digest()
        if length > most or digest in self._places:
            self._cut()
            return None if length > most else (digest, length)
        with self._writing():
            self._end_record(digest, length)
        return digest, length

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What cannot be written takes everything since the last sync with it: no manifest may name half of it."""
        try:
            yield
        except OSError as error:
            self.revert()
            raise _explained(error, self.folder) from error

    def _cut(self) -> None:
        """Take back what was written behind the last whole record."""
        with self._writing():
            os.ftruncate(self._files[self._segment], self._end)

    def _append(self, digest: bytes, data: bytes) -> None:
        with self._writing():
            self._begin()
            _write_all(self._files[self._segment], data, self._end + HEAD_SIZE)
            self._end_record(digest, len(data))

    def _begin(self) -> None:
        """Room for a record at the end of the newest segment; the mark that is due stands before it."""
        if not self._segment or self._end >= self._segment_max:
            self._roll()
        if self._mark_due:
            self._mark_due = False
            _write_all(self._files[self._segment], _header(_MARK, bytes(32), 0), self._end)
            self._end += HEAD_SIZE
            self.written += HEAD_SIZE

    def _end_record(self, digest: bytes, length: int) -> None:
        """The header comes last: a record that was cut off has none."""
        _write_all(self._files[self._segment], _header(_RECORD, digest, length), self._end)
        self._places[digest] = Place(self._segment, self._end + HEAD_SIZE, length)
        self._end += HEAD_SIZE + length
        self.written += HEAD_SIZE + length

    def _roll(self) -> None:
        """Begin a new segment; the full one is synced first, so that one sync of the newest is enough at the end."""
        try:
            if self._segment and self._synced != (self._segment, self._end):
                os.fdatasync(self._files[self._segment])
            number = self._segment + 1
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._files[number] = os.open(self.path(number), flags, 0o600)
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)  # the new file's name
            finally:
                os.close(folder)
        except OSError as error:
            raise _explained(error, self.folder) from error
        self._segment, self._end = number, 0

    # --- read -------------------------------------------------------------------------------------------------------

    def get(self, digest: bytes) -> bytes:
        """A content, compared with its digest. Raises DamagedContent where it is not what was put, or not there."""
        data = b"".join(self.pieces(digest))
        if sha256(data).digest() != digest:
            raise DamagedContent(f"A content in {self._where(digest)} is not what was written there.")
        return data

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """The bytes of a content in pieces, not compared: for what `verify` has seen. Raises DamagedContent."""
        place = self._places.get(digest)
        if place is None:
            raise DamagedContent(f"A content is missing in {self.folder}.")
        file = self._file(place.segment)
        at, end = place.offset, place.offset + place.length
        while at < end:
            piece = os.pread(file, min(BLOCK, end - at), at)
            if not piece:
                raise DamagedContent(f"A content in {self._where(digest)} ends too early.")
            yield piece
            at += len(piece)

    def verify(self, digest: bytes) -> None:
        """Read a content and compare it with its digest. Raises DamagedContent."""
        found = sha256()
        for piece in self.pieces(digest):
            found.update(piece)
        if found.digest() != digest:
            raise DamagedContent(f"A content in {self._where(digest)} is not what was written there.")

    def _where(self, digest: bytes) -> str:
        place = self._places[digest]
        return f"{self.path(place.segment)} at byte {place.offset}"

    def _file(self, number: int) -> int:
        if number not in self._files:
            for old in [old for old in self._files if old != self._segment][:-OPEN_MAX]:
                self._forget(old)
            self._files[number] = os.open(self.path(number), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        return self._files[number]

    def _forget(self, number: int) -> None:
        file = self._files.pop(number, None)
        if file is not None:
            os.close(file)

    # --- open -------------------------------------------------------------------------------------------------------

    def _load(self, number: int) -> None:
        """Learn what a segment holds; only in the newest one can anything be half written."""
        file = self._file(number)
        size = os.fstat(file).st_size
        found: list[tuple[bytes, Place]] = []
        sure, end = 0, 0  # records before the last mark; end of the last whole record
        for kind, digest, offset, length in _records(file, size):
            end = offset + length
            if kind == _MARK:
                sure = len(found)
            else:
                found.append((digest, Place(number, offset, length)))
        newest = number == self.segments()[-1]
        if newest:
            end = self._check(file, found, sure, end)
            if end != size:
                os.ftruncate(file, end)
            self._segment, self._end = number, end
            if sure != len(found) or end != size:
                os.fdatasync(file)
                self.syncs += 1
            self._synced, self._mark_due = (number, end), bool(end)
        self._places.update((digest, place) for digest, place in found)

    def _check(self, file: int, found: list[tuple[bytes, Place]], sure: int, end: int) -> int:
        """Compare what lies behind the last mark; cut off from the first that does not fit. Gives the new end."""
        for index in range(sure, len(found)):
            digest, place = found[index]
            data = sha256()
            for at in range(place.offset, place.offset + place.length, BLOCK):
                data.update(os.pread(file, min(BLOCK, place.offset + place.length - at), at))
            if data.digest() != digest:
                del found[index:]
                return place.offset - HEAD_SIZE
        return end

    # --- compaction -------------------------------------------------------------------------------------------------

    def size(self) -> int:
        """Bytes on disk."""
        return sum(self.path(number).stat().st_size for number in self.segments())

    def compact(self, live: Callable[[bytes], bool], older_than: float) -> int:
        """Give back room: segments last written before `older_than` (epoch seconds) of which less than half is live.

        What is live there is copied to the newest segment and synced before the old file goes. Gives the bytes freed.
        """
        freed = 0
        for number in self.segments():
            path = self.path(number)
            found = path.stat()
            if found.st_mtime >= older_than:
                continue
            mine = [(digest, place) for digest, place in self._places.items() if place.segment == number]
            kept = [(digest, place) for digest, place in mine if live(digest)]
            used = sum(place.length + HEAD_SIZE for _, place in kept)
            if used * 2 >= found.st_size and found.st_size:
                continue
            freed += self._empty(number, mine, kept, found.st_size)
        return freed

    def _empty(self, number: int, mine: list[tuple[bytes, Place]], kept: list[tuple[bytes, Place]], size: int) -> int:
        if number == self._segment:
            self.sync()
            self._roll()
        before = (self._segment, self._end)
        for digest, _ in mine:
            del self._places[digest]
        try:
            for _, place in kept:
                self._copy(place)
            self.sync()
        except HarnessError:
            self._places.update(mine)
            return 0
        self._forget(number)
        self.path(number).unlink(missing_ok=True)
        written = self._end - before[1] if self._segment == before[0] else 0
        return max(0, size - written)

    def _copy(self, place: Place) -> None:
        """One content to the end; where it is damaged it stays missing, and a restore says so."""
        file, at, end = self._file(place.segment), place.offset, place.offset + place.length

        def read(count: int) -> bytes:
            nonlocal at
            piece = os.pread(file, min(count, end - at), at)
            at += len(piece)
            return piece

        self.put_from(read, place.length)


def _header(kind: bytes, digest: bytes, length: int) -> bytes:
    head = _HEAD.pack(kind, digest, length)
    return head + _SUM.pack(zlib.crc32(head))


def _records(file: int, size: int) -> Iterator[tuple[bytes, bytes, int, int]]:
    """Kind, digest, offset and length of each whole record; ends at the first header that is none."""
    at = 0
    while at + HEAD_SIZE <= size:
        raw = os.pread(file, HEAD_SIZE, at)
        kind, digest, length = _HEAD.unpack_from(raw)
        (checksum,) = _SUM.unpack_from(raw, _HEAD.size)
        if kind not in (_RECORD, _MARK) or checksum != zlib.crc32(raw[: _HEAD.size]) or at + HEAD_SIZE + length > size:
            return
        yield kind, digest, at + HEAD_SIZE, length
        at += HEAD_SIZE + length


def _write_all(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def _explained(error: OSError, folder: Path) -> HarnessError:
    if error.errno in _NO_ROOM:
        return StorageFull(f"There is no room for a checkpoint in {folder}.", remedy="Free some disk space.")
    return HarnessError(f"Contents of checkpoints cannot be written in {folder}: {error.strerror}.")
