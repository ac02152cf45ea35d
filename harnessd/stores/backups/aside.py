"""Aside: a look at the store from a connection of its own that can neither write nor checkpoint; the writer goes on."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

Result = TypeVar("Result")


@dataclass(slots=True)
class Aside:
    """One look, in a thread of its own: `read` there, `let_go` from anywhere."""

    database: Path
    _reader: sqlite3.Connection | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False
    _over: threading.Event = field(default_factory=threading.Event)

    def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Do the work, once. Raises sqlite3.Error, also where it was let go."""
        uri = f"file:{quote(os.fspath(self.database))}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)) as reader:
                with self._lock:
                    self._reader = None if self._stopped else reader
                if self._reader is None:
                    message = "the store is being closed"
                    raise sqlite3.OperationalError(message)
                return work(reader)
        finally:
            with self._lock:
                self._reader = None
            self._over.set()

    def let_go(self) -> None:
        """Stop reading the store, which is to be closed or opened anew; returns once nothing of it is open here."""
        with self._lock:
            self._stopped = True
            if self._reader is not None:
                self._reader.interrupt()
        self._over.wait()
