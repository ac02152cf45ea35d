"""A running control server, and the client called in this process or as a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harnessd.cli import client_table, run
from tests.control_server import ControlServer, Ran, control_server

Ctl = Callable[..., Ran]


@pytest.fixture
def server() -> Iterator[ControlServer]:
    with control_server() as running:
        yield running


@pytest.fixture
def ctl(server: ControlServer, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """`harnessctl` in this process: the whole way in and out, without the start of an interpreter."""

    def call(*words: str) -> Ran:
        capsys.readouterr()
        code = run(client_table(), ["--socket", str(server.socket), *words])
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    return call
