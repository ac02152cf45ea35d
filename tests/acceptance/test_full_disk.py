"""A full disk: no new step, nothing lost, and everything goes on by itself when there is room again."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harnessd.cli.client import Client
from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

SCRIPT = {
    "m": {
        "turns": [
            {
                "when": {"results": {"max": 5}},
                "call": {"tool": "bash", "args": {"command": "echo x >> out; wc -l < out; sleep 0.5"}},
            },
            {"say": "Done."},
        ]
    }
}
RETENTION = "kind: retention\ndisk_free: {warn: 40%, stop: 20%}\n"
MIB = 1 << 20


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A real file system of 48 MiB."""
    place = Path(tempfile.mkdtemp(prefix="hd-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m,mode=700", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        place.rmdir()
        pytest.skip("a file system cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()


def _daemon(daemon: Running, folder: Path, url: str, disk: Path) -> Client:
    store = {"url": f"sqlite:{disk}/state/harnessd.db", "lease": {"ttl": "6s", "heartbeat": "1s"}}
    daemon.configure(settings(folder, url, {"m": "anthropic"}, store=store))
    (folder / "policies").mkdir()
    (folder / "policies" / "retention.yaml").write_text(RETENTION)
    return daemon.start()


def _fill(disk: Path, *, leave: int) -> Path:
    """Leave about so many bytes; 0: not one more."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        with contextlib.suppress(OSError):
            while shutil.disk_usage(disk).free > leave:
                os.write(file.fileno(), b"\0" * min(MIB, max(4096, shutil.disk_usage(disk).free - leave)))
        if leave == 0:
            with contextlib.suppress(OSError):
                while os.write(file.fileno(), b"\0" * 512):
                    pass
            assert shutil.disk_usage(disk).free < 4096
    return ballast


def _until_warned(daemon: Running, word: str, *, gone: bool = False) -> None:
    ends = time.monotonic() + 30
    while (word in daemon.ctl("status").stdout) is gone:
        assert time.monotonic() < ends, daemon.log
        time.sleep(0.1)


def _events(disk: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(f"file:{disk}/state/harnessd.db?mode=ro", uri=True)) as store:
        return [row[0] for row in store.execute("SELECT type FROM events ORDER BY seq")]


def test_below_stop_no_step_is_begun_and_tasks_go_on_by_themselves(tmp_path: Path, small_disk: Path) -> None:
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon:
        client = _daemon(daemon, tmp_path, service.url, small_disk)
        task = daemon.submit(client, prompt="Work.", agent="m", workspace=str(daemon.workspace("a")))
        ballast = _fill(small_disk, leave=14 * MIB)
        _until_warned(daemon, "disk_low")
        ballast.unlink()
        ballast = _fill(small_disk, leave=5 * MIB)
        _until_warned(daemon, "storage_full")
        late = daemon.submit(client, prompt="Work.", agent="m", workspace=str(daemon.workspace("b")))
        time.sleep(1.5)
        assert client.get("/v1/status")["running"] == 0
        row = client.get(f"/v1/tasks/{task}")
        assert row["state"] in ("queued", "completed")
        assert row["state"] == "completed" or "storage_full" in row["why"]
        assert client.get(f"/v1/tasks/{late}")["state"] == "queued"
        ballast.unlink()
        for one, name in ((task, "a"), (late, "b")):
            ended = daemon.until_ended(client, one)
            assert (ended["state"], ended["recoveries"]) == ("completed", 0)
            assert (daemon.workspace(name) / "out").read_text() == "x\n" * 6
        _until_warned(daemon, "storage_full", gone=True)
        words = _events(small_disk)
        assert "disk_low" in words
        assert words.count("storage_full") == 1


def test_a_disk_without_one_free_byte_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    # R6.1, G11, e01
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon:
        client = _daemon(daemon, tmp_path, service.url, small_disk)
        task = daemon.submit(client, prompt="Work.", agent="m", workspace=str(daemon.workspace("a")))
        out = daemon.workspace("a") / "out"
        ends = time.monotonic() + 20
        while not out.exists():
            assert time.monotonic() < ends
            time.sleep(0.01)
        ballast = _fill(small_disk, leave=0)
        time.sleep(8.0)  # longer than a lease
        assert daemon.process is not None
        assert daemon.process.poll() is None, daemon.log
        ballast.unlink()
        row = daemon.until_ended(client, task)
        assert row["state"] == "completed"
        assert out.read_text() == "x\n" * 6, "no step was done twice, none was lost"
        assert "internal_error" not in _events(small_disk)
