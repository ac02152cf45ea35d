"""Compacting: the tiers before every call, cheap steps first, the summary, and what is carried over by code (R4)."""

from __future__ import annotations

from harnessd.domain.task import TaskState
from tests.engine.windows import played


def test_a_long_task_stays_within_its_window() -> None:  # R4.1, R4.2, R4.5
    run = played()
    run.go(300)
    assert run.desk.stands() is TaskState.RUNNING
    assert max(run.sizes) < 0.98 * 14_000
    assert 3 < len(run.nodes()) < 40
    assert "Do all the steps." in run.shown
    assert "steps/{1-" in run.shown, "each effect has its receipt"
    assert "## Next steps" in run.shown
