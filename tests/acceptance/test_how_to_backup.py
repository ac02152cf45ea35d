"""How to back up and restore: every command of the page, in its order."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import Running, plain_environment, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "back-up-and-restore.md"


def commands() -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [shlex.split(line[2:]) for block in found for line in block.splitlines() if line.startswith("$ ")]


def run(daemon: Running, words: list[str]) -> str:
    program, *arguments = words
    if program == "harnessctl":
        done = daemon.ctl(*arguments)
    else:
        assert program == "harnessd"
        assert daemon.stop() == 0
        started = [sys.executable, "-m", "harnessd", *arguments]
        done = subprocess.run(
            started, capture_output=True, text=True, cwd=daemon.folder, env=plain_environment(), check=False
        )
        daemon.start()
    assert done.returncode == 0, (words, done.stdout, done.stderr, daemon.log[-2000:])
    return done.stdout


@pytest.mark.timeout(240)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:  # R6.3, J25
    said: dict[str, str] = {}
    with running_simulator({"m": {"turns": [{"say": "Done."}]}}) as service, running(tmp_path) as daemon:
        daemon.configure(settings(tmp_path, service.url, {"m": "anthropic"}))
        client = daemon.start()
        task = daemon.submit(client, prompt="Go.", agent="m", workspace=str(daemon.workspace("a")))
        daemon.until_ended(client, task)
        for words in commands():
            said[" ".join(words)] = run(daemon, words)
        assert daemon.clients[-1].get(f"/v1/tasks/{task}")["state"] == "completed"
        assert daemon.ctl("set", task, "--keep", "90d").returncode == 0
    assert "FAIL" not in said["harnessctl doctor"]
    assert "SQLite" in said["harnessctl doctor"]
    assert "whole" in said["harnessctl backup nightly.backup"]
    assert "is the store now" in said["harnessd restore nightly.backup"]
    assert "Nothing was changed" in said["harnessctl gc --dry-run"]
