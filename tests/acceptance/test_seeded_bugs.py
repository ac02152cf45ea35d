"""Mistakes that somebody could make: the tests see them. A share of `make seeded-bugs`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.proofs.bugs import Copy, hunt, scratch, stale
from benchmarks.proofs.seeded import BUGS, Bug

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    with scratch() as found:
        yield found


def test_every_seeded_bug_still_fits_the_code() -> None:
    # G20: a bug that cannot be put in proves nothing
    assert stale() == []
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 30


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.cheap], ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_seeded_bug_is_caught(bug: Bug, copy: Copy) -> None:
    # G20
    assert hunt(copy, bug), f"nothing sees this: {bug.name}"
