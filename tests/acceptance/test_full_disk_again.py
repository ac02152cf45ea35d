"""A disk that fills up and is freed, again and again: nothing acknowledged is lost, and work goes on by itself."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harnessd.cli.client import Client, Problem
from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

# `make full-disk` takes 24 of them and prints how long things took.
CYCLES = int(os.environ.get("HARNESSD_CYCLES", "2"))
STEPS = 6
SCRIPT = {
    "m": {
        "turns": [
            {
                "when": {"results": {"max": STEPS - 1}},
                "call": {"tool": "bash", "args": {"command": "echo x >> out; wc -l < out; sleep 0.2"}},
            },
            {"say": "Done."},
        ]
    }
}
BALLAST = 1 << 20


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A real file system of 24 MiB."""
    place = Path(tempfile.mkdtemp(prefix="hd-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        place.rmdir()
        pytest.skip("a file system cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()


def _filled(disk: Path) -> Path:
    """Not one byte is left; somebody else's file grows on, and takes what is given up as well."""
    file = disk / "somebody-elses"
    with file.open("ab", buffering=0) as open_, contextlib.suppress(OSError):
        for size in (1 << 20, 4096, 512, 1):
            with contextlib.suppress(OSError):
                while open_.write(bytes(size)) == size:
                    pass
    return file


def _until(what: str, ok: object, daemon: Running) -> float:
    assert callable(ok)
    began = time.monotonic()
    while not ok():
        assert time.monotonic() - began < 60, f"{what}\n{daemon.log}"
        time.sleep(0.05)
    return time.monotonic() - began


def _refused(client: Client, daemon: Running) -> float:
    """A new task is refused with the one word, at once; how long it took."""
    began = time.monotonic()
    with pytest.raises(Problem) as caught:
        daemon.submit(client, prompt="One more." + "z" * 60_000, agent="m", workspace=str(daemon.workspace("late")))
    assert "no room left" in str(caught.value), caught.value
    return time.monotonic() - began


def test_full_and_free_again(tmp_path: Path, small_disk: Path) -> None:
    # F10, G11, R6.1
    store = {"url": f"sqlite:{small_disk}/state/harnessd.db", "lease": {"ttl": "6s", "heartbeat": "1s"}}
    with running_simulator(SCRIPT) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"m": "anthropic"}, store=store))
        (tmp_path / "policies").mkdir()
        (tmp_path / "policies" / "retention.yaml").write_text("kind: retention\ndisk_free: {warn: 2%, stop: 1%}\n")
        client = daemon.start()
        ballast = small_disk / "state" / "ballast"
        _until("the ballast is laid", lambda: ballast.exists() and ballast.stat().st_blocks * 512 >= BALLAST, daemon)
        figures = []
        for cycle in range(CYCLES):
            names = [f"{cycle}-{n}" for n in range(3)]
            tasks = [
                daemon.submit(client, prompt="Work.", agent="m", workspace=str(daemon.workspace(name)))
                for name in names
            ]
            outs = [daemon.workspace(name) / "out" for name in names]
            _until("the tasks have begun", lambda outs=outs: all(out.exists() for out in outs), daemon)
            file = _filled(small_disk)
            _until("the ballast is given up", lambda: not ballast.exists(), daemon)
            _filled(small_disk)
            refused_s = _refused(client, daemon)
            for task in tasks:  # reads go on
                assert client.get(f"/v1/tasks/{task}")["state"] in ("queued", "running")
            assert client.get("/v1/status")["version"]
            time.sleep(2)
            file.unlink()
            began = time.monotonic()
            _until("work goes on", lambda tasks=tasks: _moves(client, tasks), daemon)
            resumed_s = time.monotonic() - began
            for task, out in zip(tasks, outs, strict=True):
                ended = daemon.until_ended(client, task)
                assert ended["state"] == "completed", ended
                assert out.read_text() == "x\n" * STEPS, "no step was lost, none was done twice"
            _until("the ballast is back", ballast.exists, daemon)
            figures.append((round(refused_s, 2), round(resumed_s, 2)))
        print(json.dumps({"cycles": CYCLES, "refused_s": max(figures)[0], "resumed_s": max(s for _, s in figures)}))


def _moves(client: Client, tasks: list[str]) -> bool:
    rows = [client.get(f"/v1/tasks/{task}") for task in tasks]
    return all(row["state"] in ("running", "completed") and "storage_full" not in str(row.get("why")) for row in rows)
