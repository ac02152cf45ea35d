"""Two daemons and a server that is stopped: the share of `make postgres-chaos` that every run of the tests takes."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.proofs.several import run, site
from tests.stores.postgres_server import need_programs

pytestmark = pytest.mark.acceptance


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_is_done_twice() -> None:  # G8, G9, F16, F30, I1, I3, I4, I11
    need_programs()
    line, broken = run(30, seed=4, pace=0.25, rate=2)
    assert not broken, [line, *broken]
    assert " 0 immediate stops" not in line, line


def test_a_daemon_paused_before_an_act_does_not_do_it_later(tmp_path: Path) -> None:  # F16, G8, I3
    need_programs()
    with site(tmp_path, random.Random(1), 5.0) as on:
        a, b = on.nodes["a"], on.nodes["b"]
        client = a.start(HARNESSD_CRASH="J9:1:stop")
        space = on.work / "one"
        space.mkdir()
        a.submit(client, prompt="Do your acts, run one.", agent="payer", workspace=str(space))
        assert a.process is not None
        stat = Path(f"/proc/{a.process.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")  # it has stopped itself
        other = b.start()
        try:
            # The person sees that it was not done, and b does it.
            until(lambda: bool(other.get("/v1/inbox")["questions"]))
            (question,) = other.get("/v1/inbox")["questions"]
            other.post(f"/v1/inbox/{question['task']}/{question['id']}", {"choice": "not-done"})
            row = b.until_ended(other, question["task"])
        finally:
            a.process.send_signal(signal.SIGCONT)
        assert row["state"] == "completed", (row["state"], row["sentence"], row["doing"])
        if a.process.poll() is None:  # its store may have been lost to it meanwhile
            a.stop(120.0)  # whatever it had begun has ended
        assert on.outside.by_name == {"one-a1": 1, "one-a2": 1}


def until(fits: Callable[[], bool], timeout_s: float = 60.0) -> None:
    ends = time.monotonic() + timeout_s
    while not fits():
        assert time.monotonic() < ends
        time.sleep(0.05)
