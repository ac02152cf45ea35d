"""Examining: what only the running daemon can see of itself: its store, its limits, what the kernel allows it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Store

_PR_GET_CHILD_SUBREAPER, _PR_GET_DUMPABLE = 37, 3
_SYSTEM_ADMIN, _NET_ADMIN = 21, 12  # bits of linux/capability.h: who writes policies, and what descends from us
_FILES_ENOUGH = 1024  # a worker holds about ten: its tool's output, its model's connection, its workspace
FULL = "2"  # sqlite.org/pragma.html#pragma_synchronous


def found(area: str, name: str, state: str, says: str, remedy: str = "") -> dict[str, str]:
    """One line of `doctor`. `state`: ok, warn or fail; what is not ok says what to do."""
    return {"area": area, "name": name, "state": state, "says": says, "remedy": remedy}


@dataclass(frozen=True, slots=True)
class Examining:
    """Asks the store and the kernel."""

    store: Store

    async def look(self) -> Sequence[Mapping[str, Any]]:
        """All of it."""
        return [*await self._store(), *await asyncio.to_thread(_process)]

    async def _store(self) -> list[Mapping[str, Any]]:
        try:
            facts = await self.store.examine()
        except HarnessError as fault:
            return [found("store", "integrity", "fail", fault.sentence, fault.remedy)]
        return [_integrity(facts), *_durability(facts)]


def _integrity(facts: Mapping[str, str]) -> dict[str, str]:
    if (said := facts.get("integrity", "ok")) == "ok":
        return found("store", "integrity", "ok", f"{facts['engine']} {facts['version']}: the check found nothing")
    remedy = "Make a backup now, stop the daemon, and run `harnessd restore FILE` with a sound one."
    return found("store", "integrity", "fail", f"the check found: {said}", remedy)


def _durability(facts: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Whether what is acknowledged survives: power loss, and the loss of a machine."""
    if facts["engine"] == "sqlite":
        full = facts.get("synchronous") == FULL and facts.get("journal_mode") == "wal"
        says = f"journal {facts.get('journal_mode')}, synchronous {'full' if full else facts.get('synchronous')}"
        remedy = "" if full else "Start the daemon again: it sets both itself."
        return [found("store", "durability", "ok" if full else "fail", says, remedy)]
    for name in ("fsync", "full_page_writes"):
        if facts.get(name, "on") == "off":
            return [found("store", "durability", "fail", f"{name} is off", f"Set {name} = on: a power cut loses all.")]
    commit = facts.get("synchronous_commit", "")
    standbys = facts.get("synchronous_standby_names", "")
    if commit in ("", "off", "local"):
        remedy = "Set synchronous_commit to on, or to remote_apply where a standby shall take over."
        return [found("store", "durability", "fail", f"synchronous_commit is {commit or 'not known'}", remedy)]
    if commit != "remote_apply" or not standbys:
        says = f"synchronous_commit is {commit}, synchronous standbys: {standbys or 'none'}"
        remedy = "A fail-over may lose what was acknowledged: set remote_apply and synchronous_standby_names."
        return [found("store", "durability", "warn", says, remedy)]
    return [found("store", "durability", "ok", f"synchronous_commit is {commit}, standbys: {standbys}")]


def _process() -> list[Mapping[str, Any]]:
    return [_subreaper(), _dumpable(), _descriptors(), _capabilities(), _pidfd(), _cgroup()]


def _prctl(option: int) -> int:
    value = ctypes.c_int(-1)
    libc = ctypes.CDLL(None, use_errno=True)
    if option == _PR_GET_DUMPABLE:
        return int(libc.prctl(option, 0, 0, 0, 0))
    libc.prctl(option, ctypes.byref(value), 0, 0, 0)
    return value.value


def _subreaper() -> dict[str, str]:
    if _prctl(_PR_GET_CHILD_SUBREAPER) == 1:
        return found("processes", "subreaper", "ok", "what a tool leaves behind comes to the daemon and is ended")
    remedy = "The kernel or a seccomp filter refuses PR_SET_CHILD_SUBREAPER: allow it."
    return found("processes", "subreaper", "fail", "children of tools can escape when their parent ends", remedy)


def _dumpable() -> dict[str, str]:
    if _prctl(_PR_GET_DUMPABLE) == 0:
        return found("processes", "secrets", "ok", "tools cannot read the daemon's environment or memory")
    remedy = "The kernel or a seccomp filter refuses PR_SET_DUMPABLE: allow it."
    return found("processes", "secrets", "fail", "tools can read the daemon's environment and memory", remedy)


def _descriptors() -> dict[str, str]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone
    says = f"{used} of {soft} in use"
    if soft - used < _FILES_ENOUGH // 2 or soft < _FILES_ENOUGH:
        remedy = f"Raise it: LimitNOFILE=65536 in the unit, or `ulimit -n` in the shell (at most {hard} now)."
        return found("limits", "descriptors", "warn", says, remedy)
    return found("limits", "descriptors", "ok", says)


def _capabilities() -> dict[str, str]:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    held = int(line.split()[1], 16)
    missing = [
        name for name, bit in (("CAP_SYS_ADMIN", _SYSTEM_ADMIN), ("CAP_NET_ADMIN", _NET_ADMIN)) if not held >> bit & 1
    ]
    if not missing:
        return found("processes", "writers", "ok", "the kernel tells which process changes a policy")
    says = (
        f"without {' and '.join(missing)} a tool that changes policies is caught only while it stands in their folder"
    )
    remedy = "Keep the policy folder unwritable for the daemon's user; then no tool can change it."
    return found("processes", "writers", "warn", says, remedy)


def _pidfd() -> dict[str, str]:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        remedy = "Linux 5.3 or newer is needed, and no seccomp filter that refuses pidfd_open."
        return found("processes", "pidfd", "warn", f"processes are known by number alone: {error.strerror}", remedy)
    return found("processes", "pidfd", "ok", "a process is ended by what it is, not by a number that may be reused")


def _cgroup() -> dict[str, str]:
    """Writable for us, or not: the subreaper walk does the work of `cgroup.kill` where it is not."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    folder = None if own is None else Path(f"/sys/fs/cgroup{own}")
    if folder is not None and os.access(folder, os.W_OK) and (folder / "cgroup.procs").exists():
        return found("processes", "cgroup", "ok", f"{own} is the daemon's to divide")
    says = "no cgroup of its own to divide: tools are ended by walking their process tree"
    return found("processes", "cgroup", "ok", says)
