"""Tools that do not want to end: eight shapes, five ends; nothing of them lives 10 s later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.proofs.escapes import ENDS, SHAPES, run
from benchmarks.proofs.warm import Warm, warm
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def starter() -> Iterator[Warm]:
    with warm() as found:
        yield found


@pytest.fixture(scope="module")
def service() -> Iterator[SimulatedService]:
    with running_simulator() as found:
        yield found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("end", ENDS)
def test_nothing_of_a_task_outlives_it(end: str, tmp_path: Path, starter: Warm, service: SimulatedService) -> None:
    # G12, I9, R3.12, R6.1a; the share of `make escapes`
    found = run(tmp_path, starter, service, end)
    assert found.broken == []
    assert found.shapes == len(SHAPES)
