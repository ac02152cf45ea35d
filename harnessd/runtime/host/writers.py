"""Writers: who changed the configuration: a tool of a task, or somebody else, as the kernel saw it happen.

fanotify names the process behind each change in a folder, and `Forks` what that process descends from, be it as dead
as most writers are by then. Both need root (CAP_SYS_ADMIN, CAP_NET_ADMIN). Without, only a tool's process that still
stands in the folder, or holds a file of it open, when a change is heard of gives its task away. Not seen: a change
through a hard link from another folder, by another machine of a network file system, or by a process that an agent had
started by somebody else (cron, a container engine).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from harnessd.config.watch import Target
from harnessd.runtime.control.lineage import ancestors
from harnessd.runtime.host.forks import Forks

# fanotify_init(2): close-on-exec, non-blocking, a queue without bound (which only CAP_SYS_ADMIN may ask for: others are
# told of changes too, but not by whom), names and their folders in place of open files.
_INIT_FLAGS = 0x1 | 0x2 | 0x10 | 0x400 | 0x800
_MARK_ADD = 0x1
_AT_FDCWD = -100
# modified, closed after writing, moved from and to, created, deleted, the folder itself deleted or moved; of children
# and of folders among them.
_CHANGES = 0x2 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x08000000 | 0x40000000
_OVERFLOW = 0x4000
_EVENT = struct.Struct("=IBBHQii")  # struct fanotify_event_metadata
_INFO = struct.Struct("=BBH")  # struct fanotify_event_info_header
_FOLDER_AND_NAME = 2
_READ_BYTES = 1 << 16
GLIMPSE_S = 0.02  # not more often, however many changes are heard of
# Forks are taken in this often, long before the kernel's room for them is full: the longer time where hardly anybody
# forks. A burst that fills the room all the same is told as dropped, and then whoever is not known counts as unsure.
CATCH_UP_S, CATCH_UP_QUIET_S = 1.0, 8.0
FEW_FORKS = 200

A_TOOL = "a tool"


@dataclass(frozen=True, slots=True)
class Seen:
    """Who changed the configuration since it was last agreed on.

    `tools`: tasks whose tools did. `unsure`: somebody did who is not known. `anybody`: a change was seen at all.
    """

    tools: tuple[str, ...] = ()
    unsure: bool = False
    anybody: bool = False


@dataclass(slots=True)
class Writers:
    """`task_of` names the task of a tool by the pids from a process upwards; it is called in a thread of its own."""

    task_of: Callable[[Sequence[int]], str | None]
    daemon: int = field(default_factory=os.getpid)
    blind: str = "not opened"  # why nobody is known, else empty
    _forks: Forks = field(init=False)
    _groups: dict[Target, int] = field(default_factory=dict)
    _seen: list[tuple[float, str]] = field(default_factory=list)  # when, and the task; "" is nobody's tool, "?" unknown
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _bell: tuple[int, int] = (-1, -1)
    _folders: tuple[str, ...] = ()
    _next_glimpse: float = 0.0

    def __post_init__(self) -> None:
        """Nothing is watched yet."""
        self._forks = Forks(self.daemon)

    def watch(self, wanted: frozenset[Target]) -> None:
        """Watch exactly these folders from now on. Where the kernel refuses, `blind` says why."""
        with self._lock:
            self._folders = tuple(target.folder for target in wanted if target.names is None)
            try:
                if self._thread is None:
                    self._forks.open()
                    self._begin()
                if self._groups and wanted - self._groups.keys():
                    # Another folder in place of one: whoever did that was seen, what came before this watch was not.
                    self._seen.append((time.monotonic(), ""))
                for gone in self._groups.keys() - wanted:
                    os.close(self._groups.pop(gone))
                for target in wanted - self._groups.keys():
                    self._groups[target] = _group(target.folder)
                self.blind = ""
            except OSError as error:
                self.blind = f"who writes is not told: {error.strerror or error}"
        self._ring()

    async def seen(self) -> Seen | None:
        """Who changed something, up to this moment; None where that is not known here."""
        self.catch_up()
        with self._lock:
            who = {name for _, name in self._seen}
            if self.blind and not who - {""}:
                return None
        return Seen(tuple(sorted(who - {"", "?"})), "?" in who, bool(who))

    def glimpse(self) -> None:
        """A change was heard of, from whom is not told: look which tools stand in the folders. Called in any thread."""
        with self._lock:
            now = time.monotonic()
            if not self.blind or now < self._next_glimpse:
                return
            below = list(_below(self.daemon))
            for pid in below:
                if _stands_in(pid, self._folders):
                    self._seen.append((now, self.task_of(ancestors(pid)) or A_TOOL))
            self._next_glimpse = time.monotonic() + GLIMPSE_S

    def forget(self, until: float) -> None:
        """What was in the files at this time (time.monotonic) is agreed on: whoever wrote it until then."""
        with self._lock:
            self._seen = [one for one in self._seen if one[0] > until]

    def close(self) -> None:
        """Watch no more."""
        thread, self._thread = self._thread, None
        self._ring()
        if thread is not None:
            thread.join(5)
        with self._lock:
            for descriptor in (*self._groups.values(), *self._bell):
                if descriptor >= 0:
                    os.close(descriptor)
            self._groups.clear()
            self._bell = (-1, -1)
            self._forks.close()
            self.blind = "closed"

    def catch_up(self) -> int:
        """Take in what the kernel has told; give how many forks. Changes first: their writers' forks came before."""
        forks = 0
        with self._lock, contextlib.suppress(OSError):
            changes = [change for target, group in self._groups.items() for change in _changes(group, target)]
            forks = self._forks.catch_up()
            now = time.monotonic()
            self._seen += [(now, name) for name in {self._name(pid) for pid in changes}]
            self._forks.dropped = False
        return forks

    def _name(self, pid: int | None) -> str:
        """A task, A_TOOL, "" for somebody else and "?" for somebody unknown."""
        if pid is None:
            return "?"
        top = self._forks.below.get(pid)
        if top is not None:
            return self.task_of([pid, top]) or A_TOOL
        return "?" if self._forks.dropped and not ancestors(pid) else ""

    def _begin(self) -> None:
        self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._work, name="writers", daemon=True)
        self._thread.start()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._bell[1], b"!")

    def _work(self) -> None:
        """Look at once when something changes: the task of a tool is known best while it runs."""
        pause_s = CATCH_UP_S
        while self._thread is not None:
            poll = select.poll()
            for descriptor in (self._bell[0], *list(self._groups.values())):
                poll.register(descriptor, select.POLLIN)
            poll.poll(pause_s * 1000)
            with contextlib.suppress(OSError):
                os.read(self._bell[0], 64)
            pause_s = CATCH_UP_S if self.catch_up() >= FEW_FORKS else min(2 * pause_s, CATCH_UP_QUIET_S)


