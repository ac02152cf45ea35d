"""Loop watch: notices while it lasts that the event loop is blocked, and says where (F37).

The selector is where a loop rests: between two rests it works, and nobody else is heard. A timer of the kernel is set
when work begins and wakes a thread a second later, which looks whether that work still goes on. An idle loop sets no
timer, and one that rests in between is not woken for: there is no tick.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harnessd.runtime.observing.meters import Distribution

LIMIT_S = 1.0
AGAIN_S = 0.5  # a timer that runs is left alone for so long: setting it is a system call
# How long one turn of the loop took: what came meanwhile waited for so long at most.
BOUNDS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 30.0)
_SHORT_S = BOUNDS_S[0]
_STACK_MAX = 12_000
_TFD_CLOEXEC = 0o2000000

T = TypeVar("T")
Blocked = Callable[[float, str], None]  # (seconds until now, the stack of the loop's thread)


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: interval, then first expiry; each in seconds and nanoseconds."""

    _fields_ = [("repeat_s", ctypes.c_long), ("repeat_ns", ctypes.c_long), ("s", ctypes.c_long), ("ns", ctypes.c_long)]


@dataclass(slots=True)
class LoopWatch:
    """Watches one loop from a thread of its own; `told` is called in that thread, once for each block."""

    told: Blocked = lambda _, __: None
    limit_s: float = LIMIT_S
    turns: Distribution = field(default_factory=lambda: Distribution(BOUNDS_S))
    blocks: int = 0
    longest_s: float = 0.0  # of all turns
    busy_since: float = 0.0  # monotonic; 0: it rests
    armed_at: float = -1e9
    lone: bool = False  # no other turn began shortly before this one
    _last_at: float = -1e9  # when the timer was last set
    _told_of: float = 0.0  # the beginning of the turn that was told of
    _timer: int = -1
    _libc: Any = None
    _spec: Any = None
    _never: Any = None
    _thread: int = 0  # of the loop

    def loop(self) -> asyncio.AbstractEventLoop:
        """A new loop that is watched; for `asyncio.Runner`."""
        return asyncio.SelectorEventLoop(_Resting(self))

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `asyncio.run`, in a watched loop."""
        with asyncio.Runner(loop_factory=self.loop) as runner:
            return runner.run(work())

    def start(self) -> None:
        """Begin to watch. Called in the loop's thread."""
        self._thread = threading.get_ident()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_CLOEXEC)
        if self._timer < 0:
            return  # a process without descriptors has other worries; long turns are still counted at their end
        whole = int(self.limit_s)
        self._spec = ctypes.byref(_TimerSpec(0, 0, whole, int((self.limit_s - whole) * 1e9)))
        self._never = ctypes.byref(_TimerSpec(0, 0, 0, 0))
        threading.Thread(target=self._watch, name="loop watch", daemon=True).start()

    def stop(self) -> None:
        """The loop is closed: nothing works any more."""
        self.busy_since, self.armed_at = 0.0, float("inf")

    def arm(self, now: float) -> None:
        """A turn begins, and the timer has not been set for a while."""
        if self._timer >= 0:
            self.lone = now - self._last_at > AGAIN_S
            self.armed_at = self._last_at = now
            self._libc.timerfd_settime(self._timer, 0, self._spec, None)

    def disarm(self) -> None:
        """A turn that stood alone is over: its timer would wake the thread for nothing, and an idle daemon sleeps."""
        self.lone, self.armed_at = False, -1e9
        self._libc.timerfd_settime(self._timer, 0, self._never, None)

    def long_turn(self, began: float, took_s: float) -> None:
        """A turn that took longer than the first bound is over."""
        self.turns.add(took_s)
        self.longest_s = max(self.longest_s, took_s)
        if took_s > self.limit_s and self._told_of != began:
            # One call of C code kept Python's lock all the time: nobody could look before it was over.
            self._tell(began, took_s, "")

    def _watch(self) -> None:
        while os.read(self._timer, 8):
            while began := self.busy_since:
                left_s = began + self.limit_s - time.monotonic()
                if left_s > 0:
                    time.sleep(left_s)
                    continue
                if began == self.busy_since and began != self._told_of:
                    self._tell(began, time.monotonic() - began, self._stack())
                break

    def _tell(self, began: float, blocked_s: float, stack: str) -> None:
        self._told_of = began
        self.blocks += 1
        self.told(blocked_s, stack)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - documented as the way to a thread's stack
        return "".join(traceback.format_stack(frame))[-_STACK_MAX:] if frame is not None else ""


class _Resting(selectors.DefaultSelector):
    """A selector that tells when its loop rests."""

    def __init__(self, watch: LoopWatch) -> None:
        super().__init__()
        self._watch = watch

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # In place and not in calls: this is done ten thousand times a second.
        watch = self._watch
        began = watch.busy_since
        if began:
            took_s = time.monotonic() - began
            if took_s < _SHORT_S:
                turns = watch.turns
                turns.counts[0] += 1
                turns.total += took_s
            else:
                watch.long_turn(began, took_s)
            watch.busy_since = 0.0
            if watch.lone and timeout != 0:
                watch.disarm()
        found = super().select(timeout)
        watch.busy_since = now = time.monotonic()
        if now - watch.armed_at > AGAIN_S:
            watch.arm(now)
        return found

    def close(self) -> None:
        self._watch.stop()
        super().close()
