"""Forks: which processes descend from this one, told by the kernel as they begin, so that the dead are known too.

The process events connector (root in the first PID namespace, a kernel with CONFIG_PROC_EVENTS) tells of every fork of
the machine in order, and keeps what is not read yet. Who descends from us is remembered beyond its end, until its pid
is given to another process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field

from harnessd.runtime.control.lineage import ancestors

_NETLINK_CONNECTOR = 11
_PROC_EVENTS = 1  # CN_IDX_PROC and CN_VAL_PROC of linux/connector.h
_LISTEN = 1  # PROC_CN_MCAST_LISTEN
_HEAD = struct.Struct("=IHHII IIIIHH")  # struct nlmsghdr, struct cn_msg
_WHAT = struct.Struct("=I")
_NONE, _FORK = 0, 1  # proc_event.what: an answer to us, a fork
_ANSWER = struct.Struct("=16xI")  # behind the head: the error number
_FORKED = struct.Struct("=16xIIII")  # behind the head: pid and tgid of the parent, then of the child
_EVENT_MAX = 4096
# SO_RCVBUFFORCE: what may wait while nobody reads, some ten thousand forks. More are dropped, and that is said.
_RECEIVE_BUFFER_FORCE, _ROOM_BYTES = 33, 32 << 20
# SO_ATTACH_FILTER with classic BPF: only forks wake us. Words are loaded as big-endian ones.
_ATTACH_FILTER = 26
_FORKS_ONLY = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (0x20, 0, 0, _HEAD.size),  # load proc_event.what
        (0x15, 0, 1, int.from_bytes(_WHAT.pack(_FORK), "big")),  # a fork: go on, else skip one
        (0x06, 0, 0, 0xFFFFFFFF),  # keep
        (0x06, 0, 0, 0),  # drop
    )
)
_REMEMBERED = 50_000


@dataclass(slots=True)
class Forks:
    """`below` is a pid -> the child of `ancestor` that it descends from."""

    ancestor: int
    below: dict[int, int] = field(default_factory=dict)
    dropped: bool = False  # forks were missed since somebody last set this back
    _events: socket.socket | None = None

    def open(self) -> None:
        """Listen from now on. Raises OSError where the kernel does not tell us."""
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _NETLINK_CONNECTOR)
        try:
            with suppress(OSError):
                events.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, _ROOM_BYTES)
            events.bind((0, _PROC_EVENTS))
            size = _HEAD.size + _WHAT.size
            head = _HEAD.pack(size, 3, 0, 0, 0, _PROC_EVENTS, _PROC_EVENTS, 0, 0, _WHAT.size, 0)
            events.send(head + _WHAT.pack(_LISTEN))
            _expect_answer(events)
            program = ctypes.create_string_buffer(_FORKS_ONLY)
            points_to_it = struct.pack("@HP", len(_FORKS_ONLY) // 8, ctypes.addressof(program))
            events.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, points_to_it)
        except OSError:
            events.close()
            raise
        self._events = events
        self._look_around()

    def fileno(self) -> int:
        """What to wait for; -1 if it is not open."""
        return self._events.fileno() if self._events is not None else -1

    def close(self) -> None:
        """Hear no more."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def catch_up(self) -> int:
        """Take in all that the kernel has told until now; give how many events that were."""
        missed, told = False, 0
        while self._events is not None:
            try:
                event = self._events.recv(_EVENT_MAX)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                missed = True
                continue
            told += 1
            if _WHAT.unpack_from(event, _HEAD.size)[0] == _FORK:
                _, parent, thread, child = _FORKED.unpack_from(event, _HEAD.size)
                if thread == child:  # else a new thread of a process that is known
                    self._forked(parent, child)
        if missed:
            self.dropped = True
            self._look_around()
        if len(self.below) > _REMEMBERED:
            known = list(self.below.items())
            old, new = known[: -_REMEMBERED // 2], known[-_REMEMBERED // 2 :]
            self.below = dict([one for one in old if ancestors(one[0])] + new)
        return told

    def _forked(self, parent: int, child: int) -> None:
        self.below.pop(child, None)  # the pid's former owner is gone; and dicts keep the order of coming
        top = child if parent == self.ancestor else self.below.get(parent)
        if top is not None:
            self.below[child] = top

    def _look_around(self) -> None:
        """Who is alive and below us now, and nobody else: for the start, and for what was dropped."""
        self.below = {}
        for entry in os.listdir("/proc"):  # noqa: PTH208 - names are all that is wanted
            if entry.isdigit():
                line = ancestors(int(entry))
                if self.ancestor in line[1:]:
                    self.below[line[0]] = line[line.index(self.ancestor) - 1]


def _expect_answer(events: socket.socket) -> None:
    """The kernel answers before `send` returns, or never: then it does not serve this PID namespace."""
    while True:
        try:
            event = events.recv(_EVENT_MAX)
        except BlockingIOError:
            raise OSError(errno.EOPNOTSUPP, "process events are not told here") from None
        if _WHAT.unpack_from(event, _HEAD.size)[0] == _NONE:
            (refused,) = _ANSWER.unpack_from(event, _HEAD.size)
            if refused:
                raise OSError(refused, os.strerror(refused))
            return
