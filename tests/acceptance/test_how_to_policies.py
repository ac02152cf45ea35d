"""docs/how-to/change-a-policy-safely.md: each command is run as written, on a running daemon, and answers as shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harnessd.cli.client import Client, Problem
from tests.running import Running, plain_environment, running, settings

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "docs" / "how-to" / "change-a-policy-safely.md"
EDITOR = """#!/bin/sh
sed -i 's/tool_calls: 150/tool_calls: 200/' "$1"
"""

pytestmark = pytest.mark.acceptance


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Running]:
    """A daemon whose configuration lies in its working folder, as the page has it."""
    with running(tmp_path) as found:
        found.configure(settings(tmp_path, "http://127.0.0.1:1", {"primary": "anthropic"}))
        (tmp_path / "policies").mkdir()
        with (tmp_path / "harnessd.log").open("ab") as log:
            found.process = subprocess.Popen(
                [sys.executable, "-m", "harnessd", "run"], cwd=tmp_path, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, env=plain_environment(),
            )  # fmt: skip
        yield found


def steps(page: str) -> Iterator[tuple[str, str | None]]:
    """Command and what it is to print; None where the page shows no output (a block of `sh`)."""
    for kind, text in re.findall(r"^```(sh|console)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if kind == "sh":
            yield text, None
            continue
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)


def plain(text: str) -> list[str]:
    """What does not differ from run to run: no times, no hashes, one blank for several."""
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{16}\b", "HASH", text)
    return [re.sub(r" +", " ", line).rstrip() for line in text.splitlines()]


def answered(shown: list[str], wanted: list[str]) -> bool:
    """`...` stands for the rest."""
    if "..." in wanted:
        wanted = wanted[: wanted.index("...")]
        shown = shown[: len(wanted)]
    return shown == wanted


def as_a_person_does(command: str) -> str:
    """On a terminal a person would be asked, and say yes."""
    return f"{command} --yes" if command.startswith("harnessctl policy edit") else command


def test_the_page(daemon: Running, tmp_path: Path) -> None:
    # R7.2, R7.3, R7.4
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "harnessctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m harnessd.cli "$@"\n')
    (bin_ / "editor").write_text(EDITOR)
    for program in bin_.iterdir():
        program.chmod(0o755)
    environment = plain_environment() | {"HARNESSD_SOCKET": daemon.socket, "EDITOR": str(bin_ / "editor")}
    environment |= {"PATH": f"{bin_}:{os.environ['PATH']}", "PYTHONPATH": str(REPO), "LANG": "C.UTF-8"}
    until_it_answers(daemon)
    for command, output in steps(PAGE.read_text(encoding="utf-8")):
        done = subprocess.run(
            ["bash", "-c", as_a_person_does(command)], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60,
        )  # fmt: skip
        shown = plain(done.stdout)
        assert answered(shown, plain(output or "")), f"$ {command}\n{done.stdout}"
    assert json.loads((tmp_path / "policy.schema.json").read_text())["$defs"]


def until_it_answers(daemon: Running) -> None:
    until = time.monotonic() + 30
    while True:
        client = Client(daemon.socket)
        try:
            client.get("/v1/status")
        except Problem:
            assert time.monotonic() < until, daemon.log
            time.sleep(0.05)
        else:
            return
        finally:
            client.close()
