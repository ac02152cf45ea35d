"""docs/how-to/test-your-policies.md: each command is run as written, and answers as shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.acceptance.test_how_to_policies import answered, plain, steps
from tests.policy.written import HARNESS, repository

PAGE = repository() / "docs" / "how-to" / "test-your-policies.md"

pytestmark = pytest.mark.acceptance


def test_the_page(tmp_path: Path) -> None:
    # R7.3
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "harnessctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m harnessd.cli "$@"\n')
    (bin_ / "harnessctl").chmod(0o755)
    (tmp_path / "harness.yaml").write_text(HARNESS.replace("max_output: 8k}", "max_output: 8k, prices: free}"))
    environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "PYTHONPATH": str(repository()), "LANG": "C.UTF-8"}
    for command, output in steps(PAGE.read_text(encoding="utf-8")):
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60,
        )  # fmt: skip
        shown = without_builtin_lines(plain(done.stdout))
        assert answered(shown, without_builtin_lines(plain(output or ""))), f"$ {command}\n{done.stdout}"
    assert ET.parse(tmp_path / "policy.xml").getroot().get("failures") == "0"


def without_builtin_lines(lines: list[str]) -> list[str]:
    """A shipped file may grow by a comment without making the page wrong."""
    return [re.sub(r"(builtin \w+\.yaml):\d+", r"\1:LINE", line) for line in lines]
