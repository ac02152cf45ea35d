"""Reload: watch, validate the whole set off the loop, hand it over in one step, keep the last good one.

Events of the file system are only a hint: after a quiet time all files are read, and their contents decide whether
anything changed. A slow check does the same for file systems that tell nothing. A set with a problem changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harnessd.config.files import Snapshot, read_bytes, read_folder
from harnessd.config.garbage import COLLECTOR
from harnessd.config.load import Loaded, ReadSettings, judge_snapshot, parse_settings, shown_folder
from harnessd.config.settings import Settings
from harnessd.config.watch import Target, Watcher, targets
from harnessd.policy import PolicySet, Problem

RECHECK_S = 30.0  # for network file systems and bind mounts, where the kernel sees nothing
WITHOUT_WATCHES_S = 2.0  # the same where the kernel has no watches left
JUDGED_AGAIN = 4  # times a set that changes while it is judged is read
LONGEST_SETTLE_S = 5.0  # a writer that never stops does not put off a reload for ever


@dataclass(frozen=True, slots=True)
class Candidate:
    """A valid set that may come into force. `restart`: keys of harness.yaml that changed and need a restart."""

    policies: PolicySet
    settings: Settings
    warnings: tuple[Problem, ...]
    trigger: str
    files: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(()))
    read_at: float = 0.0  # time.monotonic when the files were read


@dataclass(frozen=True, slots=True)
class Refusal:
    """A set with problems; what was in force stays in force."""

    problems: tuple[Problem, ...]
    trigger: str


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The files say what is in force already. `restored`: they said something else, refused, before."""

    trigger: str
    restored: bool = False


Outcome = Candidate | Refusal | Unchanged


@dataclass(frozen=True, slots=True)
class _Seen:
    """All bytes that make up the configuration, read once."""

    config: bytes | None
    snapshot: Snapshot
    at: float = 0.0

    @property
    def hash(self) -> tuple[bytes | None, str]:
        return (self.config, self.snapshot.hash)


class Onlooker(Protocol):
    """Who wants to see who changes the files. Called in threads."""

    def watch(self, wanted: frozenset[Target]) -> None:
        """These are the folders that matter from now on."""

    def glimpse(self) -> None:
        """Something changed just now."""


