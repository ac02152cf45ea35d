"""Expecting: what a store must hold after the answers heard so far, compared with what a reopened one does hold."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessd.domain.failure import HarnessError, StoreLost
from harnessd.stores import open_store
from harnessd.workspace.content import Contents
from harnessd.workspace.manifest import DamagedContent, tree_of
from tests.stores import test_crash

DEEP_EVERY = 25  # of so many images one is read whole: chains, numbers, trees, pages


@dataclass(slots=True)
class Expected:
    """All that was acknowledged, as sets."""

    keys: set[tuple[str, str]] = field(default_factory=set)
    nodes: set[tuple[str, str]] = field(default_factory=set)
    effects: set[tuple[str, str]] = field(default_factory=set)
    settled: set[tuple[str, str]] = field(default_factory=set)
    states: set[tuple[str, str]] = field(default_factory=set)
    manifests: dict[str, dict[str, str]] = field(default_factory=dict)
    heard: list[dict[str, Any]] = field(default_factory=list)

    def hear(self, ack: dict[str, Any]) -> None:
        self.heard.append(ack)
        if "manifest" in ack:
            self.manifests[ack["manifest"]] = ack["files"]
        task = ack.get("task")
        if task is None:
            return
        for word, place in (("key", self.keys), ("node", self.nodes), ("effect", self.effects)):
            if word in ack:
                place.add((task, ack[word]))
        if "settled" in ack:
            self.settled.add((task, ack["settled"]))
        if ack.get("state") == "completed":
            self.states.add((task, ack["state"]))

    def unkept(self, folder: Path) -> list[str]:
        """Which checkpoints' contents are not all there."""
        if not self.manifests:
            return []
        vaults = [place for place in folder.iterdir() if place.is_dir()] if folder.is_dir() else []
        if len(vaults) != 1 or not (vaults[0] / "workspace").read_bytes():
            return ["the folder of contents"]
        gone, contents = [], Contents(vaults[0])
        try:
            for manifest, files in self.manifests.items():
                tree, _ = tree_of(bytes.fromhex(manifest), contents.get)
                held = {path: entry.holds for path, entry in tree.items() if entry.kind == "file"}
                for digest in held.values():
                    contents.verify(digest)
                if {path: digest.hex() for path, digest in held.items()} != files:
                    gone.append(manifest)
        except (DamagedContent, KeyError, OSError) as error:
            gone.append(repr(error))
        finally:
            contents.close()
        return gone

    def missing(self, path: Path) -> list[str]:
        """What the file does not hold."""
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:

            def rows(text: str) -> set[tuple[str, str]]:
                return set(store.execute(text))

            found = (
                self.keys - rows("SELECT id, key FROM tasks"),
                self.nodes - rows("SELECT task, id FROM nodes"),
                self.effects - rows("SELECT task, id FROM effects"),
                self.settled - rows("SELECT task, id FROM effects WHERE state = 'done'"),
                self.states - rows("SELECT id, state FROM tasks"),
            )
        return [f"{task} {thing}" for gone in found for task, thing in sorted(gone)]


@dataclass(slots=True)
class Tally:
    """What became of images.

    Attributes:
        lost: opened without a word although something acknowledged is gone.
        alarmed: not opened, with the words for lost work.
        unreadable: not opened, or not sound, for any other reason.
    """

    images: int = 0
    lost: int = 0
    alarmed: int = 0
    unreadable: int = 0
    words: list[str] = field(default_factory=list)

    @property
    def bad(self) -> int:
        return self.lost + self.alarmed + self.unreadable

    def add(self, others: Iterable[Tally]) -> Tally:
        for other in others:
            self.images += other.images
            self.lost += other.lost
            self.alarmed += other.alarmed
            self.unreadable += other.unreadable
            self.words += other.words[: max(0, 5 - len(self.words))]
        return self

    def blame(self, kind: str, where: str, words: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.words) < 5:
            self.words.append(f"{kind} at {where}: {words[:300]}")


async def judge(path: Path, expected: Expected, tally: Tally, where: str, luck: random.Random) -> None:
    """Open one image with the real store and compare."""
    tally.images += 1
    store = open_store(path)
    try:
        await store.open("after the cut")
        try:
            missing = expected.missing(path) + expected.unkept(path.with_name("checkpoints"))
            if not missing and luck.random() * DEEP_EVERY < 1.0:
                await test_crash.check(store, expected.heard)
        finally:
            await store.close()
    except StoreLost as lost:
        tally.blame("alarmed" if "acknowledged" in str(lost) else "unreadable", where, str(lost))
    except (sqlite3.Error, HarnessError, OSError, AssertionError, KeyError) as error:
        tally.blame("unreadable", where, repr(error))
    else:
        if missing:
            tally.blame("lost", where, f"{len(missing)} gone, e.g. {missing[0]}")
