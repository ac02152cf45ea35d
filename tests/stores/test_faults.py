"""Single system calls that fail under a working store: an answer is never wrong, and an unknown one is settled."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.ports import Submitted
from harnessd.stores.database import migrations
from tests.stores.scenes import NOW, draft, opened

REPO = Path(__file__).resolve().parents[2]
PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Submitted
from harnessd.stores import open_store
from tests.stores.scenes import draft, NOW
async def main():
    store = open_store(Path(sys.argv[1]))
    try:
        await store.open("child")
        for n in range(6):
            for answer in await asyncio.gather(
                *(store.submit(draft(key=f"k{n}-{m}"), NOW) for m in range(3)), return_exceptions=True
            ):
                known = isinstance(answer, (HarnessError, Submitted))
                word = answer.task.draft.key if isinstance(answer, Submitted) else type(answer).__name__
                print(json.dumps({"known": known, "word": word, "sentence": str(answer)[:300]}), flush=True)
    except HarnessError as error:
        print(json.dumps({"known": True, "word": type(error).__name__, "sentence": str(error)}), flush=True)
    finally:
        try:
            await store.close()
        except Exception as error:
            print(json.dumps({"known": False, "word": repr(error), "sentence": ""}), flush=True)
asyncio.run(main())
"""


def traced(path: Path, fault: str) -> list[dict[str, Any]]:
    calls = fault.split(":", maxsplit=1)[0]
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={fault}"]
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, str(path)], cwd=REPO, capture_output=True, text=True, check=False
    )
    if "ptrace" in done.stderr.lower():
        pytest.skip("this machine allows no tracing")
    assert "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("fault", ["fdatasync:error=EIO", "pwrite64:error=EIO", "pwrite64:error=ENOSPC"])
async def test_one_failing_call_makes_no_wrong_answer(tmp_path: Path, fault: str) -> None:  # F5, F6, OutcomeUnknown
    async def one(nth: int) -> set[str]:
        path = tmp_path / str(nth) / "harnessd.db"
        said = await asyncio.to_thread(traced, path, f"{fault}:when={nth}")
        assert all(line["known"] for line in said), said
        async with opened(path) as store:
            for line in said:
                if not line["word"].startswith("k"):
                    continue
                answer = await store.submit(draft(key=line["word"]), NOW)
                assert isinstance(answer, Submitted)
                assert not answer.fresh, f"{fault} {nth}: {line['word']} was acknowledged and is gone"
        return {line["word"] for line in said}

    words: set[str] = set()
    first = 5 + len(migrations())  # each step of the schema is a transaction of its own
    span = (4, *(first + more for more in (0, 1, 2, 3, 5)))
    span = span if fault.startswith("fdatasync") else (60, 80, 100, 120, 140, 160)
    for places in (span[:3], span[3:]):
        for found in await asyncio.gather(*(one(nth) for nth in places)):
            words |= found
    assert any(word.startswith("k") for word in words)
    assert "ENOSPC" in fault or words & {"StoreLost", "OutcomeUnknown"}  # the faults did strike
