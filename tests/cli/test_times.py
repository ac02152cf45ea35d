"""Times as people write them, where the clocks are put forward and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from harnessd.cli.options import moment


@pytest.fixture(params=["Europe/Berlin"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's own zone, for as long as a test takes."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("2027-03-28 02:30", "2027-03-28T01:30"),  # there is no such time: never before what was asked
        ("2027-03-28 01:59", "2027-03-28T00:59"),
        ("2027-03-28 03:00", "2027-03-28T01:00"),
        ("2027-10-31 02:30", "2027-10-31T00:30"),  # there are two: the first
        ("2027-05-19T21:00:00+10:00", "2027-05-19T11:00"),
        ("2027-05-19T21:00Z", "2027-05-19T21:00"),
        ("2027-05-19", "2027-05-18T22:00"),
    ],
)
def test_a_due_time_is_one_moment(text: str, due: str) -> None:
    # R1.2
    assert datetime.fromtimestamp(moment("--at", text), UTC) == datetime.fromisoformat(due).replace(tzinfo=UTC)
