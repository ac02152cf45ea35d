"""Damaged files of a crashed store: the share of `make damage` that every run of the tests takes."""

from __future__ import annotations

import pytest

from benchmarks.disks.damage import damaged


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_what_600_damages_drop_is_never_dropped_in_silence() -> None:  # G17, F11
    seen = await damaged(600, seed=7)
    assert seen.silent == []
    assert seen.alarmed >= 100
    assert seen.told > 10
