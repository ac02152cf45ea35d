"""One simulator for a module's tests, reset before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulated import SimulatedService, running_simulator


@pytest.fixture(scope="module")
def service() -> Iterator[SimulatedService]:
    with running_simulator() as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> None:
    if "service" in request.fixturenames:
        found: SimulatedService = request.getfixturevalue("service")
        found.reset_now()
