"""Every operation on the disk fails once: the share of `make io-faults` that every run of the tests takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")
async def test_whatever_fails_every_answer_is_true() -> None:
    # G4, F5, F6, F7, F9, F40, OutcomeUnknown: EIO for each operation, ENOSPC and a short write for each write
    command = [sys.executable, "benchmarks/disks/faults.py", "--brief", "--pairs", "30", "--jobs", "1"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    rows = {words[0]: words for words in map(str.split, done.stdout.splitlines()) if len(words) > 3}
    for kind in ("EIO", "ENOSPC", "short", "gone", "read-only", "pairs"):
        runs, struck, wrong = map(int, rows[kind][1:4])
        assert wrong == 0
        assert struck >= runs * 0.8
    assert "OutcomeUnknown" in done.stdout  # COMMIT itself was struck, too
