"""Sink: where log lines go: a bounded queue and one thread that writes, so that a blocked reader blocks no task (F38).

What does not fit is dropped and counted; as soon as there is room a line says how many were lost.
"""

from __future__ import annotations

import atexit
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LINES_MAX = 10_000
BYTES_MAX = 8 << 20
CLOSE_S = 2.0  # at the end of the process the queue may drain for this long
_DATAGRAM_MAX = 100_000  # below the usual send buffer (net.core.wmem_default); longer ones go the way of plain lines
JOURNAL = "/run/systemd/journal/socket"

Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Line:
    """One log line: its text for a stream; its fields for the journal, where they are told apart."""

    text: str
    fields: Fields | None = None

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        return len(self.text) + sum(len(name) + len(value) for name, value in (self.fields or {}).items())


class Sink:
    """Takes lines without ever waiting; a daemon thread writes them in order."""

    def __init__(
        self,
        descriptor: int,
        *,
        lost: Callable[[int], Line] = lambda count: Line(f"{count} lines were dropped"),
        journal: str | None = None,
        lines_max: int = LINES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        """Write to `descriptor`; with `journal`, lines with fields go to that socket instead."""
        self._descriptor, self._lost = descriptor, lost
        self._lines_max, self._bytes_max = lines_max, bytes_max
        self._queue: deque[Line] = deque()
        self._size = 0
        self._lock = threading.RLock()  # a finalizer may log while a line is put
        self._bell = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._busy = False
        self._thread: threading.Thread | None = None
        self._untold = 0
        self._journal_path = journal
        self._journal = _connected(journal) if journal is not None else None
        self.written = 0
        self.dropped = 0

    @property
    def waiting(self) -> int:
        """The lines that are not written yet."""
        return len(self._queue)

    def put(self, line: Line) -> None:
        """Queue a line; never waits for whoever reads."""
        with self._lock:
            if self._thread is None:
                self._begin()
            if len(self._queue) >= self._lines_max or self._size + line.size > self._bytes_max:
                self.dropped += 1
                self._untold += 1
                return
            self._queue.append(line)
            self._size += line.size
            self._bell.notify()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written, but no longer; False where something is left."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._queue and not self._busy, timeout_s)

    def _begin(self) -> None:
        # Not before the first line: who only imports us needs no thread.
        self._thread = threading.Thread(target=self._run, name="log sink", daemon=True)
        self._thread.start()
        atexit.register(self.flush, CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                if not self._queue:
                    self._idle.notify_all()
                self._bell.wait_for(lambda: bool(self._queue))
                line, self._busy = self._queue.popleft(), True
                self._size -= line.size
            written = self._write(line)
            with self._lock:
                self.dropped += not written
                self._untold += not written
                untold, self._untold = (self._untold, 0) if written else (0, self._untold)
            if untold and not self._write(self._lost(untold)):
                with self._lock:
                    self._untold += untold

    def _write(self, line: Line) -> bool:
        if self._journal_path is not None and line.fields is not None and self._sent(line.fields):
            self.written += 1
            return True
        data = f"{line.text}\n".encode("utf-8", "backslashreplace")
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                time.sleep(0.05)  # somebody made the stream non-blocking: it is theirs too
            except OSError:
                return False  # gone (EPIPE, EBADF) or full (ENOSPC): the daemon goes on without this line
        self.written += 1
        return True

    def _sent(self, fields: Fields) -> bool:
        """False where the stream must take the line: journald restarts, or the entry is too long for its socket."""
        datagram = journal_datagram(fields)
        if self._journal is None and self._journal_path is not None:
            self._journal = _connected(self._journal_path)
        if self._journal is None or len(datagram) > _DATAGRAM_MAX:
            return False
        try:
            self._journal.send(datagram)
        except OSError:
            self._journal.close()  # the socket of a journald that ended stays refused: the next line connects anew
            self._journal = None
            return False
        return True


def journal_datagram(fields: Fields) -> bytes:
    """An entry in the journal's native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL).

    A value with a line break has its length in front of it, as 64 bits, little-endian.
    """
    parts: list[bytes] = []
    for name, value in fields.items():
        raw = value.encode("utf-8", "backslashreplace")
        if b"\n" in raw:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n")
        else:
            parts.append(name.encode() + b"=" + raw + b"\n")
    return b"".join(parts)


def journal_name(name: str) -> str:
    """A key of ours as a field of the journal: capitals, digits, underscores, at most 64 letters."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name.upper())
    return f"HARNESS_{letters}"[:64]


def _connected(path: str) -> socket.socket | None:
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        journal.connect(path)
    except OSError:
        journal.close()
        return None
    return journal
