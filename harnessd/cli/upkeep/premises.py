"""Premises: what the daemon stands on, as this process sees it: Python, SQLite, socket, clock, limits."""

from __future__ import annotations

import ctypes
import os
import resource
import sqlite3
import stat
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from harnessd import __version__
from harnessd.cli.upkeep.line import FAIL, OK, WARN, Line

OLDEST_PYTHON = (3, 11)
# sqlite.org/wal.html#walresetbug: from 3.7.0 on; mended in 3.51.3, and in these older lines from these versions on.
BUG_FROM, BUG_MENDED = (3, 7, 0), (3, 51, 3)
BUG_MENDED_IN = {(3, 44): 6, (3, 50): 7}
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX_BYTES = 512  # struct timex is 208 on 64-bit machines
_FILES_ENOUGH = 1024


def installation() -> Iterator[Line]:
    """Python, the package, where both lie, SQLite."""
    version = sys.version_info
    enough = version[:2] >= OLDEST_PYTHON
    says = f"Python {version.major}.{version.minor}.{version.micro}, harnessd {__version__}"
    yield Line("install", "python", OK if enough else FAIL, says, "" if enough else "Install Python 3.11 or newer.")
    yield place(os.path.realpath(sys.executable), sys.prefix)
    yield wal_reset(sqlite3.sqlite_version_info)
    missing = [
        name for name in ("click", "httpx", "pydantic", "starlette", "uvicorn", "yaml") if find_spec(name) is None
    ]
    if missing:
        yield Line("install", "packages", FAIL, f"missing: {', '.join(missing)}", "Install harnessd again with pip.")
    else:
        yield Line("install", "packages", OK, "all that harnessd needs is there")


def place(interpreter: str, prefix: str) -> Line:
    """A system service with ProtectHome= sees neither /root nor /home."""
    hidden = [path for path in (interpreter, prefix) if path.split("/")[1:2] in (["root"], ["home"])]
    if not hidden:
        return Line("install", "place", OK, f"in {prefix}")
    remedy = "For a system service install it elsewhere, e.g. python3 -m venv /opt/harnessd; a user's own may stay."
    return Line("install", "place", WARN, f"{hidden[0]} is hidden from a service with ProtectHome=", remedy)


def has_wal_reset_bug(version: tuple[int, int, int]) -> bool:
    """Whether two connections that write and checkpoint at the same moment can damage the file."""
    mended_from = BUG_MENDED_IN.get(version[:2])
    if mended_from is not None and version[2] >= mended_from:
        return False
    return BUG_FROM <= version < BUG_MENDED


def wal_reset(version: tuple[int, int, int]) -> Line:
    """The linked SQLite, by name."""
    text = ".".join(map(str, version))
    if not has_wal_reset_bug(version):
        return Line("store", "sqlite", OK, f"SQLite {text}, without the WAL-reset bug")
    says = f"SQLite {text} has the WAL-reset bug (mended in 3.51.3, 3.50.7, 3.44.6)"
    remedy = (
        "harnessd alone is not met by it: one connection writes and checkpoints. Let no other program open the file."
    )
    return Line("store", "sqlite", WARN, says, remedy)


def socket(path: str) -> Line:
    """Who may talk to the daemon: its user, root, and at most a group."""
    try:
        mode, above = stat.S_IMODE(os.stat(path).st_mode), os.stat(os.path.dirname(path) or ".")  # noqa: PTH116, PTH120
    except OSError as error:
        return Line("daemon", "socket", WARN, f"{path}: {error.strerror}", "Look at it as the daemon's user.")
    if mode & 0o007 and above.st_mode & 0o001:
        remedy = "Restart the daemon: it makes the socket itself, 0600 or 0660."
        return Line("daemon", "socket", FAIL, f"{path} has mode {mode:04o}: anybody may talk to the daemon", remedy)
    return Line("daemon", "socket", OK, f"{path}, mode {mode:04o}")


def clock() -> Iterator[Line]:
    """Whether a time service sets the clock; waits and retention go by it."""
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state == _TIME_ERROR:
        remedy = "Run a time service: timedatectl set-ntp true, or chrony. In a container the host's counts."
        yield Line("clock", "set", WARN, "no time service says that it sets the clock", remedy)
    elif state >= 0:
        yield Line("clock", "set", OK, "a time service sets it")
    else:
        yield Line("clock", "set", WARN, "the kernel does not say who sets it", "In a container the host's counts.")


def limits() -> Iterator[Line]:
    """As a daemon that is started from this shell would have them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES_ENOUGH:
        remedy = f"Raise it: `ulimit -n {min(hard, 65536) if hard > 0 else 65536}`, or LimitNOFILE=65536 in the unit."
        yield Line("limits", "descriptors", WARN, f"{soft} are allowed from this shell", remedy)
    else:
        yield Line("limits", "descriptors", OK, f"{soft} are allowed from this shell")
