"""An owner that was stopped and wakes up too late: the share of `make pauses` that every run of the tests takes."""

from __future__ import annotations

import pytest

from benchmarks.disks.pauses import paused


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_paused_owner_writes_nothing_more() -> None:  # G8, F15, F16, I11
    seen = await paused(30, seed=5)
    assert (seen.times, seen.stale, seen.lost, seen.unaware) == (30, 0, 0, 0), seen.words
    assert seen.acked >= 30
