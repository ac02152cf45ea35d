"""Any tree comes back byte for byte, whatever became of it: names of any bytes, modes, links, repositories."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from harnessd.workspace.checkpoints import Checkpoints
from tests.workspace.trees import SCRATCH, look, make, trees, turn_into

# 500 in every run of the tests; `make trees` asks for 20,000 larger ones.
COUNT = int(os.environ.get("HARNESSD_TREES", "500"))
PARTS = 4
TREES = trees(large=COUNT > 500)


# R5.3: new, changed, deleted, untracked, mode, symlink; R5.3a: nothing of the workspace's own configuration counts.
@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=COUNT // PARTS, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=TREES, second=TREES)
def test_a_tree_comes_back_whole_and_can_be_taken_back(
    part: int, first: dict[bytes, Any], second: dict[bytes, Any]
) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH, prefix=f"part{part}-") as scratch:
        root = Path(scratch, "ws")
        root.mkdir()
        make(root, first)
        a = look(root)
        room = Checkpoints(Path(scratch, "state"))
        try:
            there = room.take(str(root)).manifest
            turn_into(root, second)
            b = look(root)
            safety = room.take(str(root)).manifest

            report = room.restore(str(root), there, safety, "t1")
            assert report.state == "done", report
            assert look(root) == a

            back = room.restore(str(root), safety, room.take(str(root)).manifest, "t2")
            assert back.state == "done", back
            assert look(root) == b
        finally:
            room.close()
