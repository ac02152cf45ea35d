"""Any tree comes back byte for byte, whatever became of it: names of any bytes, modes, links, repositories."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings

from harnessd.workspace.checkpoints import Checkpoints
from tests.workspace.trees import SCRATCH, look, make, trees, turn_into

COUNT = int(os.environ.get("HARNESSD_TREES", "500"))


# R5.3: new, changed, deleted, untracked, mode, symlink; R5.3a: nothing of the workspace's own configuration counts.
@settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=trees, second=trees)
def test_a_tree_comes_back_whole_and_can_be_taken_back(first: dict[bytes, Any], second: dict[bytes, Any]) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
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
