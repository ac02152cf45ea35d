"""Backup: what goes into one beside the rows, and what a restore did; plain values that every store understands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackupFolder:
    """A folder whose files go along; `name` is the folder's name in the backup, beside the store."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Backup:
    """What is wanted. `at`: seconds since the Unix epoch; `program` is the version that writes it."""

    at: float = 0.0
    program: str = ""
    folders: tuple[BackupFolder, ...] = ()


@dataclass(frozen=True, slots=True)
class Act:
    """Something done to the world after a backup was taken, as the store that was replaced knows it."""

    task: str
    effect: str
    name: str
    state: str
    at: float


@dataclass(frozen=True, slots=True)
class StoreRestored:
    """What a restore did.

    `commit` is where the store stands now, `at` when the backup was taken (0: it does not say), `files` how many files
    came with it. `aside` names what the old store is called now. `live` are the tasks that go on by themselves,
    `doubted` those of all tasks that may have done something since which nobody knows. `since` are the irreversible
    acts that the old store knows of; None where it cannot be asked.
    """

    commit: int
    at: float
    files: int
    aside: tuple[str, ...]
    live: tuple[str, ...]
    doubted: tuple[str, ...]
    since: Sequence[Act] | None
