"""Measure: a disk's sync, and the real store's steps in a scratch folder; nothing of it is left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harnessd.app import scratch_store
from harnessd.cli.client import FAILED, Problem
from harnessd.config.load import find_config, read_settings
from harnessd.domain.failure import ConfigError, HarnessError
from harnessd.domain.record import AppendNode
from harnessd.domain.session import Node, NodeKind
from harnessd.domain.task import Lease, TaskDraft

SESSIONS = (1, 32, 256)
_BLOCK = 4096
_PAYLOAD = {"blocks": [{"type": "text", "text": "x" * 1000}]}
_LEASE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Rate:
    """How often a second, and how long one takes (seconds). `sessions`: how many work at once."""

    sessions: int
    per_s: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """All that was measured; `folder` is the one whose disk it was."""

    folder: str
    seconds: float
    sync: Rate
    steps: tuple[Rate, ...]

    def json(self) -> dict[str, Any]:
        """As data."""
        return asdict(self)


def place(config: str | None, folder: str | None) -> Path:
    """The folder whose disk is measured: the store's own, if harness.yaml says so. Raises Problem."""
    if folder is not None:
        return Path(folder).absolute()
    try:
        path = find_config(Path(config) if config else None, os.environ)
    except ConfigError as wrong:
        if config:
            raise
        raise Problem(
            FAILED, wrong.sentence, "Name a folder on the disk to measure: harnessctl bench --dir ."
        ) from None
    read = read_settings(path, os.environ)
    if read.settings is None:
        raise Problem(FAILED, str(read.problems[0]), "Mend it, or name a folder: harnessctl bench --dir .")
    url = read.settings.store.url
    if not isinstance(url, str) or not url.startswith("sqlite:"):
        raise Problem(FAILED, "The store is on another machine.", "Measure a folder: harnessctl bench --dir .")
    file = url.removeprefix("sqlite:")
    return Path(file[2:] if file.startswith("///") else file).absolute().parent


def measure(folder: Path, seconds: float) -> Found:
    """All of it, on the disk of `folder`. Raises Problem where no scratch folder can be made there."""
    # Beside the state folder, not in it: whatever happens here, the daemon's own folder holds nothing of it.
    near = next((one for one in (folder.parent, folder) if one.is_dir() and _same_disk(one, folder)), None)
    try:
        if near is None:
            raise FileNotFoundError(2, "there is no such folder")
        scratch = Path(tempfile.mkdtemp(prefix=".harnessd-bench-", dir=near))
    except OSError as fault:
        message = f"No scratch folder can be made beside {folder}: {fault.strerror}."
        raise Problem(FAILED, message, "Run it as the daemon's user, or name a folder with --dir.") from None
    try:
        sync = _sync(scratch / "sync", seconds)
        steps = tuple(asyncio.run(_steps(scratch / f"store{count}", count, seconds)) for count in SESSIONS)
    except HarnessError as fault:
        raise Problem(FAILED, fault.sentence, fault.remedy) from None
    except OSError as fault:
        raise Problem(FAILED, f"The disk refused a write: {fault.strerror}.", "Free some room.") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Found(str(folder), seconds, sync, steps)


def _same_disk(one: Path, folder: Path) -> bool:
    return not folder.is_dir() or one.stat().st_dev == folder.stat().st_dev


def _sync(path: Path, seconds: float) -> Rate:
    """Append a block and sync it, as a write-ahead log does."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    times: list[float] = []
    block = b"\0" * _BLOCK
    try:
        ends = time.perf_counter() + seconds
        while (began := time.perf_counter()) < ends or not times:
            os.write(file, block)
            os.fdatasync(file)
            times.append(time.perf_counter() - began)
    finally:
        os.close(file)
    return _rate(1, times, sum(times))


async def _steps(folder: Path, sessions: int, seconds: float) -> Rate:
    """Append nodes of 1 KiB to so many sessions at once, each durable before the next, by the real store."""
    store = scratch_store(folder / "bench.db")
    await store.open("bench")
    try:
        now = time.time()
        drafts = (TaskDraft("nothing", "bench", f"/bench/{number}") for number in range(sessions))
        await asyncio.gather(*(store.submit(draft, now) for draft in drafts))
        leases = [task.lease for task in await store.claim("bench", sessions, now, _LEASE_S) if task.lease]
        times: list[float] = []
        began = time.perf_counter()
        await asyncio.gather(*(_session(store, lease, began + seconds, times) for lease in leases))
        return _rate(sessions, times, time.perf_counter() - began)
    finally:
        await store.close()


async def _session(store: Any, lease: Lease, ends: float, times: list[float]) -> None:
    parent: str | None = None
    number = 0
    while (began := time.perf_counter()) < ends or number == 0:
        number += 1
        now = time.time()
        node = Node(f"n{number}", parent, NodeKind.ASSISTANT, _PAYLOAD, now)
        await store.record(lease, (AppendNode(node),), now)
        times.append(time.perf_counter() - began)
        parent = node.id


def _rate(sessions: int, times: Sequence[float], took_s: float) -> Rate:
    ordered = sorted(times)
    last = len(ordered) - 1
    return Rate(sessions, len(ordered) / took_s, ordered[last // 2], ordered[min(last, int(last * 0.99))])
