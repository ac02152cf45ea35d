"""A task that is to come after another: what status says while that one can complete, and once it has stopped."""

from __future__ import annotations

from tests.cli.conftest import Ctl
from tests.control_server import ControlServer


def test_behind_a_task_that_stopped_nothing_comes_by_itself(server: ControlServer, ctl: Ctl) -> None:
    # C2: it would stand in the queue until its age ends it, and a person is to know why
    first = server.submit("First")
    second = server.submit("Second", after=[first])
    shown = ctl("status", second).out
    assert f"behind   {first}, which is to complete first\n" in shown
    assert f"it starts by itself after {first}" in shown
    assert ctl("cancel", first).code == 0
    shown = ctl("status", second).out
    assert f"behind   {first}, which is to complete first and has stopped\n" in shown
    assert f"nothing, until {first} goes on and completes: harnessctl resume {first}" in shown
