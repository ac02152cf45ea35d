"""`harnessctl session` in this process, without a daemon."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harnessd.cli import client_table, run
from tests.control_server import Ran

Ctl = Callable[..., Ran]
Written = Callable[..., str]


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ctl:
    monkeypatch.setenv("HARNESSD_SOCKET", str(tmp_path / "none.sock"))

    def call(*words: str) -> Ran:
        capsys.readouterr()
        code = run(client_table(), ["session", *words])
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    return call


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """A file with bytes, a text, lines of JSON (a tuple) or one JSON document."""

    def write(content: Any, name: str = "transcript.json") -> str:
        path = tmp_path / name
        path.write_bytes(as_bytes(content))
        return str(path)

    return write


def as_bytes(content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, tuple):
        return "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in content).encode()
    return json.dumps(content).encode()


def codes(ran: Ran) -> Sequence[str]:
    """The codes of `lint --json`."""
    return [problem["code"] for problem in json.loads(ran.out)["problems"]]
