"""Virtual time: an event loop whose clock jumps to the next timer whenever nothing else is left to do.

Ten minutes of waiting take a second, and everything that waits is the product's own code: pool, desk, prober, store.
The store works in threads of its own: while one of its answers is out, real time passes and the clock stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import selectors
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

EPOCH = 1_800_000_000.0  # 2027-01-15 08:00 UTC


class _JumpingSelector(selectors.BaseSelector):
    """The real selector; a wait for a timer is not waited but jumped over, unless a thread is still at work."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.jumped_s = 0.0
        self.at_work = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or self.at_work:
            return self._real.select(None if timeout != 0 else 0)
        self.jumped_s += timeout
        return self._real.select(0)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Only jumps move its clock."""

    def __init__(self) -> None:
        self._jumps = _JumpingSelector()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.jumped_s

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """While a thread works."""
        self._jumps.at_work += 1
        try:
            yield
        finally:
            self._jumps.at_work -= 1


class Patient:
    """A store, during whose calls the clock stands still."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def patiently(*arguments: Any, **named: Any) -> Any:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            with loop.standing_still():
                return await found(*arguments, **named)

        return patiently


class VirtualClock:
    """The product's clock port on the running loop's time."""

    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def run_virtually(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)
