"""Payments whose answers are lost, under a daemon that is killed in the middle: none is made twice, none is made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.payments import Books, batch

pytestmark = pytest.mark.acceptance


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2])
def test_no_payment_is_made_twice_and_none_is_made_up(seed: int, tmp_path: Path) -> None:
    # R3.13, g03, g05; a seeded share of `make payments`
    books = Books()
    batch(tmp_path, seed, 16, books)
    assert books.broken == []
    assert books.charged == 16
    assert books.kills >= 1
    assert books.compacted, "no payment was compacted away"
    assert books.new_ids, "nobody tried again under a new call id"
    assert books.unknown
    assert books.probed
    assert books.asked
