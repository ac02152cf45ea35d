"""Power cuts: disks as they may stand afterwards, by what the real store wrote and synced; nothing answered is lost."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.disks.power import SHORT_LOG, Plan, judged, recorded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

# The share of `make power-loss` that every run of the tests takes.
IMAGES = 400
CONTROL_IMAGES = 80


@pytest.mark.parametrize(("seed", "pragmas"), [(1, (SHORT_LOG,)), (2, ())], ids=["log folded in", "one long log"])
def test_no_image_of_the_disk_lost_what_was_acknowledged(seed: int, pragmas: tuple[str, ...]) -> None:
    # G3, F3, F8, R6.1: tasks, nodes, effects, and the contents of checkpoints
    recording = recorded(seed, 12, pragmas)
    assert len(recording.acks) > 500
    tally = judged(Plan(recording, IMAGES, seed, jobs=1))
    assert (tally.images, tally.bad) == (IMAGES, 0), tally.words


@pytest.mark.parametrize("level", ["NORMAL", "OFF"])
def test_a_store_that_syncs_too_little_is_found_out(level: str) -> None:  # G3: the proof can see
    recording = recorded(3, 8, (SHORT_LOG, f"PRAGMA synchronous = {level}"))
    tally = judged(Plan(recording, CONTROL_IMAGES, 3, jobs=1))
    assert tally.bad > CONTROL_IMAGES / 20, tally
