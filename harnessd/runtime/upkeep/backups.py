"""Backups: a whole copy of what the daemon keeps, as people ask for it: rows, contents of checkpoints, artefacts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessd import __version__
from harnessd.domain.durable.backup import Backup, BackupFolder
from harnessd.domain.events import EventType
from harnessd.domain.ports import Clock, Refused, Store

_MAGIC = b"SQLite format 3\0"


@dataclass(slots=True)
class Backups:
    """Makes one at a time, while nothing is given back: what a row of the copy names must still be there."""

    store: Store
    folder: Path  # where the store lies, and beside it what goes along
    clock: Clock
    lock: asyncio.Lock
    crash: Callable[[str], None] = lambda _: None
    _busy: bool = field(default=False)

    async def make(self, path: str, by: str) -> dict[str, Any] | Refused:
        """One file at `path`, complete or absent. Raises HarnessError where it cannot be written."""
        target = Path(path)
        if refused := await asyncio.to_thread(_refused, target, self.folder):
            return refused
        if self._busy:
            return Refused("refused", "A backup is being made already.", "Wait until it is done.")
        self._busy = True
        try:
            async with self.lock:
                begun = self.clock.monotonic()
                now = self.clock.now()
                names = ("checkpoints", "artefacts")
                folders = tuple(BackupFolder(name, str(self.folder / name)) for name in names)
                size = await self.store.backup(str(target), Backup(now, __version__, folders))
                took_s = round(self.clock.monotonic() - begun, 3)
        finally:
            self._busy = False
        done = {"file": str(target), "bytes": size, "at": now, "took_s": took_s}
        await self.store.log(EventType.BACKED_UP, {**done, "by": by}, self.clock.now())
        return done


def _refused(target: Path, state: Path) -> Refused | None:
    """A person's slip must not cost a file that is no backup; the store's own folder is not for others' files."""
    if not target.is_absolute():
        return Refused("invalid", f"{target} is not an absolute path.", "Name the file by its whole path.")
    if target.is_dir():
        return Refused("refused", f"{target} is a folder.", f"Name a file in it: {target}/harnessd.backup")
    try:
        there = target.stat()
        # The store's own files must never be opened here, by whatever name: closing them drops the locks on them.
        own = {(one.stat().st_dev, one.stat().st_ino) for one in state.iterdir() if one.exists()}
        if (there.st_dev, there.st_ino) in own:
            return Refused("refused", f"{target} lies with the store's own files.", "Name a file elsewhere.")
        head = target.open("rb").read(len(_MAGIC)) if target.is_file() else b"?"
    except FileNotFoundError:
        return None
    except OSError as error:
        return Refused("refused", f"{target} cannot be looked at: {error.strerror}.", "Name another file.")
    if head not in (b"", _MAGIC):
        return Refused("refused", f"{target} is there, and is no backup.", "Name another file, or remove it first.")
    return None
