"""kill -9 at seeded moments: after a restart nothing acknowledged is lost and nothing ran twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.crash_sweep import one_run
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

# A seeded share of `make crash-sweep`; each seed is one moment of a six-step task.
SEEDS = range(1000, 1020)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_books_balance_after_a_kill(seed: int, tmp_path: Path) -> None:
    # R6.1, R5.1, R2.2, R4.7
    with running_simulator() as service:
        protocol = "openai-chat" if seed % 2 else "anthropic"
        verdict = one_run(seed, tmp_path, service, protocol)
    assert verdict.broken == (), verdict.how
