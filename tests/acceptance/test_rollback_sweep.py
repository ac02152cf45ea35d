"""kill -9 at seeded moments of rollbacks: the workspace is exactly one state or the other, and the pointer fits it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rollback_sweep import sweep

pytestmark = pytest.mark.acceptance

# A seeded share of `make rollback-sweep`.
RUNS = 20


@pytest.mark.timeout(300)
def test_files_and_pointer_match_whenever_the_power_fails(tmp_path: Path) -> None:
    # R5.2, R6.1, I6
    assert sweep(tmp_path, RUNS, 1, say=False) == []
