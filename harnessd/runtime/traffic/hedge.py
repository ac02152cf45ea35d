"""Hedge: a second request where the first has no event yet; the first whole answer counts, the other is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from harnessd.domain.failure import Failure
from harnessd.domain.messages import ModelReply
from harnessd.domain.ports import Progress

Attempt = Callable[[Progress], Awaitable[ModelReply | Failure]]

# Words of progress that are no event of an answer: a limit may hold the call back; now it is on its way.
IN_LINE, SENT = "in_line", "sent"


async def hedged(attempt: Attempt, after_s: float, progress: Progress) -> ModelReply | Failure:
    """One answer of one or two attempts (R3.16). A failure counts only where the other failed as well."""
    begun = asyncio.Event()

    def seen(word: str) -> None:
        if word not in (IN_LINE, SENT):
            begun.set()
        progress(word)

    async def one() -> ModelReply | Failure:
        return await attempt(seen)

    first = asyncio.create_task(one(), name="first")
    news = asyncio.create_task(begun.wait(), name="first event")
    attempts = [first]
    try:
        either: set[asyncio.Future[object]] = {first, news}  # type: ignore[arg-type]
        await asyncio.wait(either, timeout=after_s, return_when=asyncio.FIRST_COMPLETED)
        if not (first.done() or begun.is_set()):
            attempts.append(asyncio.create_task(one(), name="second"))
        return await _best(attempts)
    finally:
        left = [task for task in (*attempts, news) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


async def _best(attempts: list[asyncio.Task[ModelReply | Failure]]) -> ModelReply | Failure:
    waiting = set(attempts)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if isinstance(answer := task.result(), ModelReply):
                return answer
    return attempts[0].result()
