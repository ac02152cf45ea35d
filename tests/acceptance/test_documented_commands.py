"""README and tutorial do what they say: each of their commands is run as written, with a simulated model service."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.simulated import running_simulator

REPO = Path(__file__).resolve().parents[2]
SCRIPTS = REPO / "harnessd" / "simulator" / "scripts"
MODEL = "claude-sonnet-4-5"
SERVICE = "https://api.anthropic.com"
RUN_S = 110

HELLO = {
    "turns": [
        {
            "when": {"first": True},
            "call": [{"tool": "write_file", "args": {"path": "hello.py", "content": "print('hello')\n"}}],
        },
        {"when": {"last_tool": "write_file"}, "call": [{"tool": "bash", "args": {"command": "python3 hello.py"}}]},
        {"when": {"last_tool": "bash", "matches": "hello"}, "say": "It printed hello."},
    ]
}

pytestmark = pytest.mark.acceptance


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A folder that looks like a checkout after set-up. Its path is short: a socket's name holds 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="hd-") as name:
        folder = Path(name) / "c"
        folder.mkdir()
        (folder / ".venv").symlink_to(sys.prefix)
        for copied in ("Makefile", "pyproject.toml", "constraints", "harnessd"):
            (folder / copied).symlink_to(REPO / copied)
        yield folder


def blocks(page: Path) -> list[str]:
    """Return the commands of each fenced block: all of an `sh` block, the lines after `$` of a `console` block."""
    found = []
    for kind, text in re.findall(
        r"^```(sh|console)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        lines = text.splitlines()
        found.append("\n".join(lines if kind == "sh" else [line[2:] for line in lines if line.startswith("$ ")]))
    return found


def as_in_a_new_terminal(line: str) -> str:
    """What a person does without being told: a terminal opens in the checkout; `make` is only looked at here."""
    if line.startswith(". .venv/"):
        return f'cd "$CHECKOUT"\n{line}'
    return re.sub(r"^make ", "make --dry-run ", line)


def script_of(page: Path) -> str:
    """Return one script of all blocks. What `harnessd run` needs is remembered, as its own terminal would."""
    parts = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"]
    first_terminal: list[str] = []
    for number, block in enumerate(blocks(page), start=1):
        lines = [as_in_a_new_terminal(line) for line in block.splitlines()]
        parts.append(f'echo "--- block {number}" >&2')
        if "harnessd run" in lines:
            first_terminal += [line for line in lines if line != "harnessd run"]
            parts += ["(", *first_terminal, "exec harnessd run", ') >>"$CHECKOUT/daemon.log" 2>&1 &']
            # Its own socket first: a client falls back to the system's daemon, and the machine may have one.
            mine = 'test -S "$XDG_RUNTIME_DIR/harnessd/api.sock"'
            parts += [f"until {mine} && harnessctl status --ready >/dev/null 2>&1; do kill -0 $!; sleep 0.1; done"]
        else:
            parts += lines
    return "\n".join(parts) + "\n"


def run_page(page: Path, checkout: Path, script: dict[str, Any]) -> str:
    """Run a page from its first command to its last; gives what a reader would have seen."""
    home, runtime = checkout.parent / "h", checkout.parent / "r"
    home.mkdir()
    runtime.mkdir(mode=0o700)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HARNESSD_", "PYTEST_"))}
    environment |= {"HOME": str(home), "XDG_RUNTIME_DIR": str(runtime), "CHECKOUT": str(checkout), "LANG": "C.UTF-8"}
    bash = shutil.which("bash")
    assert bash is not None
    with running_simulator({MODEL: script}) as service:
        text = script_of(page).replace(SERVICE, service.url)
        assert service.url in text
        done = subprocess.run(
            [bash, "-c", text], cwd=checkout, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=RUN_S,
        )  # fmt: skip
        seen = service.requests_now()
    log = (checkout / "daemon.log").read_text(encoding="utf-8")
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{log[-2000:]}"
    assert seen["violations"] == []
    assert "Traceback" not in done.stdout + log
    return done.stdout


def test_readme(checkout: Path) -> None:
    shown = run_page(REPO / "README.md", checkout, HELLO)
    assert "It printed hello." in shown


def test_tutorial(checkout: Path) -> None:
    fix_test = yaml.safe_load((SCRIPTS / "fix-test.yaml").read_text(encoding="utf-8"))["models"]["fix-test"]
    # No model answers at once. The page kills the daemon a second after the submit, and must meet it at work.
    for turn in fix_test["turns"]:
        turn["delay"] = "300ms"
    shown = run_page(REPO / "docs" / "tutorial.md", checkout, fix_test)
    # What the page tells its reader to look for.
    assert "exit status 3" in shown
    assert "interrupted" in shown
    assert "budget_exhausted" in shown
    assert shown.count("\nOK\n") == 2  # both copies are repaired
