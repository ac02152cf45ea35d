"""Watch: hints that configuration files may have changed, from the kernel by way of watchdog; never more than hints.

Reading the files again decides what changed. Watched are folders, never files: editors replace files, and a watch on a
file dies with the old inode. A file that was written to and not yet closed is `dirty`: its writer is not done.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

# It reports folders that vanish under a watch as errors: for us they are hints like any other.
logging.getLogger("watchdog").setLevel(logging.CRITICAL)

_WRITES = frozenset({"created", "modified", "deleted", "moved", "closed"})  # reading makes events too: not these


@dataclass(frozen=True, slots=True)
class Target:
    """A folder to watch, by path and inode; `names` None: everything in it, else only these entries."""

    folder: str
    inode: tuple[int, int]
    names: frozenset[str] | None = None


def targets(policies: Path, config: Path) -> frozenset[Target]:
    """Every folder in which a change can change the configuration: through every link on the way."""
    wanted: dict[Path, set[str] | None] = {policies.resolve(): None}
    steps = [*_through_links(policies), *_through_links(config)]
    for linked in _linked_files(policies):
        steps.extend(_through_links(linked))
    for step in steps:
        names = wanted.setdefault(step.parent, set())
        if names is not None:
            names.add(step.name)
    return frozenset(_existing(wanted))


def _existing(wanted: Mapping[Path, set[str] | None]) -> Iterator[Target]:
    for folder, names in wanted.items():
        try:
            status = folder.stat()
        except OSError:
            continue
        kept = None if names is None else frozenset(names)
        yield Target(str(folder), (status.st_dev, status.st_ino), kept)


def _linked_files(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith(".yaml") and entry.is_symlink()]
    except OSError:
        return []


def _through_links(path: Path) -> list[Path]:
    """The path itself and each link on the way to what it means: any of them can be replaced. Links are not loops."""
    steps: list[Path] = []
    current = path.absolute()
    for _ in range(16):
        steps.append(current)
        link = next((step for step in (*reversed(current.parents), current) if step.is_symlink()), None)
        if link is None:
            break
        steps.append(link)
        rest = current.relative_to(link)
        current = Path(os.path.normpath(link.parent / link.readlink() / rest))
    return steps


@dataclass(slots=True)
class Watcher:
    """Calls `hint` from its own threads, with the path and whether its writer is still at it."""

    hint: Callable[[str, bool], None]
    observer: BaseObserver | None = None
    watched: frozenset[Target] = field(default_factory=frozenset)

    def watch(self, wanted: frozenset[Target]) -> bool:
        """Watch exactly these folders; whether they are others than before.

        Raises OSError where the kernel has no watches left.
        """
        if wanted == self.watched and self.observer is not None:
            return False
        self.stop()
        observer = Observer()
        for target in wanted:
            observer.schedule(_Handler(self.hint, target), target.folder, recursive=False)
        observer.daemon = True
        observer.start()
        self.observer, self.watched = observer, wanted
        return True

    def stop(self) -> None:
        """End all watching."""
        observer, self.observer = self.observer, None
        self.watched = frozenset()
        if observer is not None:
            observer.stop()
            observer.join(5)


class _Handler(FileSystemEventHandler):
    def __init__(self, hint: Callable[[str, bool], None], target: Target) -> None:
        self.hint = hint
        self.target = target

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type not in _WRITES:
            return
        for raw in (event.src_path, event.dest_path):
            path = os.fsdecode(raw) if raw else ""
            if path and self._concerns(path):
                dirty = event.event_type == "modified" and not event.is_directory
                self.hint(path, dirty)

    def _concerns(self, path: str) -> bool:
        if path == self.target.folder:
            return True
        return self.target.names is None or Path(path).name in self.target.names