def _below(daemon: int) -> Iterator[int]:
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are all that is wanted
        if entry.isdigit() and daemon in ancestors(int(entry))[1:]:
            yield int(entry)


def _stands_in(pid: int, folders: Sequence[str]) -> bool:
    """Its working folder, or a file that it has open, lies in one of the folders."""
    try:
        places = [f"/proc/{pid}/cwd", *(f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd"))]  # noqa: PTH208 - as above
    except OSError:
        return False
    for place in places:
        with contextlib.suppress(OSError):
            where = os.readlink(place)  # noqa: PTH115 - as above
            if any(where == folder or where.startswith(f"{folder}/") for folder in folders):
                return True
    return False


def _group(folder: str) -> int:
    """A descriptor that tells of each change in a folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    group = int(libc.fanotify_init(_INIT_FLAGS, os.O_RDONLY | os.O_CLOEXEC))
    if group < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if libc.fanotify_mark(group, _MARK_ADD, ctypes.c_uint64(_CHANGES), _AT_FDCWD, os.fsencode(folder)) != 0:
        number = ctypes.get_errno()
        os.close(group)
        raise OSError(number, os.strerror(number))
    return group


def _changes(group: int, target: Target) -> Iterator[int | None]:
    """Pids behind the changes that concern the configuration; None where changes were dropped."""
    while True:
        try:
            told = os.read(group, _READ_BYTES)
        except BlockingIOError:
            return
        while told:
            size, _, _, head, mask, _, pid = _EVENT.unpack_from(told)
            if mask & _OVERFLOW:
                yield None
            elif _concerns(_name_in(told[head:size]), target):
                yield pid
            told = told[size:]


def _name_in(information: bytes) -> str:
    """The name behind a folder's file handle (fanotify(7)); "." for the folder itself."""
    while information:
        kind, _, size = _INFO.unpack_from(information)
        if kind == _FOLDER_AND_NAME:
            # fsid of 8 bytes, then handle_bytes, handle_type and the handle
            (length,) = struct.unpack_from("=I", information, _INFO.size + 8)
            return os.fsdecode(information[_INFO.size + 16 + length : size].split(b"\0", 1)[0])
        information = information[size:]
    return "."


def _concerns(name: str, target: Target) -> bool:
    """Only what can change the policies: not an editor's leavings. Names that begin with `..` are a ConfigMap's."""
    if target.names is not None:
        return name in target.names
    return name == "." or name.startswith("..") or (name.endswith(".yaml") and not name.startswith("."))