@dataclass(slots=True)
class Reloader:
    """Keeps the configuration and its files together. `tell` gets every outcome that is news, on the loop."""

    loaded: Loaded
    environ: Mapping[str, str]
    tell: Callable[[Outcome], Awaitable[Any]]
    recheck_s: float = RECHECK_S
    named: Path | None = None  # a policy folder named on the command line
    onlooker: Onlooker | None = None
    same: Callable[[float], None] = lambda _: None  # told: at this time the files were as at the last candidate
    ready: asyncio.Event = field(default_factory=asyncio.Event)  # the first look is over, the watch stands
    blind: str = ""  # why the kernel tells us nothing, else empty
    _in_force: _Seen | None = None
    _last: _Seen | None = None  # the last that was judged
    _refused: bool = False
    _hinted: asyncio.Event = field(default_factory=asyncio.Event)
    _dirty: dict[str, float] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """What was loaded at start is what the files said."""
        self._in_force = self._last = _Seen(self.loaded.config_bytes, self.loaded.snapshot)

    async def run(self) -> None:
        """Watch until cancelled. Does nothing but wait where harness.yaml says `watch: false`."""
        if not self.loaded.settings.policies.watch:
            self.ready.set()
            await asyncio.Event().wait()
        loop = asyncio.get_running_loop()

        def hint(path: str, dirty: bool) -> None:  # on watchdog's thread
            if self.onlooker is not None:
                self.onlooker.glimpse()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._hint, path, dirty)

        watcher = Watcher(hint)
        try:
            await self._watch(watcher)
            await self._check("start")  # whatever changed between load and the first watch
            self.ready.set()
            while True:
                trigger = await self._next_hint()
                await self._check(trigger)
                if await self._watch(watcher):
                    self._hinted.set()  # what changed between the look and the new watch
        finally:
            await asyncio.shield(asyncio.to_thread(watcher.stop))

    def nudge(self) -> None:
        """Look at the files soon (from the loop)."""
        self._hinted.set()

    async def reload(
        self, trigger: str, *, yes: bool = False, tell: Callable[[Outcome], Awaitable[Any]] | None = None
    ) -> Outcome:
        """Look at the files now, as SIGHUP and `policy reload` do. `yes`: an empty folder means the defaults.

        `tell` hears of this outcome instead of the usual listener.
        """
        outcome = await self._judge(trigger, yes=yes, again=True)
        await (tell or self.tell)(outcome)
        return outcome

    # --- hints --------------------------------------------------------------------------------------------------------

    def _hint(self, path: str, dirty: bool) -> None:
        now = asyncio.get_running_loop().time()
        if dirty:
            self._dirty[path] = now
        else:
            self._dirty.pop(path, None)
        self._hinted.set()

    async def _next_hint(self) -> str:
        """Wait for a hint and for quiet after it, or for the slow check."""
        pause = WITHOUT_WATCHES_S if self.blind else self.recheck_s
        try:
            # Not asyncio.wait_for: until Python 3.12 it swallows a cancellation that comes together with the result.
            async with asyncio.timeout(pause):
                await self._hinted.wait()
        except TimeoutError:
            return "recheck"
        loop = asyncio.get_running_loop()
        settle = self.loaded.settings.policies.settle
        longest = loop.time() + LONGEST_SETTLE_S
        while self._hinted.is_set() and loop.time() < longest:
            self._hinted.clear()
            await asyncio.sleep(settle)
            # written and not closed: the writer is not done (a crashed one is not waited for long)
            while self._dirty and not self._hinted.is_set() and loop.time() < longest:
                oldest = min(self._dirty.values())
                if loop.time() - oldest > LONGEST_SETTLE_S / 2:
                    break
                await asyncio.sleep(settle or 0.01)
        self._dirty.clear()
        self._hinted.clear()
        return "files"

    async def _watch(self, watcher: Watcher) -> bool:
        """Watch what there is to watch now; whether that is something new."""

        def arm() -> bool:
            wanted = targets(self.loaded.policies_dir, self.loaded.path)
            if self.onlooker is not None:
                self.onlooker.watch(wanted)
            return watcher.watch(wanted)

        try:
            changed = await asyncio.to_thread(arm)
            self.blind = ""
        except OSError as error:
            changed = False
            reason = error.strerror or error
            self.blind = f"no watch on the files: {reason}; they are read every {WITHOUT_WATCHES_S:g} s"
        return changed

    # --- judging ------------------------------------------------------------------------------------------------------

    async def _check(self, trigger: str) -> None:
        outcome = await self._judge(trigger)
        if not isinstance(outcome, Unchanged) or outcome.restored:
            await self.tell(outcome)

    async def _judge(self, trigger: str, *, yes: bool = False, again: bool = False) -> Outcome:
        """Read everything; what is new is judged, off the loop. Reads again what changed meanwhile."""
        async with self._lock:
            for _ in range(JUDGED_AGAIN):
                self._hinted.clear()
                seen = await asyncio.to_thread(self._read)
                if self._in_force is not None and seen.hash == self._in_force.hash:
                    restored, self._refused, self._last = self._refused, False, seen
                    self.same(seen.at)
                    return Unchanged(trigger, restored)
                if not again and self._last is not None and seen.hash == self._last.hash:
                    return Unchanged(trigger)
                outcome = await asyncio.to_thread(self._decide, seen, trigger, yes)
                if not self._hinted.is_set():
                    break
                # The files changed while they were judged: what was read may be half of a save.
                await asyncio.sleep(self.loaded.settings.policies.settle)
            self._last = seen
            self._refused = isinstance(outcome, Refusal)
            if isinstance(outcome, Candidate):
                self._in_force = seen
            return outcome

    def _read(self) -> _Seen:
        """All bytes, read until two looks at the folder agree: a set is never half of one save and half of another."""
        shown = shown_folder(self.loaded.policies_dir, self.loaded.path, self.named)
        for _ in range(5):
            before, began = _signature(self.loaded.policies_dir, self.loaded.path), time.monotonic()
            config: bytes | None
            try:
                config = read_bytes(self.loaded.path)
            except OSError:
                config = None
            seen = _Seen(config, read_folder(self.loaded.policies_dir, shown), began)
            if _signature(self.loaded.policies_dir, self.loaded.path) == before:
                break
        return seen

    def _decide(self, seen: _Seen, trigger: str, yes: bool) -> Candidate | Refusal:
        with COLLECTOR.rests():
            return self._decided(seen, trigger, yes)

    def _decided(self, seen: _Seen, trigger: str, yes: bool) -> Candidate | Refusal:
        read = self._settings(seen)
        problems = list(read.problems)
        vanished = self._vanished(seen.snapshot)
        if vanished is not None and not yes:
            problems.append(vanished)
        settings = self._with_agents(read.settings)
        judged = judge_snapshot(seen.snapshot, settings)
        problems.extend(judged.problems)
        if problems or judged.policies is None:
            return Refusal(tuple(sorted(set(problems))), trigger)
        restart = _changed_keys(self.loaded.settings, read.settings or settings)
        files = tuple(file.shown for file in seen.snapshot.files)
        return Candidate(judged.policies, settings, judged.warnings, trigger, files, restart, seen.snapshot, seen.at)

    def _settings(self, seen: _Seen) -> ReadSettings:
        if seen.config is None:
            problem = Problem(str(self.loaded.path), 0, 0, "harness.yaml is gone", "put it back")
            return ReadSettings(self.loaded.path, None, None, (problem,))
        return parse_settings(self.loaded.path, seen.config, self.environ)

    def _with_agents(self, read: Settings | None) -> Settings:
        """The settings in force with the agents of the file: the only part that is read again."""
        if read is None:
            return self.loaded.settings
        return self.loaded.settings.model_copy(update={"agents": read.agents})

    def _vanished(self, snapshot: Snapshot) -> Problem | None:
        """A folder that vanishes or becomes empty under a running daemon is no wish for the defaults."""
        had = self._in_force is not None and bool(self._in_force.snapshot.files)
        if not had or snapshot.files:
            return None
        shown = shown_folder(self.loaded.policies_dir, self.loaded.path, self.named)
        what = "the folder is empty" if snapshot.there else "the folder is gone"
        remedy = "put it back, or ask for the built-in defaults: harnessctl policy reload --yes"
        return Problem(shown, 0, 0, what, remedy)


def _signature(folder: Path, config: Path) -> tuple[Any, ...]:
    """What a look at the folder shows without reading: names, inodes, sizes, times."""
    found: list[tuple[Any, ...]] = []
    try:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.name.endswith(".yaml"):
                status = entry.stat()
                found.append((entry.name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
        status = config.stat()
        found.append(("", status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError as error:
        found.append((error.errno,))
    return tuple(found)


def _changed_keys(old: Settings, new: Settings) -> tuple[str, ...]:
    """Keys of harness.yaml that are read at start only and say something else now."""
    names = [name for name in type(old).model_fields if name != "agents"]
    return tuple(name for name in names if getattr(old, name) != getattr(new, name))
