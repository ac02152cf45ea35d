"""The demo: three tasks, a 429, a kill -9, a wrong path; whatever ends it, nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.running import plain_environment

pytestmark = pytest.mark.acceptance

DEMO = [sys.executable, "-u", "-m", "harnessd", "demo"]


def processes_under(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line and "demo --keep" not in line:
                found.append(line)
    return found


def test_the_three_defences_are_seen_and_the_files_say_so_too(tmp_path: Path) -> None:
    # R8.2, R6.1, R3.2, R2.1
    command = [*DEMO, "--keep", str(tmp_path / "d")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env=plain_environment(), check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "rate_limited",
        "try 2 of 11",
        "kill -9",
        "interrupted",
        "there is no such file",
        "3 of 3 tasks done",
    ):
        assert words in done.stdout, done.stdout
    assert done.stdout.count("completed") >= 3
    assert processes_under(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_ended_demo_leaves_no_daemon(tmp_path: Path, number: signal.Signals) -> None:
    command = [*DEMO, "--keep", str(tmp_path / "d")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plain_environment(), cwd=tmp_path) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "harnessd runs (pid" in line:
                break
        demo.send_signal(number)
        demo.communicate(timeout=40)
    until = time.monotonic() + 20
    while processes_under(tmp_path):
        assert time.monotonic() < until, processes_under(tmp_path)
        time.sleep(0.1)


def test_a_mix_of_faults_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    command = [*DEMO, "--faults", "sunspots=5%"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, env=plain_environment(), check=False, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "sunspots" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_made_is_no_fault_of_the_demo(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    command = [*DEMO, "--keep", str(tmp_path / "file" / "d")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, env=plain_environment(), check=False, cwd=tmp_path
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be made" in done.stderr
    assert len(done.stderr.splitlines()) == 2
